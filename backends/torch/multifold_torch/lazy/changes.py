"""What must stay as it is between recording and launch: modules, parameters, buffers, objects.

A recorded call runs later. What it reads besides its operands must still be what the program has seen, so a
change in between is an error: silently, the call would use the new value. Only other `Weights` are no
error, since a launch can put them back.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, Self

import optree
from torch import Tensor, nn
from torch.nn.modules import module as of_all

from multifold.lazy.beyond import Beyond, beyond_of
from multifold.lazy.current import CURRENT, refusal
from multifold.lazy.recorder import Hashed
from multifold.lazy.seen import Around, entries_of, same_entries, still_holds
from multifold_torch.lazy.weights import Weights
from multifold_torch.lazy.written import is_pending
from multifold_torch.trials import parts_of


class SetCounts:
    """Counts what is set of modules: ``total`` for all of them, and for each."""

    def __init__(self) -> None:
        self.total = 0
        self.of_module: Counter[int] = Counter()

    def note(self, module: nn.Module | None = None) -> None:
        """Add 1 to the counts: something of ``module`` is set, or a parameter is told, whosever it is."""
        self.total += 1
        if module is not None:
            self.of_module[id(module)] += 1

    def within(self, modules: Iterable[nn.Module]) -> int:
        """Return how often something of some modules was set."""
        own = self.of_module
        return sum([own.get(id(x), 0) for x in modules]) if own else 0

    def forget(self) -> None:
        """Set the counts of single modules to 0; ``total`` stays."""
        self.of_module.clear()


class AttributeSets(SetCounts):
    """Counts how often attributes of modules were set while programs record: ``total`` for all modules.

    Attributes
    ----------
    total : int
        Of all modules. It also grows with ``gradients``.
    gradients : int
        How often a parameter was told whether it needs a gradient.
    parts : SetCounts
        The same for what matters to code that does not name the attribute: when a part, a weight, the mode
        or an option of a module is set, or a parameter is told whether it needs a gradient.
    idle : SetCounts
        How often a mode was set of a layer that computes the same in each; see `has_mode`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gradients = 0
        self.parts = SetCounts()
        self.idle = SetCounts()

    def note_gradient(self) -> None:
        """Add 1 to the counts: a parameter is told whether it needs a gradient."""
        self.note()
        self.gradients += 1
        self.parts.note()


ATTRIBUTE_SETS = AttributeSets()


WRITTEN = -1
"""The version of a tensor whose changes are not counted, and which was changed: a buffer by a launch."""

First = dict[Hashable, tuple[Any, Any]]
"""Tensors, modules and functions by ``id``, with what a run knew of each when it first met it.

What is beyond a module or an object is found by ``("beyond", id)``.
"""


class NothingKnown(dict[Hashable, tuple[Any, Any]]):
    """A dictionary that keeps nothing: `Versions.first` where no program runs, as in launches of traces."""

    def __setitem__(self, key: Hashable, value: tuple[Any, Any]) -> None:
        pass

    def setdefault(self, key: Hashable, default: Any = None) -> Any:
        """Return ``default``, and keep nothing."""
        return default


