"""What records plain programs in JAX: a call runs under ``jax.vmap``, compiled for few numbers of rows."""

from __future__ import annotations

import contextlib
import inspect
import operator
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
from jax._src.array import ArrayImpl

from multifold import RecordError, trusted
from multifold.lazy.beyond import Beyond, every_store, known_to
from multifold.lazy.current import REFUSALS, Recording, refusal
from multifold.lazy.finding import FindingRecorder, FoundCompiled, NumberOperand
from multifold.lazy.keeping import KeepingWatch
from multifold.lazy.operators import CompiledCall, is_pending
from multifold.lazy.recorder import MANY, KnownCall
from multifold.lazy.seen import Seen
from multifold.lazy.straight import Crooked
from multifold.lazy.writes import is_known_module
from multifold_jax.lazy.forms import JaxForms, with_weak
from multifold_jax.lazy.functions import (
    FUNCTIONS,
    IMPORTED,
    OF_FORMS,
    UNFIT_NAMES,
    calls_unfit,
    imported_by,
    is_of_jax,
    stand_in_of,
)
from multifold_jax.lazy.nesting import flatten, ordered
from multifold_jax.lazy.pending import IN_A_FUNCTION, PendingJax, SettledJax
from multifold_jax.lazy.settings import STATES, applied, settings_now

transforms_now = getattr(jax.extend.core, "get_opaque_trace_state", None) or jax.core.get_opaque_trace_state
"""Returns what is equal to itself as long as no transform of JAX, as `jax.grad`, is entered or left."""

with ThreadPoolExecutor(1) as new_thread:
    NO_TRANSFORMS = new_thread.submit(transforms_now).result()
    """What `transforms_now` returns outside of all transforms, as in a new thread."""


VALUES_WANTED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)
"""What JAX raises where a function that it traces asks for a value."""


@trusted  # vmap runs each row as the loop does, so it cannot mix them
class JaxCall(CompiledCall):
    """A function of one example, run for all examples of a launch by a compiled `jax.vmap`."""

    is_cell = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.run = jax.jit(self.on_rows)
        self.settings = settings_now()
        self.weak: Sequence[bool] = ()
        self.nested: Any = None

    def traced(self, *operands: Any) -> Any:
        pairs = zip(operands, self.weak, strict=True)
        found = ordered(super().traced(*[with_weak(x, weak) for x, weak in pairs]))
        for x in jax.tree.leaves(found):
            try:
                jax.typeof(x)
            except OverflowError as error:
                raise refusal(
                    f"The cell {self.__name__} returns {x}, which no array of JAX holds.",
                    "return it from the program, or as a float.",
                ) from error
        return found

    def on_rows(self, *operands: Any) -> Any:
        """Run the function under `jax.vmap`; return the leaves of its result, each ``(n, *s)``.

        Each operand has shape ``(n, *s)``, but for those that ``self.shared`` marks: each example gets
        these whole.
        """
        axes = tuple([None if is_shared else 0 for is_shared in self.shared])
        return jax.tree.leaves(ordered(jax.vmap(self.traced, in_axes=axes)(*operands)))

    def learn(self, recording: Recording, forms: Sequence[Any]) -> tuple[Sequence[Any], Any]:
        self.weak = [form.weak for form in forms]
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.weak) for x in forms]

        # A new function each time: JAX remembers what it has traced.
        def traced() -> Any:
            try:
                return jax.eval_shape(partial(self.traced), *specs)
            except VALUES_WANTED as error:
                raise refusal(
                    f"The cell {self.__name__} reads a value of an array, and JAX compiles it without "
                    "values.",
                    "read it in the program, outside of the cell; or write jnp.where or lax.cond inside.",
                ) from error

        with recording.aside([self.func, *self.leaves]) as kept:
            watch = KeepingWatch(kept)
            found = traced()
            self.refuse_keeping(kept, watch, traced)
        results, structure = jax.tree.flatten(ordered(found))
        if not results:
            raise refusal(f"Expected {self.__name__} to return arrays. Received {found!r}.")
        self.nested = None if found is results[0] else structure
        return results, self.nested

    def __call__(self, *operands: Any) -> Any:
        if settings_now() == self.settings:
            found = self.run(*operands)
        else:
            with applied(self.settings):
                found = self.run(*operands)
        return found[0] if self.nested is None else tuple(found)


class FoundJax(FoundCompiled, JaxCall):
    """A call of a found cell."""

    def traced(self, *operands: Any) -> Any:
        """Run the function as `JaxCall` does; raise `Crooked` if it returns anything but arrays.

        A number would come back as an array, which is another thing in the program.
        """
        found = super().traced(*operands)
        if not all(isinstance(x, jax.Array) for x in jax.tree.leaves(found)):
            raise Crooked("it returns other things than arrays")
        return found


