"""Op names become callables: attributes, dotted paths and keys, looked up on the model when applied."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from multifold.backend import Backend
from multifold.errors import LaunchError

MISSING = object()


def resolve(backend: Backend, model: Any, op: str | Callable[..., Any], site: str) -> Callable[..., Any]:
    """Return what an op calls.

    Parameters
    ----------
    backend : Backend
        Knows how to look inside wrappers of a model.
    model : object
        An object with methods, a mapping, or nothing where all ops are callables.
    op : str or callable
        A name, a dotted path, a key of a mapping, or the callable itself.
    site : str
        Where the op was recorded, for the message.

    Raises
    ------
    LaunchError
        If the model has no such op, or if it can't be called.
    """
    if not isinstance(op, str):
        return op
    if model is None:
        raise LaunchError(
            f"Expected a model that has the op '{op}', recorded at {site}. Received none.",
            "call fold.apply(model, outputs), or record callables instead of names.",
        )
    found = lookup(backend, model, op)
    if found is MISSING:
        near = difflib.get_close_matches(op, names(backend.unwrap(model)), n=1)
        raise LaunchError(
            f"The model, a {type(model).__qualname__}, has no op '{op}', recorded at {site}.",
            f"did you mean '{near[0]}'?" if near else "op names are attributes, paths or keys.",
        )
    if not callable(found):
        raise LaunchError(
            f"Expected the op '{op}', recorded at {site}, to be callable. "
            f"Received a {type(found).__qualname__}.",
            "values enter as operands: multifold.shared(x) for one that all nodes read.",
        )
    return found


def lookup(backend: Backend, model: Any, path: str) -> Any:
    """Follow a dotted path from the model; `MISSING` if it ends early."""
    model = backend.unwrap(model)
    found = step(model, path)
    if found is not MISSING or "." not in path:
        return found
    found = model
    for name in path.split("."):
        found = step(backend.unwrap(found), name)
        if found is MISSING:
            break
    return found


def step(model: Any, name: str) -> Any:
    """Return one entry of a mapping or sequence, or one attribute; `MISSING` if there is none."""
    if isinstance(model, Mapping):
        if name in model:
            return model[name]
        if hasattr(dict, name) and not defines(type(model), name):
            return MISSING
    found = getattr(model, name, MISSING)  # before positions: a slice of a sequence may keep its names
    if found is MISSING and name.isdecimal() and hasattr(type(model), "__getitem__"):
        if any(map(str.isdecimal, getattr(model, "_modules", ()))):
            return MISSING  # PyTorch's own names are digits there, and say nothing of positions
        try:
            return MISSING if isinstance(model, Mapping) else model[int(name)]
        except (LookupError, TypeError):
            return MISSING
    return found


def defines(kind: type, name: str) -> bool:
    """Return whether a mapping's own class has the name: what all mappings have is no op."""
    library = ("builtins", "collections", "collections.abc", "_collections_abc")
    owner = next((base for base in kind.__mro__ if name in vars(base)), dict)
    return owner.__module__ not in library


def names(model: Any) -> list[str]:
    """Return what can be looked up on a model, for suggestions."""
    if isinstance(model, Mapping):
        return [key for key in model if isinstance(key, str)]
    return [name for name in dir(model) if not name.startswith("_")]
