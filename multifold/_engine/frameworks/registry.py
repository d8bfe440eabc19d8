"""Which backends there are, and which one an array or a model belongs to.

Adapters are found through the entry-point group ``multifold.backends``; NumPy's, which every installation
has, through the entry point that `BUILT_IN` spells out. Asking imports no framework: an array can only
belong to a framework that is imported already, so only the adapters of those are loaded and asked.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import sys
from collections.abc import Iterable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from multifold.backend import Backend, comes_from, owner_of
from multifold.errors import BackendError, BackendMissing

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "multifold.backends"

BUILT_IN = {"numpy": "multifold._numpy.backend:NumpyBackend"}
"""The adapters that the core brings. They are there, too, where the core runs without being installed."""

BACKENDS = ("numpy", "torch", "tensorflow", "mxnet", "jax")
"""The backends of this project."""


def install_line(name: str) -> str:
    """Return the shell commands that install a backend of this project, or its benchmarks for ``"bench"``.

    Examples
    --------
    >>> install_line("torch")
    'pip install multifold-torch; in a checkout: pip install ./backends/torch'
    """
    folder = "benchmarks" if name == "bench" else f"backends/{name}"
    return f"pip install multifold-{name}; in a checkout: pip install ./{folder}"


@functools.cache
def entry_points() -> dict[str, EntryPoint]:
    """Return the name of each installed adapter -> its entry point; the first call's answer is kept."""
    import importlib.metadata  # slow to import, so `import multifold` does without it

    return {point.name: point for point in importlib.metadata.entry_points(group=GROUP)}


def installed_backends() -> list[str]:
    """Return the names of the backends that are installed here, ``"numpy"`` first; imports none of them.

    Examples
    --------
    >>> import multifold
    >>> multifold.installed_backends()[0]
    'numpy'
    """
    return ["numpy", *sorted(set(entry_points()) - {"numpy"})]


def missing(name: str) -> BackendMissing:
    """Return, but do not raise, the error that says how the backend of that name is installed."""
    return BackendMissing(f"Backend '{name}' is not installed.", install_line(name))


def refuse_strangers(parts: Iterable[Any]) -> None:
    """Raise `BackendMissing` if a part belongs to a framework whose adapter is not installed.

    ``parts`` are models, parts of one, and ops. A part belongs to the framework from which its class comes,
    or for a method the class of its object. Only frameworks that are imported are looked at.
    """
    strangers = [name for name in BACKENDS if name in sys.modules and name not in installed_backends()]
    for part in parts if strangers else ():
        for name in strangers:
            if comes_from(type(owner_of(part, part)), name):  # type: ignore[arg-type]
                raise missing(name)


def number_of_core() -> str | None:
    """Return the installed version of ``multifold-core``, as "0.1.0"; None where it runs from a folder."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("multifold-core")
    except PackageNotFoundError:
        return None


def refuse_another_number(point: EntryPoint) -> None:
    """Raise `BackendError` if the version of an adapter of this project is not the core's.

    Adapters of this project use private names of the core. Nothing is raised where one of the versions is
    unknown.
    """
    core = number_of_core()
    if core is not None and point.dist is not None and point.dist.version != core:
        raise BackendError(
            f"Expected an adapter of multifold {core}. Received {point.dist.name} {point.dist.version}.",
            f"install both from one place: {install_line(point.name)}",
        )


@functools.cache
def load_backend(name: str) -> Backend:
    """Return the backend of a name, which is imported and made once: what `Fold(backend=name)` uses.

    Parameters
    ----------
    name : str
        ``"numpy"``, ``"torch"``, ``"tensorflow"``, ``"mxnet"``, ``"jax"``, or the name of another adapter
        that is installed. The framework is imported.

    Raises
    ------
    BackendMissing
        If multifold knows it, but the adapter or its framework is not installed.
    BackendError
        If there is no such backend, where the message suggests the nearest name. If an adapter of this
        project has another number than the core.

    Examples
    --------
    >>> import multifold, numpy as np
    >>> backend = multifold.load_backend("numpy")
    >>> backend.to_numpy(backend.constant(np.arange(3), None))
    array([0, 1, 2])
    """
    if name in BUILT_IN:
        from importlib.metadata import EntryPoint

        # NumPy's adapter is named, not imported: the engine imports nothing of the floor above it.
        own: Backend = EntryPoint(name, BUILT_IN[name], GROUP).load()()
        return own
    point = entry_points().get(name)
    if point is None:
        if name in BACKENDS:
            raise missing(name)
        known = sorted({*BACKENDS, *entry_points()})
        near = difflib.get_close_matches(str(name), known, n=1)
        raise BackendError(
            f"Expected a backend out of {', '.join(known)}. Received backend={name!r}.",
            f"did you mean '{near[0]}'?" if near else None,
        )
    if name in BACKENDS:
        refuse_another_number(point)
    try:
        backend = point.load()()
    except ImportError as error:
        hint = install_line(name) if name in BACKENDS else f"the adapter is {point.value}."
        raise BackendMissing(f"Backend '{name}' could not be imported: {error}.", hint) from error
    if not isinstance(backend, Backend):
        raise BackendError(
            f"Expected the entry point '{name}' to name a multifold.Backend. Received {point.value}.",
            "it names the class of an adapter, which is called without arguments.",
        )
    return backend


def adapter_module(backend: Backend, name: str) -> ModuleType:
    """Import the module ``name`` of the package of an adapter, and return it.

    The package is the outermost one of the module that has the adapter's class: ``other.name`` for a class
    in ``other.core.impl``. NumPy's adapter is a package inside of the core. An error for something else
    that the module imports is passed on.

    Raises
    ------
    BackendError
        If there is no such module.

    Examples
    --------
    >>> adapter_module(load_backend("numpy"), "ops").__name__
    'multifold._numpy.ops'
    """
    home = type(backend).__module__
    outermost = home.partition(".")[0]
    package = home.rpartition(".")[0] if outermost == "multifold" else outermost
    path = f"{package}.{name}"
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        # The module is there, but something that it imports is not.
        if error.name not in (path, package):
            raise
        raise BackendError(
            f"Backend '{backend.name}' has no module '{path}', which an adapter may bring.",
            f"multifold.{'ops' if name == 'ops' else 'models'} says what it holds; "
            "ask the author of the adapter for one.",
        ) from error


def imported() -> list[str]:
    """Return the sorted names of installed backends whose framework is imported, without "numpy"."""
    # A backend has the name of its framework's package: "torch".
    return [name for name in sorted(entry_points()) if name != "numpy" and name in sys.modules]


def owner(x: Any) -> Backend | None:
    """Return the backend that owns the array ``x``; None if there is none, and for NumPy arrays.

    Only backends whose framework is imported are asked.
    """
    return next((backend for backend in map(load_backend, imported()) if backend.owns(x)), None)


def host(model: Any, but: Backend | None = None) -> Backend | None:
    """Return the first backend that owns a model (`Backend.hosts`); None if there is none.

    Only backends whose framework is imported are asked; NumPy's and ``but`` are not.
    """
    for backend in map(load_backend, imported()):
        if backend is not but and backend.hosts(model):
            return backend
    return None