class RowsCall(JaxCall):
    """A cell that the user wrote for rows: it takes ``(n, *s)`` and runs without `jax.vmap`."""

    multifold_mark = None  # it is the user's code on rows, so it is tried as any op is

    def on_rows(self, *operands: Any) -> Any:
        found = self.traced(*self.mapped(self.as_rows, operands))
        return [x[:, None] for x in jax.tree.leaves(found)]


def is_on_host(x: jax.Array) -> bool:
    """Return whether an array has values now, of one of `HOST_DTYPES`, on the CPU, where runs compute.

    A tracer has none, and an array of several devices lies on none.
    """
    if isinstance(x, jax.core.Tracer) or x.dtype not in HOST_DTYPES:
        return False
    return getattr(x.device, "platform", None) == "cpu" == jax.default_backend()


HOST_DTYPES = frozenset(map(np.dtype, ("f4", "i1", "i2", "i4", "u1", "u2", "u4", "?")))
"""Dtypes of arrays that reach a launch by way of NumPy. Wider ones would be narrowed by launches of a run
that is outside of a ``with jax.enable_x64(True)``."""


def has_numpy(args: Sequence[Any]) -> bool:
    """Return whether an array of NumPy is among some arguments."""
    return any(type(x) is np.ndarray for x in args)


