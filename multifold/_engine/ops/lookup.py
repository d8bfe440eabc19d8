"""Op names become callables, looked up on the model when a fold is applied.

A name is an attribute, a dotted path or a key of a mapping; an op may also be the callable itself.

>>> from multifold._numpy.backend import NumpyBackend
>>> model = {"encoder": [str.lower, str.upper]}
>>> resolve(NumpyBackend(), model, "encoder.1", "model.py:7")("Tree")
'TREE'
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, NoReturn

from multifold._engine.compiled.arrays import Integers
from multifold._engine.plan.plan import Plan
from multifold._engine.plan.wiring import LaunchWiring
from multifold._engine.record.signature import Signature
from multifold.backend import Backend
from multifold.errors import LaunchError, type_of
from multifold.marks import MIXING, mark_of

LIBRARIES = ("builtins", "collections", "equinox", "flax", "keras")
"""Packages whose classes have methods that are no ops of a model."""

MISSING = object()
"""What `lookup` returns if there is nothing of that name: None may be an entry of a model."""


def look_up(
    plan: Plan,
    launches: Sequence[LaunchWiring],
    backend: Backend,
    model: Any,
    ops: dict[Signature, Callable[..., Any]],
    warn: Callable[[str], None],
    among: str = "",
) -> None:
    """Add the callable of each signature in ``launches`` to ``ops``, before the first launch runs.

    So a misspelt name costs no computing. Signatures in ``ops`` already are left as they are. Calls
    ``warn(text)`` if the recording code makes a new function for each call.

    Raises
    ------
    LaunchError
        If the model has no such op, as `resolve` says. Or if an op is marked as mixing and ``among`` is not
        "": it is what a message says of rows that belong to no example, such as padding.
    """
    signatures = plan.columns.signatures
    calls: dict[int, list[Integers]] = {}
    for launch in launches:
        calls.setdefault(launch.signature, []).append(launch.calls)
    single = []
    for number, own in calls.items():
        signature = signatures[number]
        op = signature.op
        if signature not in ops:
            found = find(backend, model, op)
            if not callable(found):
                # Launches order their calls as suits the wiring. The message names the line that was
                # recorded first.
                first = min(int(some.min()) for some in own)
                found = resolve(backend, model, op, plan.site(first))
            if among and mark_of(found) == MIXING:
                refuse_mixing(signature.name, among)
            ops[signature] = found
        # A function that is made anew for each call has one call, in one launch. Only such functions are
        # compared below.
        if not isinstance(op, str) and len(own) == 1 and len(own[0]) == 1:
            single.append((op, int(own[0][0])))
    again = made_anew(single) if len(single) > 1 else None
    if again is not None:
        name = plan.columns.signatures[plan.columns.signature[again]].name
        site = plan.site(again)
        warn(
            f"A new function '{name}' is made for each call recorded at {site}: calls of different "
            "functions never share a launch.\n\nHint: define the function once, and pass what varies as "
            "an operand or as multifold.static(...)."
        )


def has_mixing(signatures: Iterable[Signature], backend: Backend, model: Any) -> bool:
    """Return whether the op of one of the signatures is marked by `multifold.mixing`.

    Launches of such an op are never divided into pieces.
    """
    return any(mark_of(find(backend, model, signature.op)) == MIXING for signature in signatures)


def refuse_mixing(name: str, among: str) -> NoReturn:
    """Raise `LaunchError` for the op ``name``, which is marked by `multifold.mixing`.

    ``among`` ends the sentence: why the launch holds rows of no example of this run.
    """
    raise LaunchError(
        f"Expected an op that keeps its rows apart. '{name}' is marked by multifold.mixing, and {among}.",
        "a layer that needs the statistics of a minibatch computes them in training; let it use running "
        "ones here, as model.eval() does.",
    )


def made_anew(ops: Iterable[tuple[Any, int]]) -> int | None:
    """Return the first call whose op is a new function with the code of an earlier one; None without such.

    ``ops`` are pairs of an op and the number of its call. A lambda in the body of a loop is another object
    each time, with the same code. Functions that modules of multifold define are left out.
    """
    known: dict[Any, tuple[Any, int]] = {}
    for op, call in ops:
        op = inspect.unwrap(op)  # a compiler's wrapper names the function inside
        # The library makes functions for the user, too, and the user could not define those once.
        if isinstance(op, FunctionType) and not str(op.__module__).startswith("multifold"):
            other, where = known.setdefault(op.__code__, (op, call))
            if other is not op:
                return where
    return None


def find(
    backend: Backend, model: Any, op: str | Callable[..., Any], known: dict[str, Any] | None = None
) -> Any:
    """Return ``op`` itself if it is no name, else what the model has of that name; `MISSING` if nothing.

    What is found need not be callable. ``known`` is that of `lookup`.
    """
    if not isinstance(op, str):
        return op
    if model is None:
        return MISSING
    # Many models are a plain dictionary, which is no wrapper and has no attribute that could be meant.
    found = model.get(op, MISSING) if type(model) is dict else MISSING
    return lookup(backend, model, op, known) if found is MISSING else found


def resolve(backend: Backend, model: Any, op: str | Callable[..., Any], site: str) -> Callable[..., Any]:
    """Return the callable of an op.

    Parameters
    ----------
    backend : Backend
        Knows how to look inside wrappers of a model.
    model : object
        An object with methods, a mapping, or None where all ops are callables.
    op : str or callable
        A name, a dotted path, a key of a mapping, or the callable itself.
    site : str
        Where the op was recorded, for the message.

    Raises
    ------
    LaunchError
        If the model has no such op, or if it can't be called.
    """
    found = find(backend, model, op)
    if callable(found):
        return found
    if model is None:
        raise LaunchError(
            f"Expected a model that has the op '{op}', recorded at {site}. Received none.",
            "pass the model first, as in fold.run(model, ...), or record callables instead of names.",
        )
    if found is MISSING:
        near = suggestion(backend, model, str(op))
        raise LaunchError(
            f"The model, {type_of(model)}, has no op '{op}', recorded at {site}.",
            f"did you mean '{near}'?" if near else "op names are attributes, paths or keys.",
        )
    raise LaunchError(
        f"Expected the op '{op}', recorded at {site}, to be callable. Received {type_of(found)}.",
        "values enter as operands: multifold.shared(x) for one that all nodes read.",
    )


def lookup(backend: Backend, model: Any, path: str, known: dict[str, Any] | None = None) -> Any:
    """Return the entry or attribute that a dotted path leads to from the model; `MISSING` if it ends early.

    A key with a dot in it, as in ``{"encoder.cell": cell}``, comes before a path. ``known`` has what the
    beginnings of other paths lead to, as ``"encoder.layers"``, and is extended: a model of many modules has
    many paths with one beginning.
    """
    model = backend.unwrap(model)
    # The whole path comes first: a key may have a dot in it, as in {"encoder.cell": cell}.
    found = step(model, path)
    return found if found is not MISSING else inside(backend, model, path, {} if known is None else known)


def inside(backend: Backend, model: Any, path: str, known: dict[str, Any]) -> Any:
    """Return what a path of names leads to, one step after the other; `MISSING` if it ends early."""
    if "." not in path:
        return step(model, path)
    outer, _, name = path.rpartition(".")
    if outer not in known:
        found = inside(backend, model, outer, known)
        known[outer] = found if found is MISSING else backend.unwrap(found)
    return MISSING if known[outer] is MISSING else step(known[outer], name)


def suggestion(backend: Backend, model: Any, path: str) -> str | None:
    """Return a path with a name like it in place of the first one that leads nowhere; None without such.

    >>> from multifold._numpy.backend import NumpyBackend
    >>> suggestion(NumpyBackend(), {"encoder": {"cell": abs}}, "encoder.sell")
    'encoder.cell'
    """
    head = ""
    name = ""
    rest = path
    while rest:
        name, _, rest = rest.partition(".")
        inner = step(backend.unwrap(model), name)
        if inner is MISSING:
            near = difflib.get_close_matches(name, names(backend, backend.unwrap(model)), n=1)
            return ".".join(filter(None, [head, near[0], rest])) if near else None
        model = inner
        head = f"{head}.{name}".lstrip(".")
    return None


def step(model: Any, name: str) -> Any:
    """Return one step of a path: the entry ``name`` of a mapping, an attribute, or the item of a sequence.

    ``"2"`` is item 2 of a sequence without such an attribute. `MISSING` if there is none of these.

    >>> step({"leaf": 3}, "leaf"), step([5, 6], "1"), step({}, "pop") is MISSING
    (3, 6, True)
    """
    if isinstance(model, (dict, Mapping)):  # a plain dictionary is known by its class
        if name in model:
            return model[name]
        # Every mapping has methods such as `update` and `pop`. Whoever records an op of that name means an
        # entry, which is missing here.
        if hasattr(dict, name) and not defines(type(model), name):
            return MISSING
    # Attributes come before positions, since a slice of a sequence of layers may keep their names.
    found = getattr(model, name, MISSING)
    if found is MISSING and name.isdecimal() and hasattr(type(model), "__getitem__"):
        if any(map(str.isdecimal, getattr(model, "_modules", ()))):
            return MISSING  # a torch.nn.Sequential names its layers "0", "1": not their positions
        try:
            # A mapping was asked by name above. Asked for a number, a defaultdict would make an entry.
            return MISSING if isinstance(model, Mapping) else model[int(name)]
        except (LookupError, TypeError):
            return MISSING
    return found


def defines(kind: type, name: str) -> bool:
    """Return whether ``kind``, a class of mappings, has ``name`` from a class that is none of Python's own.

    Every dict has `update`: that is no op.
    """
    library = ("builtins", "collections", "collections.abc")
    owner = next((base for base in kind.__mro__ if name in vars(base)), dict)
    return owner.__module__ not in library


def names(backend: Backend, model: Any) -> list[str]:
    """Return the names that an op may have on a model: string keys of a mapping, or public attributes."""
    if isinstance(model, Mapping):
        return [key for key in model if isinstance(key, str)]
    return [
        name for name in dir(model) if not (name.startswith("_") or inherits(backend, type(model), name))
    ]


def inherits(backend: Backend, kind: type, name: str) -> bool:
    """Return whether a class has ``name`` from a class of the backend's framework, or of `LIBRARIES`.

    ``clear`` of a class ``kind`` of modules comes from `torch.nn.ModuleDict`, and is no op of the user.
    """
    owner = next((base for base in kind.__mro__ if name in vars(base)), None)
    package = "" if owner is None else owner.__module__.partition(".")[0]
    return package in (backend.name, *LIBRARIES)