class Versions(threading.local):
    """The versions that parameters and buffers had when the run in this thread first met each of them.

    A version counts changes in place.

    Attributes
    ----------
    others : dict of int to (module, Weights)
        The modules by ``id`` that were last called with weights that are no parameters.
    model : dict or None
        The tensors of the run's model, by ``id``; None where the program is no model, or none runs.
    sequences : dict of int to CellSequence
        What cells call, by the ``id`` of the recorded call; see `CellCall.sequence_now`.
    """

    def __init__(self) -> None:
        self.first: First = NothingKnown()
        self.found: dict[int, tuple[Any, Weights, int]] = {}
        self.called: dict[int, tuple[Called, Beyond | None]] = {}
        self.others: dict[int, tuple[nn.Module, Weights]] = {}
        self.model: Mapping[int, Any] | None = None
        self.sequences: dict[int, Any] = {}

    def begin(self, first: First) -> First:
        """Begin a run with ``first``, empty for a new one; return what was kept for the run before."""
        before, self.first = self.first, first
        self.found, self.called, self.others, self.sequences = {}, {}, {}, {}
        return before

    @property
    def runs(self) -> bool:
        """Whether a program runs in this thread, so that changes between its calls are seen."""
        return type(self.first) is dict

    def weights_around(self, part: Any) -> Weights:
        """Return the `Weights` of the modules that ``part``, a function or object, can reach.

        They are looked up once a run, and again when a parameter is told whether it needs a gradient, or a
        module has other ones. Raises `OtherWeights` if they are no parameters.
        """
        known = self.found.get(id(part))
        if known is None or known[2] != ATTRIBUTE_SETS.gradients or not known[1].are_now():
            recording: Any = CURRENT.recording
            parts = recording.reached(part)
            modules = {id(y): y for x in parts if isinstance(x, nn.Module) for y in x.modules()}
            found = Weights(modules.values(), [x for x in parts if isinstance(x, Tensor)])
            found.refuse_others()
            refuse_hooks(found, part)
            self.found[id(part)] = known = part, self.meets(found), ATTRIBUTE_SETS.gradients
        return known[1]

    def meets(self, weights: Weights) -> Weights:
        """Note that this run has met modules with these weights, and return them; see `with_weights`."""
        for table in weights.tables:
            self.first[id(table)] = table, 0
        return weights

    def note(self, module: nn.Module, reads: Iterable[Tensor]) -> None:
        """Keep the versions of the tensors that a module reads, when this run first meets the module."""
        if id(module) not in self.first:
            self.first[id(module)] = module, 0
            for x in reads:
                self.first.setdefault(id(x), (x, version_now(x)))

    def refuse_rebound(self, function: FunctionType) -> None:
        """Raise `RecordError` if a name that a cell uses, a loop's ``i`` say, was bound anew in this run.

        When a run meets a cell first, this only keeps what its names stand for.
        """
        known = self.first.get(id(function))
        if known is None:
            around = Around(function, version_if_tensor)
            if CURRENT.recording is not None:  # else a trace is launched
                around.look_beyond(beyond_of(CURRENT.recording, [function], version_if_tensor))
            self.first[id(function)] = function, around
            return
        around = known[1]
        if not (around.is_now() or still_holds(around.is_now)):
            raise refusal(
                f"A variable that the cell {function.__name__} uses was changed during the run. Recorded "
                "calls run later than in the loop.",
                "pass what changes as an argument of the cell.",
            )
        if around.beyond is not None:
            around.beyond.refuse_changed(function)

    def stays(self, function: FunctionType) -> bool:
        """Return whether the program cannot change what a cell finds around it, as far as its code tells.

        The run has met the function before. What calls of it were recorded with is compared at the launch
        in any case.
        """
        known = self.first.get(id(function))
        recording = CURRENT.recording
        if known is None or recording is None or recording.stores is None:
            return False
        around, stores = known[1], recording.stores
        if (
            around.beyond is not None
            or around.cells
            or any(stores.may_store(x) for _, x, _ in around.names)
        ):
            return False
        return not (stores.contents and (around.versions or around.entries))

    def beyond(self, part: Any, more: Iterable[Any] = ()) -> Beyond | None:
        """Return what a cell finds beyond its own names, as it was when this run first met ``part``.

        That is a module that is a cell, or an object that one takes, with ``more`` inside of it. None if
        nothing is kept of it.
        """
        key = "beyond", id(part)
        known = self.first.get(key)
        if known is None:
            if CURRENT.recording is None:  # a launch of a trace
                return None
            found = beyond_of(CURRENT.recording, [part, *more], version_if_tensor)
            self.first[key] = known = part, found
        beyond: Beyond | None = known[1]
        return beyond

    def refuse_beyond(self, part: Any, more: Iterable[Any] = ()) -> None:
        """Raise `RecordError` if what `beyond` returns was changed in this run."""
        beyond = self.beyond(part, more)
        if beyond is not None:
            beyond.refuse_changed(part)

    def written(self, x: Tensor) -> None:
        """Note that a tensor was written, by a launch say: `refuse_changed` of it raises in this run."""
        self.first[id(x)] = x, WRITTEN

    def differs(self, x: Tensor) -> None:
        """Note that ``x`` gets other memory, by ``x.data = y``, or is told whether it needs a gradient.

        If this run has met the tensor, `refuse_changed` of it raises from now on.
        """
        if id(x) in self.first:
            self.written(x)

    def refuse_replaced(self, parameters: Iterable[Tensor]) -> None:
        """Raise `RecordError` if the model lacks one of ``parameters``, which it had when recorded."""
        if self.model is not None and any(id(x) not in self.model for x in parameters):
            raise refusal(
                "A parameter of the model was replaced by another one after a trace was made.",
                "change it in place, as load_state_dict does; or make new traces.",
            )

    def refuse_changed(self, x: Tensor) -> None:
        """Raise `RecordError` if ``x`` was changed in place since this run first met it.

        The first time, this only keeps the version of ``x``.
        """
        _, first = self.first.setdefault(id(x), (x, version_now(x)))
        if first != version_now(x):
            raise refusal(
                f"A parameter or buffer of shape {tuple(x.shape)} was changed in place during the run, "
                "or told whether it needs a gradient. Recorded calls run later than in the loop, so they "
                "would not see it change as there.",
                "change it after the run. An example may call batch normalisation in training once.",
            )


