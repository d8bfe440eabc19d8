"""Layers of a framework that ops call as objects, found so that a model can hold them.

An op may be ``torch.nn.Linear(2, 8)`` itself. A model that knows nothing of it would be trained, saved and
moved without it, and nothing would fail. So what holds the ops asks here which layers they reach, and the
adapter's model makes each a part of itself, named by its class: ``model.hold(name, layer, device)``.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain, count
from types import FunctionType, MethodType, ModuleType
from typing import Any

from multifold._engine.frameworks import registry
from multifold.backend import Backend, Bidirectional, Cell, Stack
from multifold.errors import BackendError


def hold(model: Any, made: Any, things: Iterable[Any], backend: str | Backend, device: Any = None) -> Any:
    """Make the layers that ``things`` reach (`layers_in`) parts of ``made``, and return ``made``.

    ``made`` is what was made of ``model`` on a backend, and gets each layer by
    ``made.hold(name, layer, device)``. A layer is named by its class, "Linear", or where ``made`` has an
    attribute of that name "Linear_1", "Linear_2" and so on. NumPy has no layers.

    Raises
    ------
    BackendError
        If the framework cannot train a layer from there: it is not built yet, or functions are pure. Or if
        the model holds layers already, which stay with what calls them.
    """
    backend = registry.load_backend(backend) if isinstance(backend, str) else backend
    if getattr(model, "held", ()):
        raise BackendError(
            f"Expected a model without layers of a framework to copy. Received {', '.join(model.held)}.",
            "copy what calls these layers, and make a model of the copy: Layers(block).on(...).",
        )
    modules: Any = None if backend.name == "numpy" else registry.adapter_module(backend, "modules")
    for layer in layers_in(things, getattr(modules, "layers", tuple)()):
        base = type(layer).__name__
        numbered = chain([base], (f"{base}_{i}" for i in count(1)))
        made.hold(next(name for name in numbered if not hasattr(made, name)), layer, device)
    return made


def layers_in(things: Iterable[Any], kinds: tuple[type, ...]) -> list[Any]:
    """Return the objects of classes ``kinds`` that ``things`` are, hold or call, each once, in order.

    Looks into lists, dictionaries, partial functions, methods and objects that can be called, and at the
    names that a function reads from around it.

    Examples
    --------
    >>> scale, shift = 2.5, 1.5
    >>> layers_in([partial(max, scale), [lambda x: x + shift, scale]], (float,))
    [2.5, 1.5]
    """
    found: list[Any] = []
    pending = list(things)[::-1]
    seen = dict[int, Any]()
    while pending:
        thing = pending.pop()
        # A method of a layer stands for the layer: `layer.forward`.
        if isinstance(thing, MethodType) and isinstance(thing.__self__, kinds):
            thing = thing.__self__
        if id(thing) not in seen:
            seen[id(thing)] = thing  # kept, since an id is used again when its object is gone
            if isinstance(thing, kinds):
                found.append(thing)
            else:
                # The list is a stack: only in reverse do the things inside come off it in order.
                pending += reversed(list(inside(thing)))
    return found


def inside(thing: Any) -> Iterable[Any]:
    """Return what one thing holds or calls itself; () if nothing.

    That is the values of a mapping, the entries of a list or tuple, the function and arguments of a partial
    function, the object and function of a method, what a function wraps and the variables around it, and
    the attributes of cells and of other objects that can be called, but for classes and multifold's own.
    """
    if isinstance(thing, Mapping):
        return thing.values()
    if isinstance(thing, (list, tuple)):
        return thing
    if isinstance(thing, partial):
        return (thing.func, thing.args, thing.keywords)
    if isinstance(thing, MethodType):
        return (getattr(thing.__self__, "__dict__", {}), thing.__func__)
    if isinstance(thing, FunctionType):
        try:
            around = inspect.getclosurevars(thing)
        except ValueError:  # a variable of an outer function has no value yet, or none any more
            return ()
        return (getattr(thing, "__wrapped__", None), around.nonlocals, around.globals)
    ours = type(thing).__module__.startswith("multifold.")  # blocks, say, which are asked themselves
    looked_into = callable(thing) and not ours and not isinstance(thing, (type, ModuleType))
    if looked_into or isinstance(thing, (Cell, Stack, Bidirectional)):
        return getattr(thing, "__dict__", {}).values()
    return ()
