"""Which backends there are: the one test that fails where a backend that was asked for is missing."""

from __future__ import annotations

import importlib
import pkgutil
import pydoc

import pytest

from multifold import BackendError
from multifold._engine.frameworks import registry


def test_the_backend_that_was_asked_for_can_be_imported(asked_backend):
    assert registry.load_backend(asked_backend).name == asked_backend


def public_modules(package):
    """Return the names of a package and of what is in it, but for rooms whose names begin with ``_``."""
    found = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    return [package, *[x.name for x in found if "._" not in x.name]]


def test_help_shows_every_public_module(asked_backend):
    package = "multifold" if asked_backend == "numpy" else f"multifold_{asked_backend}"
    assert all(pydoc.render_doc(name) for name in public_modules(package))


def test_a_gap_is_shown_by_the_class_and_raised_by_a_backend():
    backend = type(registry.load_backend("numpy"))
    gapped = type("Gapped", (backend,), {"kit": backend.kit, "name": "gapped"})
    assert "kit" in gapped().gaps() and gapped.kit.attribute == "kit"
    with pytest.raises(BackendError, match="Backend 'gapped' has no kit"):
        _ = gapped().kit