VERSIONS = Versions()


class Called(Hashed):
    """A module as a function of a recorded call.

    Two are equal if module, mode, parts, weights and what needs gradients are the same, and no attribute
    was set in between, not even to the value that it had.
    """

    __hash__ = Hashed.__hash__

    def __init__(self, module: nn.Module, weights: Weights | None = None) -> None:
        self.module = module
        modules = [*parts_of(module)]
        self.weights = VERSIONS.meets(weights or Weights(modules))
        self.identity = self.identified()
        super().__init__(hash(self.identity))
        refuse_hooks(self.weights, module)
        self.__name__ = type(module).__name__
        self.__self__ = module
        self.sets = ATTRIBUTE_SETS.total
        self.mode = self.mode_of(modules)
        self.changes = self.counted(ATTRIBUTE_SETS, modules)
        self.part_changes = self.counted(ATTRIBUTE_SETS.parts, modules)
        self.reads = read_by(modules)
        VERSIONS.note(module, self.reads)

    def mode_of(self, modules: Sequence[nn.Module]) -> tuple[bool, ...]:
        """Return whether each of its modules trains."""
        return tuple([getattr(x, "training", False) for x in modules])

    def counted(self, sets: SetCounts, modules: Iterable[nn.Module]) -> int:
        """Return how often something was set of its modules that may count."""
        return sets.within(modules)

    def is_now(self) -> bool:
        """Return whether no attribute of any module was set since; parts and weights are the same objects.

        What needs gradients is the same, too, then.
        """
        weights = self.weights
        return self.sets == ATTRIBUTE_SETS.total and weights.are_now() and weights.has_parts()

    def noted(self, sets: int) -> Self:
        """Set ``sets``, the total of `AttributeSets` at which this describes the module; return self."""
        self.sets = sets
        return self

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is type(self)
            and other.identity == self.identity
            and other.mode == self.mode
            and other.changes == self.changes
        )

    def identified(self) -> Hashable:
        """Return what is compared besides mode and attributes: the module, its weights and its parts."""
        return id(self.module), self.weights.identity, *map(id, self.weights.parts)

    def beyond(self) -> Beyond | None:
        """Return what the module's code finds beyond its own attributes; None if nothing is kept of it."""
        return VERSIONS.beyond(self.module, parts_of(self.module))

    def refuse_changed(self, cell: str) -> None:
        """Raise `RecordError` if attributes or tensors of the module were changed since it was recorded.

        ``cell`` is the name that the error gives.
        """
        sets = ATTRIBUTE_SETS
        if self.sets != sets.total and self.counted(sets, parts_of(self.module)) != self.changes:
            refuse_set(type(self.module).__name__, cell)
        self.refuse_changed_parts(cell)

    def refuse_changed_parts(self, cell: str) -> None:
        """Raise it for changes that count whatever code names: of parts, weights and PyTorch's options."""
        sets = ATTRIBUTE_SETS
        now = (
            self.part_changes
            if self.sets == sets.total
            else self.counted(sets.parts, parts_of(self.module))
        )
        is_same = now == self.part_changes
        if not (is_same and self.weights.has_parts()):
            refuse_set(type(self.module).__name__, cell)
        for x in self.reads:
            VERSIONS.refuse_changed(x)
        beyond = self.beyond()
        if beyond is not None:
            beyond.refuse_changed(self.module)


