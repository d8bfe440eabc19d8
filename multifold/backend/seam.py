"""The seam between multifold and a framework: what an adapter implements.

Rows are axis 0 everywhere. An adapter is a final subclass of `Backend` with a name and eight methods. The
core calls these for a result, an operand, a launch or an array that is recorded, and never once for each
row. Some forty methods and seven flags have defaults: they stand in groups, and the lines above a group say
what an adapter does without it. What a framework cannot do, its adapter declares by `unsupported`: the gap
is then the text of the error and a row in the table of ``multifold backends``. An adapter has no state
except what a user hands over, such as a compiler of ops.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import Any, ClassVar

import numpy as np

from multifold.backend.alike import Groups, ModuleForm, Together
from multifold.backend.arrays import NUMBER_DTYPES, Array
from multifold.backend.cells import Bidirectional, Cell, Stack
from multifold.backend.kit import TrainingKit
from multifold.backend.objects import StateSlot, comes_from, owner_of
from multifold.errors import BackendError, type_of

ANYWHERE = contextlib.nullcontext()
"""The context of `Backend.placed` where nothing follows a surrounding `with` statement."""


class unsupported:  # noqa: N801 - reads as a declaration in the body of an adapter
    """Declare a gap of an adapter: ``kit = unsupported("reason; what to do")``.

    Reading the attribute of a backend raises `BackendError` with that text; `Backend.gaps` lists all of
    them. Of the class it is the declaration itself, which its documentation shows.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.attribute = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.attribute = name

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is None:
            return self
        what, _, hint = self.reason.partition("; ")
        backend = getattr(owner, "name", owner.__name__)
        raise BackendError(f"Backend '{backend}' has no {self.attribute}: {what}.", hint or None)


