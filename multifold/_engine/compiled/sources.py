"""Modules that Cython compiles where it can, and that run as they are elsewhere.

Where both are there, Python imports the compiled module. This one loads the source in its place: it is what
``MULTIFOLD_NATIVE=0`` asks for, and what the tests compare with the compiled modules.
"""

from __future__ import annotations

import os
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

SOURCES = ("_calls", "_rows", "_merging", "_table", "_tasks", "_lazy")
"""The modules, each after those that it imports."""


def uncompiled() -> dict[str, ModuleType]:
    """Load each of `SOURCES` from its ``.py`` file; return its name in `SOURCES` -> module.

    The modules replace those of their full names in ``sys.modules``, so later imports find them. Raises
    ImportError if a source is not there.
    """
    found = {}
    folder = os.path.dirname(__file__)
    for name in SOURCES:
        full = f"multifold._engine.compiled.{name}"
        spec = spec_from_file_location(full, os.path.join(folder, f"{name}.py"))
        if spec is None or spec.loader is None:
            raise ImportError(f"The source of {full} is not there.")
        # Registered before it runs, as the import system does, since later modules of the list import it.
        found[name] = sys.modules[full] = module_from_spec(spec)
        spec.loader.exec_module(found[name])
    return found


def require_compiled() -> None:
    """Raise ImportError if one of `SOURCES` was imported from its ``.py`` file.

    All of them must have been imported before, else this raises KeyError.
    """
    for name in SOURCES:
        if str(sys.modules[f"multifold._engine.compiled.{name}"].__file__).endswith(".py"):
            raise ImportError(f"multifold._engine.compiled.{name} was not compiled")