def has_mode(module: nn.Module) -> bool:
    """Return whether it may matter if a module trains; not for layers like ``Linear`` without hooks.

    Code of a program may look at the mode itself, so only for calls of the layer it does not matter.
    """
    if type(module) not in LAYERS or getattr(module, "dropout", None):  # that of a recurrent layer
        return True
    own = module._forward_hooks or module._forward_pre_hooks
    return bool(own or of_all._global_forward_hooks or of_all._global_forward_pre_hooks)


class CalledLoosely(Hashed):
    """What stands for a `Called` in keys of found cells, whose names tell which attributes count.

    Equal for the same module, if mode, parts, weights and what needs gradients are the same.
    """

    __hash__ = Hashed.__hash__

    def __init__(self, called: Called) -> None:
        super().__init__(hash(called))
        self.identity, self.state = called.identity, (called.mode, called.part_changes)

    def __eq__(self, other: object) -> bool:
        if type(other) is not CalledLoosely:
            return False
        return (other.identity, other.state) == (self.identity, self.state)


def refuse_hooks(weights: Weights, part: Any) -> None:
    """Raise `RecordError` if a module that ``part``, a cell, is or finds has backward hooks."""
    if weights.has_hooks:
        name = getattr(part, "__qualname__", type(part).__name__)
        raise refusal(
            f"The cell {name} calls a module that has backward hooks, which launches do not call.",
            "hook a tensor, by x.register_hook in the program; or name no cells and let none be found: "
            "cells=().",
        )


@contextlib.contextmanager
def with_weights(parts: Iterable[Weights], cell: str) -> Iterator[None]:
    """Return a context in which modules have the parameters that they had when a call was recorded.

    Raises `RecordError` if a module has another buffer by now, or if its parameters were replaced after a
    trace was made; ``cell`` is the name of the call.
    """
    # A trial of another thread puts copies of buffers in their place for a moment.
    others = [weights for weights in parts if not (weights.are_now() or still_holds(weights.are_now))]
    with contextlib.ExitStack() as stack:
        for weights in others:
            for table, _ in weights.replaced():
                if id(table) not in VERSIONS.first or not any(table is x for x in weights.parameters):
                    raise refusal(
                        f"A parameter or buffer of a module was replaced by another tensor after its cell "
                        f"{cell} was recorded.",
                        "change it in place, as load_state_dict does, between runs; or make new traces.",
                    )
            stack.enter_context(weights.put_back())
        yield


LAYERS: dict[type[nn.Module], int] = {
    nn.Linear: 0,
    nn.Embedding: 0,
    nn.LayerNorm: 0,
    nn.RMSNorm: 0,
    nn.Bilinear: 0,
    nn.RNNCell: 2,
    nn.GRUCell: 2,
    nn.LSTMCell: 2,
    nn.RNN: 3,
    nn.GRU: 3,
    nn.LSTM: 3,
    nn.Conv1d: 3,
    nn.Conv2d: 4,
    nn.Conv3d: 5,
}
"""Layers that are recorded on real tensors, too: a program meets them first at its leaves.

Of each how many axes a minibatch has; 0 if any axes may come before those that it works along.
"""