class Backend(abc.ABC):
    """One framework, as the core sees it: what is required, and then what has a default, in groups."""

    name: ClassVar[str]
    """The one spelling of the framework: ``Fold(backend=name)`` and the entry point's name."""

    @abc.abstractmethod
    def owns(self, x: Any) -> bool:
        """Return whether ``x`` is an array of this framework; its tracers, parameters and variables are."""

    @abc.abstractmethod
    def signature(self, x: Array) -> Hashable:
        """Return ``(trailing shape, dtype, device)``, hashable: `concat` takes rows of equal ones."""

    @abc.abstractmethod
    def rows(self, x: Array) -> int:
        """Return the length of axis 0; raise `TypeError` or `IndexError` if there is none."""

    @abc.abstractmethod
    def constant(self, values: np.ndarray, device: Any) -> Array:
        """Return NumPy values as an array on the device, of the same dtype where that exists.

        ``device`` is what `device` returned or the user gave, None for the framework's default. The core
        never writes to ``values`` again, so the result may share their memory. Values that are read-only
        are those of a shared array, which later runs read again: share their memory only if no op can write
        to the result, else copy them.
        """

    @abc.abstractmethod
    def concat(self, xs: Sequence[Array]) -> Array:
        """Return the arrays joined along axis 0: ``(n1, *s), (n2, *s), ... -> (n1 + n2 + ..., *s)``.

        There are at least two, of equal signatures or of ones that `promoted` accepts.
        """

    @abc.abstractmethod
    def split(self, x: Array, sizes: Sequence[int]) -> Sequence[Array]:
        """Return an array cut along axis 0 into ``len(sizes)`` arrays; ``sizes[i]`` rows each, perhaps 0.

        The sizes add up to the rows of ``x``. Return views where they are free.
        """

    @abc.abstractmethod
    def gather(self, x: Array, rows: Array) -> Array:
        """Return ``x[rows]``, of shape ``(len(rows), *s)``; ``rows`` are integers made by `constant`.

        Numbers may repeat, and the result is differentiable. The core guarantees that each lies within ``0
        .. n - 1``.
        """

    @abc.abstractmethod
    def call(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        """Run one launch: return ``fn(*operands, **static)``."""

    # Without these a model is an object of the package called `name` or a mapping that holds one, numbers
    # are on the framework's default device in 64 bits, and rows of two dtypes are refused where they meet.

    def hosts(self, model: Any) -> bool:
        """Return whether ``model`` belongs to this framework; asked only once the framework is imported.

        By default it does if its class, or that of an entry of a mapping, comes from the package `name`.
        """
        # Every run asks this, and a plain dictionary need not ask the class Mapping.
        for part in (model, *model.values()) if isinstance(model, (dict, Mapping)) else (model,):
            if comes_from(type(owner_of(part, part)), self.name):  # type: ignore[arg-type]
                return True
        return False

    def unwrap(self, model: Any) -> Any:
        """Return the model that has the ops: what a data-parallel wrapper holds, else ``model``."""
        return model

    def arrays_of(self, model: Any) -> Iterable[Array]:
        """Return the parameters of a model or of any other object, nothing if there are none.

        The hint of an error names their dtype.
        """
        try:
            return self.kit.parameters(model).values()
        except Exception:  # noqa: BLE001 - it may be any object, and there may be no kit
            return ()

    def device(self, model: Any) -> Any:
        """Return the device of a model or an array; None for the framework's default device."""
        return None

    def placed(self, device: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a context around each run, for ``device``, where numbers go; None is the default device.

        Some ops follow the device of a surrounding `with` statement, rather than that of their operands.
        """
        return ANYWHERE

    def number_dtype(self, kind: type) -> np.dtype:
        """Return the NumPy dtype for a batch of Python numbers; ``kind`` is `int`, `float` or `bool`."""
        return NUMBER_DTYPES[kind]

    def cast(self, x: Array, dtype: str) -> Array:
        """Return an array in another dtype, by its name in NumPy or ml_dtypes, as "bfloat16".

        By default it is ``x.astype(dtype)``; `BackendError` is raised for an array without ``astype``.
        """
        if not hasattr(x, "astype"):
            expected = f"Expected {type_of(x)} to have `astype`, as arrays of NumPy do. It has none."
            raise BackendError(expected, f"override {type(self).__name__}.cast.")
        return x.astype(dtype)

    def promoted(self, signatures: Sequence[Hashable]) -> Hashable | None:
        """Return the signature of what `concat` makes of rows of these; None if it takes no such rows.

        The core asks where rows of two dtypes meet inside one ragged operand or one group of the outputs,
        as under ``torch.autocast``. None becomes an error that names both. The function
        `multifold.backend.promoted` compares all but the dtypes.
        """
        return None

    def to_numpy(self, x: Array) -> np.ndarray:
        """Return a new NumPy array with the values of an array, detached from any gradient."""
        found = np.array(x)
        if found.dtype == object:  # what NumPy makes of a class that it knows nothing of
            expected = f"Expected NumPy to read {type_of(x)}. It made one object of it."
            raise BackendError(expected, f"override {type(self).__name__}.to_numpy.")
        return found

    # Without these the required methods do the same.

    def rows_and_signature(self, x: Array) -> tuple[int, Hashable]:
        """Return ``(rows(x), signature(x))``; one reading of the shape may do for both."""
        return self.rows(x), self.signature(x)

    def are_like(self, xs: Sequence[Array], rows: int, signatures: Sequence[Hashable]) -> bool:
        """Return whether each ``xs[i]`` has ``rows`` rows and the signature ``signatures[i]``.

        It is asked of the arrays of each result.
        """
        found = map(self.rows_and_signature, xs)
        return all(x == (rows, signature) for x, signature in zip(found, signatures, strict=True))

    def constants(self, arrays: Sequence[np.ndarray], device: Any) -> Sequence[Array]:
        """Return several arrays of numbers of one dtype on the device, in one upload and in their order.

        They are at least one, and made by the core: numbers or indices, no arrays of users.
        """
        if len(arrays) == 1:
            return (self.constant(arrays[0], device),)
        whole = self.constant(np.concatenate(arrays), device)
        return self.split(whole, [len(array) for array in arrays])

    def pieces(self, rows: int, device: Any) -> int:
        """Return into how many launches one of ``rows`` rows is divided: at least 1, by default 1.

        The number must not become smaller as ``rows`` grows. On a CPU `cached_pieces` is a good answer.
        """
        return 1

    pads: ClassVar[bool] = False
    """Whether `padded_rows` adds rows to launches, for a framework that compiles for each size."""

    def padded_rows(self, rows: int) -> int:
        """Return to how many rows a launch of ``rows`` is padded, at least as many; asked if it `pads`.

        Few different answers mean few compilations.
        """
        return rows

    def compilations(self) -> int:
        """Return how many compilations this process has made so far.

        A server that is warm warns if a batch has made more.
        """
        return 0

    # Without these each round puts the results of earlier ones together.

    puts: ClassVar[bool] = False
    """Whether `put` can write rows of an array without a copy of the others."""

    def put(self, x: Array, rows: Array, values: Array) -> Array:
        """Return ``x`` with ``values``, of shape ``(n, *s)``, in ``n`` of its rows; ``rows`` are integers.

        ``rows`` is an array made by `constant`. The caller does not use ``x`` again, so it may be written
        in place.
        """
        raise NotImplementedError

    def host_view(self, x: Array) -> np.ndarray | None:
        """Return a NumPy view of an array's memory; None without one, or if gradients are recorded."""
        return None

    def from_host(self, values: np.ndarray) -> Array:
        """Return an array of the values of a new NumPy array, whose memory it may take."""
        raise NotImplementedError

    def inference(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the framework's users run inference: no gradients are recorded."""
        return contextlib.nullcontext()

    def is_inference(self) -> bool:
        """Return whether gradients are turned off in this thread now, as by ``torch.no_grad()``."""
        return False

    # Without these a write is found where operands are compared: in launches that are tried, by
    # `Fold.check`, and with ``Fold(debug=True)``.

    writeable: ClassVar[bool] = True
    """Whether an op can write to an array at all, so that ``Fold(debug=True)`` looks whether it did."""

    counts_changes: ClassVar[bool] = False
    """Whether arrays count how often they were changed in place, so that `version` can tell."""

    def version(self, x: Array) -> int | None:
        """Return how often an array was changed in place; asked before and after a launch that reads it.

        None for an array that keeps no count: a launch of a later round gets a copy of it.
        """
        return 0

    def versions(self, xs: Sequence[Any]) -> list[Any]:
        """Return a list of the `version` of each array among ``xs``, in order; other operands are left out.

        Override it where one step for all is quicker.
        """
        return [self.version(x) for x in xs if self.owns(x)]

    protects: ClassVar[bool] = False
    """Whether `protected` keeps ops from writing to their operands."""

    def protected(self, x: Array) -> Array:
        """Return a read-only array of the same memory as ``x``; anything that is no array as it is."""
        return x

    def unprotected(self, x: Array) -> Array:
        """Return a writeable copy of an array that `protected` made; anything that is no array as it is."""
        return x

    # Without these gradients are not checked, cells of the framework not unrolled, and launches not named
    # in a profiler; and an example that waits inside of a `with` statement of the framework is not refused.

    kit: ClassVar[TrainingKit] = unsupported(  # type: ignore[assignment]
        "it declares no training kit; give the adapter one to compare gradients"
    )

    def cell(self, cell: Any) -> Cell | Stack | Bidirectional:
        """Return one of the framework's recurrent cells in the form that `Fold.unroll` knows.

        Raises
        ------
        BackendError
            If the adapter does not know such a cell.
        """
        raise BackendError(
            f"Backend '{self.name}' does not know how to unroll {type_of(cell)}.",
            "pass a multifold.Cell(step, begin, states) built around it.",
        )

    def profile(self, label: str) -> contextlib.AbstractContextManager[Any]:
        """Return a context that the framework's profiler shows as a range named ``label``."""
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        """Wait until the devices have done all work that was handed to them; called for timing."""

    passes: ClassVar[tuple[type[BaseException], ...]] = ()
    """Exceptions that are the framework's own business: they pass the core as they are."""

    def context(self) -> Hashable:
        """Return a hashable value for what `with` statements of the framework have set in this thread now.

        It is false if there are none, and changes with each of them, as when gradients are turned off. An
        example that waits inside of one is refused, since others would go on in it.
        """
        return None

    # Without these the core puts back what it knows: attributes, and random generators of NumPy and Python.
    # An op that draws other random numbers cannot be tried, as a warning says. A dry run computes on zeros.

    def slots(self, owners: Sequence[Any]) -> Iterable[StateSlot]:
        """Return a `StateSlot` for each state of the framework that an op may change, as random state.

        ``owners`` are the model, and the objects that the op consists of. Leave out the random state of
        NumPy and Python and the plain attributes of what is `stateful`: the core knows these.
        """
        return ()

    def stateful(self, owners: Sequence[Any]) -> Iterator[Any]:
        """Yield the objects, functions among them, whose attributes an op of these owners may change.

        By default these are the owners, of a method its object, and the entries of mappings that are no
        functions.
        """
        for owner in owners:
            yield (own := getattr(owner, "__self__", owner))
            if isinstance(own, Mapping):
                entries = [getattr(x, "__self__", x) for x in own.values()]
                yield from (x for x in entries if not isinstance(x, FunctionType))

    def reserved(self, owner: Any) -> Collection[str]:
        """Return the names of an object's attributes that the framework keeps for itself, by default none.

        The core leaves these alone where it puts back what an op has changed in the object.
        """
        return ()

    def apart(self, owners: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which a trial runs ops once more, unseen: no hook or tape notices.

        A trial runs an op again with other rows. ``owners`` are as for `slots`.
        """
        return contextlib.nullcontext()

    def like(self, x: Array, values: np.ndarray) -> Array:
        """Return NumPy values as an array that an op takes for ``x``: of its dtype and on its device."""
        return self.constant(values, self.device(x))

    def copy(self, x: Array) -> Array:
        """Return a copy of an array that no change of ``x`` reaches; ``x`` where nothing can change."""
        return self.constant(self.to_numpy(x), self.device(x)) if self.writeable else x

    def is_built(self, owners: Sequence[Any]) -> bool:
        """Return whether all modules of the owners have their parameters; lazy ones make them later.

        ``owners`` are the model, and the objects that an op consists of.
        """
        return True

    def modes(self, owners: Sequence[Any]) -> Hashable:
        """Return a hashable value for the modes of the owners' modules, as whether they are trained.

        ``owners`` are the model, or the objects that an op consists of. An op is tried again when this
        value has changed.
        """
        return None

    def bound_form(self, x: Any) -> Hashable | None:
        """Return a key of an array that an op binds, as its shape, where each step binds a new one.

        JAX's arrays are such. For trials, ops that differ in arrays of equal keys only are one op. None for
        anything else, and where bound arrays stay: the object itself counts then.
        """
        return None

    def untried(self, owners: Sequence[Any]) -> str | None:
        """Return why an op cannot run once more on other rows, for a message; None if it can.

        ``owners`` are the model, and the objects that the op consists of, of which one may wait for other
        processes.
        """
        return None

    def draws(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> bool:
        """Return whether ``fn(*operands, **static)`` draws random numbers that are the same in each run.

        A key of JAX does that. The core asks where other rows have changed the result of a row: then it
        compares only rows that stay where they are.
        """
        return False

    def advice(self, owners: Sequence[Any], mixes: bool = True) -> str | None:
        """Return a hint, a sentence, for an error about an op that mixes its rows; None if unknown.

        ``owners`` are the objects that the op uses, as modules, by which the adapter knows what went wrong.
        With ``mixes=False`` the op has not mixed rows, but failed or returned another number of rows
        instead.
        """
        return None

    def abstract(self, fn: Callable[[Any], Any], arrays: Sequence[Array], owners: Sequence[Any]) -> Any:
        """Return arrays with the shapes and dtypes of ``fn(arrays)``, a list; values do not count.

        If this raises, the core calls ``fn(arrays)`` itself. ``owners`` are the model, and what the op
        consists of.
        """
        return fn(arrays)

    # Without these each module has launches of its own.

    has_forms: ClassVar[bool] = False
    """Whether `form_of` gives forms: then ops that are named on a model are asked for theirs."""

    def form_of(self, module: Any) -> ModuleForm | None:
        """Return the form of a module, which others may have: they share launches, whatever their weights.

        None for what is no module, or computes a row by more than its operands and parameters.
        """
        return None

    def is_traced(self) -> bool:
        """Return whether what runs now is traced, so that no value can be read: modules stay apart then."""
        return False

    def together(self, forms: Sequence[Any], groups: Groups) -> Together | None:
        """Return what calls modules of these equal forms as one; None to call each with its rows.

        ``groups`` says which rows of a launch belong to which of them: two modules or more.
        """
        return None

    # Without these `multifold.batched` refuses the framework, and programs are ragged.

    def lazy_recorder(self, fn: Callable[..., Any]) -> Any:
        """Return a `multifold.lazy.recorder.LazyRecorder` that records the code ``fn`` of examples.

        Raises
        ------
        BackendError
            If the adapter records no code as it stands.
        """
        raise BackendError(
            f"multifold.batched records no programs of {self.name}.",
            "let the program call fold.add, and run it by Fold.run(model, examples, fn).",
        )

    def plain_module(self, fn: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
        """Return what `multifold.batched` returns for ``fn``: by default ``run``, the batched function.

        Where ``fn`` is a module of the framework, an adapter may return a module with the parameters of
        ``fn`` that calls ``run``.
        """
        return run

    tiles: ClassVar[bool] = False
    """Whether `Fold.program` pads launches to tiles of a fixed width, for a compiler that needs shapes."""

    cycles: ClassVar[bool] = False
    """Whether ops take turns in a fixed cycle where they share a loop, for an executor without a switch."""

    def gaps(self) -> dict[str, str]:
        """Return what the adapter declares by `unsupported`: the name of the attribute -> the reason."""
        found: dict[str, str] = {}
        for base in reversed(type(self).__mro__):
            for attribute, value in vars(base).items():
                found.pop(attribute, None)
                if isinstance(value, unsupported):
                    found[attribute] = value.reason
        return found
