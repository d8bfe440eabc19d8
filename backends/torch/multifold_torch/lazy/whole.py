"""Found cells in PyTorch: calls of straight functions, recorded whole (see `multifold.lazy.found`).

A call is tried before it is recorded: the function runs once with pending tensors, on a `CellSequence`,
under a guard that stops it before it does what is seen outside of a call. What it returns then says the
form of the results.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import optree
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode, _pop_mode

from multifold.lazy.current import Recording, refusal
from multifold.lazy.recorder import KnownCall, known_call
from multifold.lazy.straight import MOST, Crooked, StraightGuard
from multifold.lazy.watched import HOLDERS
from multifold.lazy.writes import is_users_class, is_written_here
from multifold_torch.hooks import DispatchMode
from multifold_torch.lazy.calls import CellCall, RowCall
from multifold_torch.lazy.changes import VERSIONS, Called, state_now
from multifold_torch.lazy.draws import DRAWS
from multifold_torch.lazy.pending import DETACH, NUMBERS, Pending
from multifold_torch.lazy.sequences import CellSequence, NotASequence, Told

DEPTH = 3
"""So many objects inside of one another are looked at."""


ATEN = torch.ops.aten
MAKERS = {
    *(ATEN.new_zeros, ATEN.new_ones, ATEN.new_full, ATEN.new_empty),
    *(ATEN.zeros_like, ATEN.ones_like, ATEN.full_like, ATEN.empty_like),
}
"""Functions that ask a tensor for its form, and not for its values."""


class FoundCall(CellCall):
    """A call of a found cell.

    Attributes
    ----------
    cell : FoundCell
        The function that it is a call of.
    given : tuple
        Its arguments, as they were given.
    distinct : list of int
        The positions of its results, without those that are one tensor with an earlier one.
    """

    runs_code = False  # each run tries it anew, see `TorchRecorder.find`
    cell: Any = None
    given: tuple[Any, ...] = ()
    distinct: Sequence[int] = ()

    def refuse_changed(self) -> None:
        """Raise `RecordError` if what its functions use was changed, as each of them would alone."""
        sequence = VERSIONS.sequences.get(id(self))
        if sequence is None:
            RowCall.refuse_changed(self)
            for x in self.held:
                # Its names tell which attributes count, and the program stores to none of these.
                check = x.refuse_changed_parts if isinstance(x, Called) else x.refuse_changed
                check(self.__name__)
            return
        for call in sequence.calls:
            call.refuse_changed()
        if any(state_now(x) != state for x, state in sequence.computed_with):
            raise refusal(
                f"A tensor that {self.__name__} computes with was changed in place during the run.",
                "change it after the run; or name no cells and let none be found: cells=().",
            )

    def __call__(self, *rows: Tensor) -> Any:
        self.cell.note_launch()
        return super().__call__(*rows)

    def on_rows(self, rows: Sequence[Tensor]) -> Any:
        """Run its calls as they were recorded: what its code finds may be another thing by now."""
        sequence = VERSIONS.sequences.get(id(self))
        if sequence is not None and self.way == "vmap":
            found = sequence.run(rows)
        else:
            found = super().on_rows(rows)
        leaves = optree.tree_leaves(found)
        return leaves[0] if self.is_single else tuple([leaves[i] for i in self.distinct])

    def describe(self, recording: Recording, sequence: CellSequence) -> None:
        """Set what `RowCall.learn` does, as a sequence of its calls shows it."""
        self.backend = recording.backend
        self.is_single = isinstance(sequence.found, Tensor)
        leaves = sequence.leaves
        self.distinct = [i for i, first in enumerate(sequence.told.firsts) if i == first]
        self.forms = [leaves[i].form for i in self.distinct]
        self.given = ()
        self.draws = any(call.draws for call in sequence.calls)
        self.told = sequence.told
        self.ran = (*sequence.told.functions,)


class RealCalls(DispatchMode):
    """A context in which `Crooked` is raised for what functions do with computed tensors that may be seen.

    That is to read values, to draw random numbers, and to change a tensor that was not made inside of it.

    Attributes
    ----------
    made : dict of int to Tensor
        The tensors that were made inside of it, by ``id``.
    read : dict of int to (Tensor, (int, bool))
        The others that were computed with, by ``id``, and their `state_now`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, Tensor] = {}
        self.last: Any = None  # what the function before has made of no tensor
        self.read: dict[int, tuple[Tensor, tuple[int, bool]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in optree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        is_dry = any(x.is_meta for x in tensors)
        if not is_dry and func in NUMBERS:
            raise Crooked("it reads a value")
        if not is_dry and DRAWS in func.tags:
            raise Crooked("it draws random numbers")
        if any(id(x) not in self.made for x in written(func, args, kwargs)):
            raise Crooked("it changes a tensor in place")
        others = [x for x in tensors if id(x) not in self.made]
        if not is_dry and func.overloadpacket not in MAKERS:
            self.read.update({id(x): (x, state_now(x)) for x in others})
        found = func(*args, **kwargs)
        results = [x for x in optree.tree_leaves(found) if isinstance(x, Tensor)]
        # ``torch.zeros`` detaches what it has made, and returns that. Kept here, the former would share the
        # memory of the latter, which could not stand for a pending tensor then.
        if func is DETACH and args[0] is self.last:
            del self.made[id(args[0])]
        self.last = None if tensors else found
        # A view of another tensor is that tensor, where it is changed in place.
        own = [x for x in results if not any(torch._C._is_alias_of(x, y) for y in others)]
        self.made.update({id(x): x for x in own})
        return found


def written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors among the arguments of a function that it changes in place, as its schema says."""
    if not func._schema.is_mutable:
        return []
    given = dict(zip([x.name for x in func._schema.arguments], args, strict=False)) | dict(kwargs)
    names = [x.name for x in func._schema.arguments if x.alias_info is not None and x.alias_info.is_write]
    found = optree.tree_leaves([given[name] for name in names if name in given])
    return [x for x in found if isinstance(x, Tensor)]


@contextlib.contextmanager
def guarded(calls: RealCalls, guard: StraightGuard) -> Iterator[None]:
    """Return a context in which a function runs that may not be straight; it raises `Crooked` if so."""
    with calls, guard:
        yield


def leave_guards() -> None:
    """Leave all guards that a key press has ended before their end: they would see other code."""
    StraightGuard.leave()
    while isinstance(_get_current_dispatch_mode(), RealCalls):
        _pop_mode()


def tried(call: FoundCall, recording: Recording, recorder: Any) -> tuple[CellSequence, StraightGuard]:
    """Return the calls of a function that may be a found cell, and the guard that it ran under.

    Raises
    ------
    Crooked, NotASequence
        If it is none; the text says why.
    Exception
        What it raises where its operands have no values.
    """
    modules = [x for x in call.leaves if isinstance(x, nn.Module)]
    changers = frozenset[str]().union(*map(recorder.changers_of, modules))

    def is_known(module: str) -> bool:
        return f"{module}.".startswith(recorder.inner)

    guard = StraightGuard(is_known, changers, over_arguments=recorder.loops_over_arguments)
    real = RealCalls()
    sequence = CellSequence(call, recorder, guarded(real, guard))
    sequence.keep([*real.read.values()])
    leaves = sequence.leaves
    nodes = zip(sequence.stand_ins, sequence.sequence.operands, strict=True)
    if any(x.node is not node for x, node in nodes):
        raise NotASequence("it changes an argument in place")
    if sequence.changes_arguments:
        raise NotASequence("it changes a list that it is given")
    if not all(isinstance(x, Pending) for x in leaves):
        raise NotASequence("it returns a tensor that does not depend on its arguments")
    if sequence.shares_containers:
        raise NotASequence("it returns a container that it was given, that is empty, or is there twice")
    if any(root_of(x) is y for x in leaves for y in sequence.stand_ins):
        raise NotASequence("it returns an argument, or a view of one")
    if len(sequence.calls) > MOST:
        raise NotASequence(f"it makes more than {MOST} calls")
    return sequence, guard


def container_in(arguments: Sequence[Any], around: Mapping[str, Any], names: frozenset[str]) -> str | None:
    """Return the name of a container or an array that code finds, and that is no weight, or None.

    It is what one of ``names`` stands for: an attribute of a module among ``arguments``, of its class, or
    of an object that such an attribute is; or it is in ``around``, which the names of its functions find.
    """
    found = next((name for name, x in around.items() if is_holder(x)), None)
    if found is not None:
        return found
    parts = [part for x in arguments if isinstance(x, nn.Module) for part in x.modules()]
    objects = [x for x in around.values() if may_hold(x)]
    todo: list[tuple[Any, int]] = [(x, 0) for x in (*parts, *objects)]
    while todo:
        x, depth = todo.pop()
        kinds = [vars(kind) for kind in type(x).__mro__ if is_users_class(kind)]
        for table in (vars(x), *kinds):
            for name in names.intersection(table):
                value = table[name]
                if is_holder(value) or isinstance(value, Tensor):
                    return name
                if may_hold(value) and not isinstance(value, nn.Module) and depth < DEPTH:
                    todo.append((value, depth + 1))
    return None


def is_holder(x: Any) -> bool:
    """Return whether something is a container or an array of NumPy, or a tuple with one."""
    return isinstance(x, (*HOLDERS, np.ndarray)) or (isinstance(x, tuple) and any(map(is_holder, x)))


def may_hold(x: Any) -> bool:
    """Return whether attributes of an object may be containers: that is no function, class or library."""
    if isinstance(x, ModuleType):
        return is_written_here(x.__name__)
    return hasattr(x, "__dict__") and not isinstance(x, (type, FunctionType, functools.partial))


def replaced_in(arguments: Sequence[Any], stores: Any) -> str | None:
    """Return the name of a buffer or part of a module among ``arguments`` that a program replaces, or None.

    What the program stores, ``stores``, tells. Weights that it replaces are put back for a launch.
    """
    modules = [x for x in arguments if isinstance(x, nn.Module)]
    tables = [
        table for module in modules for part in module.modules() for table in (part._buffers, part._modules)
    ]
    return next((name for table in tables for name in table if stores.may_store(name)), None)


def known_found(call: FoundCall, sequence: CellSequence, leaves: list[Any]) -> KnownCall:
    """Return the `KnownCall` of a kind of call of a found cell, whose arguments are ``leaves``."""
    results = sequence.leaves
    known = known_call(
        call,
        results[0] if call.is_single else tuple([results[i] for i in call.distinct]),
        sequence.stand_ins,
        leaves,
        is_array=lambda x: isinstance(x, Tensor),
        share_memory=lambda x, y: root_of(x) is root_of(y),
        may_be_small=False,
    )
    plain = optree.tree_structure((0,) * len(call.distinct), none_is_leaf=True)
    if call.is_single or sequence.told.nesting == plain:  # a flat tuple of different tensors
        return known
    whole = ResultNesting(sequence.told, call.distinct)
    return KnownCall(call, whole, known.forms, known.bases, None, leaves, False)


class ResultNesting:
    """Nests the different results of a call as the cell returned them; one tensor may be there twice.

    Parameters
    ----------
    told : Told
        What the calls of the cell have told.
    distinct : sequence of int
        The positions of the different results.
    """

    def __init__(self, told: Told, distinct: Sequence[int]) -> None:
        self.nesting = told.nesting
        self.places = [distinct.index(first) for first in told.firsts]

    def unflatten(self, results: Sequence[Any]) -> Any:
        """Return the results of a call, nested."""
        return self.nesting.unflatten([results[i] for i in self.places])


def root_of(x: Pending) -> Any:
    """Return what a pending tensor is a view of, or itself."""
    return x if x.base is None else x.base