class Layer(Called):
    """A layer of PyTorch as a function of a recorded call.

    Layers of equal parameters and options are equal, as the layers of copies of a model.
    """

    def identified(self) -> Hashable:
        """Return what is compared besides mode and attributes: class, options and parameters."""
        return type(self.module), self.module.extra_repr(), self.weights.identity

    def mode_of(self, modules: Sequence[nn.Module]) -> tuple[bool, ...]:
        """Return whether the layer trains, if that matters."""
        return tuple([x.training for x in modules if has_mode(x)])

    def counted(self, sets: SetCounts, modules: Iterable[nn.Module]) -> int:
        """Return how often something was set of the layer, but for modes that do not matter."""
        own = [*modules]
        return sets.within(own) - ATTRIBUTE_SETS.idle.within(own)

    def beyond(self) -> None:
        """Return None: a layer of PyTorch finds nothing beyond its attributes."""

    def on_rows(self, operands: Sequence[Tensor]) -> Any:
        """Return what runs the layer on rows, chosen by the axes of ``operands`` of one example, or None.

        What is returned takes the operands with one axis more, axis 0, for the examples. None means that
        nothing can.
        """
        axes = LAYERS[type(self.module)]
        ranks = {x.dim() for x in operands}
        if isinstance(self.module, nn.RNNBase):
            return self.on_sequences if ranks in ({axes - 1}, {axes}) else None
        if not axes:
            return self
        if ranks == {axes - 1}:
            return self.on_vectors
        return self.on_minibatches if ranks == {axes} else None

    def on_sequences(self, x: Tensor, state: Any = None) -> Any:
        """Run a recurrent layer on each example's sequence, or minibatch of sequences, in one call.

        ``x`` is ``(n, time, features)`` or has an axis more; returns outputs and states with an axis ``n``
        first.
        """
        first = 0 if self.module.batch_first else 1
        x, *states = of_each((x,) if state is None else (x, state))
        sizes = () if x.dim() == 3 else (x.shape[1 + first],)  # of each example's minibatch

        def together(x: Tensor, axis: int) -> Tensor:
            x = x.movedim(0, axis)
            return x.flatten(axis, axis + 1) if sizes else x

        def apart(x: Tensor, axis: int) -> Tensor:
            return (x.unflatten(axis, (-1, *sizes)) if sizes else x).movedim(axis, 0)

        own = optree.tree_map(lambda h: together(h, 1), states)
        found, last = self.module(together(x, first), *own)
        return apart(found, first), optree.tree_map(lambda h: apart(h, 1), last)

    def on_vectors(self, *args: Any) -> Any:
        """Run the layer on one vector of each example, ``(n, *s)``."""
        return self.module(*of_each(args))

    def on_minibatches(self, *args: Any) -> Any:
        """Run the layer on a minibatch of each example, ``(n, m, *s)``, joined to one of ``n * m``."""
        args = of_each(args)
        sizes = optree.tree_leaves(args)[0].shape[:2]
        found = self.module(*optree.tree_map(lambda x: x.flatten(0, 1), args))
        return optree.tree_map(lambda x: x.unflatten(0, sizes), found)


def of_each(args: tuple[Any, ...]) -> Any:
    """Return arguments with a row for each example: those without that axis are expanded along it."""
    most = max(optree.tree_leaves(args), key=Tensor.dim)
    return optree.tree_map(lambda x: x if x.dim() == most.dim() else x.expand(len(most), *x.shape), args)


