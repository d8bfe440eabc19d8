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

from multifold.backend.arrays import NUMBER_DTYPES, Array
from multifold.backend.cells import Bidirectional, Cell, Stack
from multifold.backend.kit import TrainingKit
from multifold.backend.objects import StateSlot, comes_from, owner_of
from multifold.errors import BackendError, type_of


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
        """Return whether ``x`` is an array of this framework (tracers and parameters too)."""

    @abc.abstractmethod
    def signature(self, x: Array) -> Hashable:
        """Return (trailing shape, dtype, device): rows of equal signature may be concatenated."""

    @abc.abstractmethod
    def rows(self, x: Array) -> int:
        """Return the length of axis 0; raise `TypeError` or `IndexError` if there is none."""

    @abc.abstractmethod
    def constant(self, values: np.ndarray, device: Any) -> Array:
        """Return NumPy values as an array on the device, of the same dtype where that exists.

        The core never writes to ``values`` again, so the result may share their memory. Values that are
        read-only are those of a shared array, which later runs read again: share their memory only if no op
        can write to the result, else copy them.
        """

    @abc.abstractmethod
    def concat(self, xs: Sequence[Array]) -> Array:
        """Return ``(n1, *s), (n2, *s), ... -> (n1 + n2 + ..., *s)``; there are at least two."""

    @abc.abstractmethod
    def split(self, x: Array, sizes: Sequence[int]) -> Sequence[Array]:
        """Return the inverse of `concat`: sections of these sizes, views where they are free."""

    @abc.abstractmethod
    def gather(self, x: Array, rows: Array) -> Array:
        """Return ``(n, *s) -> (len(rows), *s)``; ``rows`` is a `constant` of integers with repeats.

        Differentiable. The core guarantees that every row lies within ``0 .. n - 1``.
        """

    @abc.abstractmethod
    def call(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        """Run one launch: ``fn(*operands, **static)``."""

    # Without these a model is an object of the package called `name` or a mapping that holds one, numbers
    # are on the framework's default device in 64 bits, and rows of two dtypes are refused where they meet.

    def hosts(self, model: Any) -> bool:
        """Return whether ``model`` belongs to this framework; asked only once it is imported.

        That is where its class, or that of an entry of a mapping, comes from the framework.
        """
        # Every run asks this, and a plain dictionary need not ask the class Mapping.
        for part in (model, *model.values()) if isinstance(model, (dict, Mapping)) else (model,):
            if comes_from(type(owner_of(part, part)), self.name):  # type: ignore[arg-type]
                return True
        return False

    def unwrap(self, model: Any) -> Any:
        """Return the model on which op names are looked up (inside a data-parallel wrapper, say)."""
        return model

    def arrays_of(self, model: Any) -> Iterable[Array]:
        """Return the parameters of a model, or of anything else: the hint of an error names their dtype."""
        try:
            return self.kit.parameters(model).values()
        except Exception:  # noqa: BLE001 - it may be any object, and there may be no kit
            return ()

    def device(self, model: Any) -> Any:
        """Return the device of a model or an array, or None to use the framework's default."""
        return None

    def placed(self, device: Any) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which a run happens, with the device of its numbers; None is the default.

        Some ops follow the device of a surrounding `with` statement, rather than that of their operands.
        """
        return contextlib.nullcontext()

    def number_dtype(self, kind: type) -> np.dtype:
        """Return the dtype of a batch of Python numbers: ``kind`` is `int`, `float` or `bool`."""
        return NUMBER_DTYPES[kind]

    def cast(self, x: Array, dtype: str) -> Array:
        """Return an array in another dtype, by the name that NumPy, or ml_dtypes, has for it."""
        if not hasattr(x, "astype"):
            expected = f"Expected {type_of(x)} to have `astype`, as arrays of NumPy do. It has none."
            raise BackendError(expected, f"override {type(self).__name__}.cast.")
        return x.astype(dtype)

    def promoted(self, signatures: Sequence[Hashable]) -> Hashable | None:
        """Return the signature of what `concat` makes of rows of these; None if it takes no such rows.

        Asked where rows of two dtypes meet inside one ragged operand or one group of the outputs, as under
        ``torch.autocast``. None becomes an error that names both. `promoted` compares all but the dtypes.
        """
        return None

    def to_numpy(self, x: Array) -> np.ndarray:
        """Return a copy of an array on the host, detached from any gradient."""
        found = np.array(x)
        if found.dtype == object:  # what NumPy makes of a class that it knows nothing of
            expected = f"Expected NumPy to read {type_of(x)}. It made one object of it."
            raise BackendError(expected, f"override {type(self).__name__}.to_numpy.")
        return found

    # Without these the required methods do the same.

    def rows_and_signature(self, x: Array) -> tuple[int, Hashable]:
        """Return `rows` and `signature` of an array that is recorded; one reading of its shape may do."""
        return self.rows(x), self.signature(x)

    def are_like(self, xs: Sequence[Array], rows: int, signatures: Sequence[Hashable]) -> bool:
        """Return whether arrays have so many rows and these signatures: asked of each result."""
        found = map(self.rows_and_signature, xs)
        return all(x == (rows, signature) for x, signature in zip(found, signatures, strict=True))

    def constants(self, arrays: Sequence[np.ndarray], device: Any) -> Sequence[Array]:
        """Return numbers, or indices, of one dtype on the device, in one upload; no arrays of users."""
        if len(arrays) == 1:
            return (self.constant(arrays[0], device),)
        whole = self.constant(np.concatenate(arrays), device)
        return self.split(whole, [len(array) for array in arrays])

    def pieces(self, rows: int, device: Any) -> int:
        """Return in how many launches so many rows run: never fewer of more; on CPUs `cached_pieces`."""
        return 1

    pads: ClassVar[bool] = False
    """Whether `padded_rows` adds rows to launches, for a framework that compiles for each size."""

    def padded_rows(self, rows: int) -> int:
        """Return how many rows a launch of that many is padded to, of few sizes; asked if it `pads`."""
        return rows

    def compilations(self) -> int:
        """Return how often this process has compiled so far; a server that is warm tells of more."""
        return 0

    # Without these each round puts the results of earlier ones together.

    puts: ClassVar[bool] = False
    """Whether `put` can write rows of an array without a copy of the others."""

    def put(self, x: Array, rows: Array, values: Array) -> Array:
        """Return ``x``, which is written in place or given up, with values ``(n, *s)`` in n of its rows."""
        raise NotImplementedError

    def host_view(self, x: Array) -> np.ndarray | None:
        """Return NumPy's view of the memory of an array; None if it has none, or gradients are recorded."""
        return None

    def from_host(self, values: np.ndarray) -> Array:
        """Return an array of the memory of a new NumPy array; asked for rows of a `host_view`."""
        raise NotImplementedError

    def inference(self) -> contextlib.AbstractContextManager[Any]:
        """Return the context in which the framework's users run inference: gradients need nothing of it."""
        return contextlib.nullcontext()

    def is_inference(self) -> bool:
        """Return whether the framework was told that no gradient is wanted, as by ``torch.no_grad()``."""
        return False

    # Without these a write is found where operands are compared: in launches that are tried, by
    # `Fold.check`, and with ``Fold(debug=True)``.

    writeable: ClassVar[bool] = True
    """Whether an op can write to an array at all, so that ``Fold(debug=True)`` looks whether it did."""

    counts_changes: ClassVar[bool] = False
    """Whether arrays count how often they were changed in place, so that `version` can tell."""

    def version(self, x: Array) -> int:
        """Return how often an array was changed in place: asked before and after a launch of operands."""
        return 0

    def versions(self, xs: Sequence[Any]) -> list[Any]:
        """Return the `version` of each array among some operands, in one step where that is quicker."""
        return [self.version(x) for x in xs if self.owns(x)]

    protects: ClassVar[bool] = False
    """Whether `protected` keeps ops from writing to their operands."""

    def protected(self, x: Array) -> Array:
        """Return an array of the same memory that can't be written to; no array is returned as it is."""
        return x

    def unprotected(self, x: Array) -> Array:
        """Return an array that can be written to: a copy of what `protected` made; no array as it is."""
        return x

    # Without these gradients are not checked, cells of the framework not unrolled, and launches not named
    # in a profiler; and an example that waits inside of a `with` statement of the framework is not refused.

    kit: ClassVar[TrainingKit] = unsupported(  # type: ignore[assignment]
        "it declares no training kit; give the adapter one to compare gradients"
    )

    def cell(self, cell: Any) -> Cell | Stack | Bidirectional:
        """Return one of the framework's recurrent cells in the form that `Fold.unroll` knows."""
        raise BackendError(
            f"Backend '{self.name}' does not know how to unroll {type_of(cell)}.",
            "pass a multifold.Cell(step, begin, states) built around it.",
        )

    def profile(self, label: str) -> contextlib.AbstractContextManager[Any]:
        """Return a context that names a range in the framework's own profiler."""
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        """Wait until all work that was handed to a device is done (for timing)."""

    passes: ClassVar[tuple[type[BaseException], ...]] = ()
    """Exceptions that are the framework's own business: they pass the core as they are."""

    def context(self) -> Hashable:
        """Return what `with` statements of the framework have changed in this thread, as gradients off.

        No example may be inside of one while it waits: others go on. A false value says there is none.
        """
        return None

    # Without these the core puts back what it knows: attributes, and random generators of NumPy and Python.
    # An op that draws other random numbers cannot be tried, as a warning says. A dry run computes on zeros.

    def slots(self, owners: Sequence[Any]) -> Iterable[StateSlot]:
        """Return what an op may change in the framework and its modules: random state, running means.

        ``owners`` are the model, and what the op consists of. The core knows the random state of NumPy and
        Python, and the plain attributes of what is `stateful`.
        """
        return ()

    def stateful(self, owners: Sequence[Any]) -> Iterator[Any]:
        """Yield the objects among some owners whose attributes an op may change, and functions."""
        for owner in owners:
            yield (own := getattr(owner, "__self__", owner))
            if isinstance(own, Mapping):
                entries = [getattr(x, "__self__", x) for x in own.values()]
                yield from (x for x in entries if not isinstance(x, FunctionType))

    def reserved(self, owner: Any) -> Collection[str]:
        """Return the attributes of an object that the framework keeps for itself."""
        return ()

    def apart(self, owners: Sequence[Any]) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which ops run once more as in a launch, unseen: no hook, no tape."""
        return contextlib.nullcontext()

    def like(self, x: Array, values: np.ndarray) -> Array:
        """Return values as an array that an op takes for ``x``: of its dtype, on its device."""
        return self.constant(values, self.device(x))

    def copy(self, x: Array) -> Array:
        """Return an array that no change of ``x`` in place reaches: itself, where nothing changes one."""
        return self.constant(self.to_numpy(x), self.device(x)) if self.writeable else x

    def is_built(self, owners: Sequence[Any]) -> bool:
        """Return whether modules have all their parameters, and make none in the next launch."""
        return True

    def modes(self, owners: Sequence[Any]) -> Hashable:
        """Return what decides how modules compute besides their numbers, as whether they are trained."""
        return None

    def bound_form(self, x: Any) -> Hashable | None:
        """Return what counts of an array that an op binds, where each step binds another one, as in JAX.

        None for anything else, and where arrays that are bound stay: an op is known by the objects then.
        """
        return None

    def untried(self, owners: Sequence[Any]) -> str | None:
        """Return why an op cannot run once more, as where processes wait for each other; None if it can."""
        return None

    def draws(self, fn: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> bool:
        """Return whether an op draws random numbers that are the same each time, as by a key of JAX.

        Asked where other rows change the result of a row: then only rows that stay are compared.
        """
        return False

    def advice(self, owners: Sequence[Any], mixes: bool = True) -> str | None:
        """Return what to do about an op that mixes its rows, by the modules that it consists of.

        Where it does not ``mix`` them, it has too many or too few of them, or cannot take them.
        """
        return None

    def abstract(self, fn: Callable[[Any], Any], arrays: Sequence[Array], owners: Sequence[Any]) -> Any:
        """Return arrays shaped as those of ``fn(arrays)``, a list; if this raises, that is computed."""
        return fn(arrays)

    # Without these `multifold.batched` refuses the framework, and programs are ragged.

    def lazy_recorder(self, fn: Callable[..., Any]) -> Any:
        """Return what records the code of examples: a `multifold.lazy.recorder.LazyRecorder`."""
        raise BackendError(
            f"multifold.batched records no programs of {self.name}.",
            "let the program call fold.add, and run it by Fold.run(model, examples, fn).",
        )

    def plain_module(self, fn: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
        """Return what `multifold.batched` makes of a module of the framework: a module that has it."""
        return run

    tiles: ClassVar[bool] = False
    """Whether `Fold.program` pads launches to tiles of a fixed width, for a compiler that needs shapes."""

    cycles: ClassVar[bool] = False
    """Whether ops take turns in a fixed cycle where they share a loop, for an executor without a switch."""

    def gaps(self) -> dict[str, str]:
        """Return the declared gaps: attribute name to reason."""
        found: dict[str, str] = {}
        for base in reversed(type(self).__mro__):
            for attribute, value in vars(base).items():
                found.pop(attribute, None)
                if isinstance(value, unsupported):
                    found[attribute] = value.reason
        return found