class JaxRecorder(FindingRecorder):
    """Records the calls of one plain program in JAX, and keeps what it has learnt of each kind of call.

    Parameters
    ----------
    fn : callable
        The program.
    """

    packages = ("jax", "jaxlib")
    arrays = (jax.Array,)
    calls = JaxCall, JaxCall, RowsCall
    found_calls = FoundJax
    indexers = frozenset({"take", "one_hot", "dynamic_index_in_dim"})
    makers = frozenset({"array", "asarray"})
    replaced = FUNCTIONS
    names_unlike_cells = UNFIT_NAMES
    in_a_function = IN_A_FUNCTION
    own_contexts = STATES
    by_hand = (
        "A program, made of calls of fold.add, runs all structures in one compiled function.",
        "multifold_jax.run(ops, fold.program(traces))  # docs/compiling.md",
    )
    settings = {"config": settings_now}  # noqa: RUF012 - declared as a ClassVar where it comes from
    keys_have_settings = True

    def __init__(self, fn: Any) -> None:
        super().__init__(
            PendingJax, SettledJax, dict(OF_FORMS), (settings_now,), is_inside=self.is_transformed
        )
        self.forms = JaxForms(PendingJax)
        self.plain_types = frozenset({ArrayImpl, NumberOperand})
        self.program = fn
        self.imported: list[Any] | None = None
        self.stand_ins: list[Any] = []
        self.transforms: Any = transforms_now()
        self.outside = settings_now()
        self.bound: dict[tuple[int, ...], tuple[Seen, Beyond]] = {}
        self.looked_at = set[tuple[int, ...]]()

    @contextlib.contextmanager
    def recording(self, same: Iterable[Any]) -> Iterator[None]:
        before = self.transforms, self.outside
        self.transforms, self.outside = transforms_now(), settings_now()
        self.looked_at = set()
        if len(self.bound) > MANY:
            self.bound = {}
        if self.imported is None:
            self.imported = imported_by(self.program, partial(is_known_module, self.inner))
            jitted = [name.func for name in self.imported if not is_of_jax(name.func)]
            self.stand_ins = [stand_in_of(func).recorded for func in jitted]
        try:
            with IMPORTED.applied(self.imported), super().recording(same):
                yield
        finally:
            self.transforms, self.outside = before

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        if self.is_transformed():
            raise refusal(f"A value is read inside of a transform of JAX. {IN_A_FUNCTION}", self.cells)
        with applied(self.outside):
            yield

    @property
    def like_cells(self) -> Sequence[Any]:  # type: ignore[override]
        """What stands for functions that `jax.jit` has made: they depend on nothing but their arguments."""
        return self.stand_ins

    def look_at(self, recording: Recording, x: Any) -> Seen:
        is_stand_in = type(x) is FunctionType and x in self.like_cells
        return Seen(x, recording.reached(inspect.unwrap(x) if is_stand_in else x))

    def stays(self, x: Any) -> bool:
        return x.dtype in HOST_DTYPES if type(x) is np.ndarray else super().stays(x)

    def tried(
        self, recording: Recording, cell: Any, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> KnownCall:
        """Do what the method of the base does; raise `Crooked` for what returns arrays of NumPy.

        A function that gets such arrays sees arrays of JAX in their place.
        """
        known = super().tried(recording, cell, func, args, kwargs)
        if has_numpy(args) and not is_pending((args, kwargs)):
            with recording.paused():
                found = func(*args, **kwargs)
            if not all(isinstance(x, jax.Array) for x in jax.tree.leaves(found)):
                raise Crooked("it returns arrays of NumPy")
        return known

    def may_look(self, names: Callable[[], Collection[str]], roots: Sequence[Any]) -> bool:
        is_known = partial(is_known_module, self.inner)
        return super().may_look(names, roots) and not calls_unfit(roots, names(), is_known)

    @property
    def finds_cells(self) -> bool:  # type: ignore[override]
        """Whether straight functions are recorded whole; beside jitted ones in a transform alone.

        In a transform, as `jax.grad`, JAX takes a millisecond for a call of these, and elsewhere 5 us.
        """
        return self.is_within_transform() or not self.like_cells

    @property
    def finds_first(self) -> bool:  # type: ignore[override]
        """Whether they are looked for first: in a transform.

        What cells gain elsewhere pays for their compilations after a hundred runs.
        """
        return self.is_within_transform()

    @property
    def has_gradients(self) -> bool:  # type: ignore[override]
        """Whether a transform, as `jax.grad`, is around the run: calls take a hundred times as long."""
        return bool(transforms_now() != NO_TRANSFORMS)

    def computes_now(self) -> bool:
        return not isinstance(jnp.zeros(()), jax.core.Tracer)

    def is_transformed(self) -> bool:
        """Return whether the program is inside of a transform that it has entered, as `jax.grad`."""
        return bool(transforms_now() != self.transforms)

    def is_within_transform(self) -> bool:
        """Return whether the run as a whole is inside of a transform of JAX."""
        return bool(self.transforms != NO_TRANSFORMS)

    def key_of(self, x: Any, operands: list[Any]) -> Hashable:
        if isinstance(x, jax.core.Tracer) and self.is_transformed():
            raise refusal(IN_A_FUNCTION, self.cells)
        return super().key_of(x, operands)

    def call(
        self, recording: Recording, fn: Any, rows: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self.is_transformed() and not self.meets_pending(args, kwargs):
            with recording.paused():  # inside of a transform it is a function as any other
                return fn(*args, **kwargs)
        if type(fn) is not FunctionType and hasattr(fn, "__dict__"):
            self.forget_changed(recording, fn)
        return super().call(recording, fn, rows, args, kwargs)

    def forget_changed(self, recording: Recording, fn: Any) -> None:
        """Forget the calls of a method or an object if what it has or finds is not what it was before.

        Each run looks at it once.
        """
        is_method = isinstance(fn, MethodType)
        key = (id(fn.__func__), id(fn.__self__)) if is_method else (id(fn),)
        if key in self.looked_at:
            return
        self.looked_at.add(key)
        found = self.bound.get(key)
        if found is not None and found[0].is_now() and found[1].change() is None:
            return
        same = operator.eq if is_method else operator.is_
        self.known = {key: kind for key, kind in self.known.items() if not same(kind.call.func, fn)}
        seen = Seen(fn, recording.reached(fn))
        self.bound[key] = seen, Beyond([fn], every_store(), known_to(recording))

    def dispatch_unknown(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Record a call, or run it with values that are read, as `jnp.nonzero` of a mask.

        No gradient flows to arrays of integers or bools, so these may be read.
        """
        text = REFUSALS.text
        try:
            return super().dispatch_unknown(func, args, kwargs)
        except RecordError as error:
            pending = [x for x in self.flatten((args, kwargs))[0] if type(x) is PendingJax]
            has_gradients = any(jnp.issubdtype(x.dtype, jnp.inexact) for x in pending)
            if has_gradients or not isinstance(error.__cause__, VALUES_WANTED):
                raise
        REFUSALS.put_back(text)
        return self.at_once(func, args, kwargs)

    def meets_pending(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether a pending array is among the arguments of a call, at any depth."""
        return any(type(x) is PendingJax for x in self.flatten((args, kwargs))[0])

    def flatten(self, x: Any) -> tuple[list[Any], Any]:
        return flatten(x)

    def row_of(self, recording: Recording, x: Any) -> Any:
        if isinstance(x, jax.Array) and is_on_host(x):
            return np.asarray(x)[None]
        row = jnp.array(x)[None]
        became_traced = isinstance(row, jax.core.Tracer) and not isinstance(x, jax.core.Tracer)
        if became_traced and self.is_transformed():  # it is unknown outside of that transform
            raise refusal(IN_A_FUNCTION, self.cells)
        return row

    def computed(self, form: Any, rows: Any) -> Any:
        return with_weak(rows[0], form.weak)

    def join(self, values: Sequence[Any], how: str) -> Any:
        if not all(isinstance(x, (jax.Array, np.ndarray, np.generic)) for x in values):
            return [*values]
        return jnp.stack(values) if how == "stack" else jnp.concatenate(values)