class Held:
    """An argument of a cell that is an object with attributes.

    Equal for the same object, if its attributes and what needs gradients are the same.
    """

    def __init__(self, value: Any) -> None:
        VERSIONS.refuse_beyond(value)
        self.value = value
        self.attributes = marks(vars(value).items())
        self.weights = VERSIONS.weights_around(value)

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is Held
            and other.value is self.value
            and all_same(other.attributes, self.attributes)
            and other.weights.identity == self.weights.identity
        )

    def __hash__(self) -> int:
        return id(self.value)

    def refuse_changed(self, cell: str) -> None:
        """Raise `RecordError` if an attribute of the object was changed; ``cell`` is the cell's name."""
        if not all_same(self.attributes, marks(vars(self.value).items())):
            refuse_set(type(self.value).__name__, cell)
        VERSIONS.refuse_beyond(self.value)


class CellFunction:
    """A function that is a cell or an argument of one, watched for names that are bound anew."""

    def __init__(self, function: FunctionType) -> None:
        self.function = function
        self.weights = VERSIONS.weights_around(function)

    def refuse_changed(self, cell: str) -> None:
        """Raise `RecordError` if a name that the function uses was bound anew since the run met it."""
        VERSIONS.refuse_rebound(self.function)


Marks = list[tuple[str, Any, int | None, Sequence[Any]]]
"""Names, what they stand for, how often that was changed in place, and what it holds as a container."""


def marks(named: Iterable[tuple[str, Any]]) -> Marks:
    """Return the mark of each (name, value): (name, value, version of a tensor, entries of a container).

    What a value does not have is None, or empty.
    """
    return [(name, x, version_if_tensor(x), entries_of(x)) for name, x in named]


def all_same(some: Marks, others: Marks) -> bool:
    """Return whether two lists of `marks` agree: in names, objects, versions and entries of containers."""
    return len(some) == len(others) and all(
        x[0] == y[0] and x[1] is y[1] and x[2] == y[2] and same_entries(x[3], y[3])
        for x, y in zip(some, others, strict=True)
    )


def holds(x: Any) -> bool:
    """Return whether ``x`` is an object with a ``__dict__`` that is compared by identity.

    Functions and classes are not.
    """
    return (
        hasattr(x, "__dict__")
        and (not isinstance(x, Hashable) or type(x).__hash__ is object.__hash__)
        and not isinstance(x, (FunctionType, type))
    )


def state_now(x: Tensor) -> tuple[int, bool]:
    """Return how often a tensor was changed in place, and whether it needs a gradient."""
    return version_now(x), x.requires_grad


def version_now(x: Tensor) -> int:
    """Return how often a tensor was changed in place; 0 for tensors of inference mode."""
    return 0 if x.is_inference() else x._version


def version_if_tensor(x: Any) -> int | None:
    """Return how often a tensor was changed in place; None for anything that is no tensor."""
    return version_now(x) if isinstance(x, Tensor) else None


def parameters_of(parts: Iterable[Any]) -> Iterator[Tensor]:
    """Yield the tensors among ``parts``, and the parameters of the modules among them; no pending ones."""
    for part in parts:
        if isinstance(part, nn.Module):
            yield from part.parameters()
        elif isinstance(part, Tensor) and not is_pending(part):
            yield part


def weights_of(modules: Iterable[nn.Module]) -> list[Tensor]:
    """Return the parameters and buffers of some modules, without those of the modules inside of them."""
    tables = [table for x in modules for table in (x._parameters, x._buffers)]
    return [x for table in tables for x in table.values() if x is not None]


def read_by(modules: Sequence[nn.Module]) -> list[Tensor]:
    """Return the tensors that some modules may read: their weights, and attributes that are tensors."""
    own = [x for module in modules for x in vars(module).values() if isinstance(x, Tensor)]
    return [*weights_of(modules), *own]


def refuse_set(owner: str, cell: str) -> None:
    """Raise `RecordError` for an attribute that was set between recording and launch.

    ``owner`` is the name of its class, ``cell`` that of the call.
    """
    raise refusal(
        f"An attribute of {owner} was set after its cell {cell} was recorded, which runs later.",
        "pass what changes as an argument of the cell.",
    )
