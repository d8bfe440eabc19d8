"""What records plain programs in JAX: a call runs under ``jax.vmap``, compiled for few numbers of rows."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from multifold import shared, trusted
from multifold.errors import RecordError
from multifold.recording import CURRENT, KnownCall, PlainValues, Recording, Seen
from multifold_jax.plain.pending import CELLS, IN_A_FUNCTION, PendingJax, form_of, settle, value_of

MANY = 4096
"""Kinds of calls that are kept beyond a run."""


@trusted  # vmap runs each row as the loop does, so it cannot mix them
class JaxCall:
    """A function, with all that its arguments are besides arrays, run on the rows of all examples.

    Parameters
    ----------
    func : callable
        The function of one example.
    structure : PyTreeDef
        How its arguments are nested.
    leaves : list
        The arguments themselves.
    places : list of (int, bool)
        Which of them are arrays, and whether these are the same for all examples.
    """

    def __init__(self, func: Any, structure: Any, leaves: Sequence[Any], places: Sequence[Any]) -> None:
        self.func = func
        self.structure = structure
        self.places = places
        at = {place for place, _ in places}
        self.leaves = [None if i in at else x for i, x in enumerate(leaves)]
        self.__name__ = self.__qualname__ = getattr(func, "__name__", type(func).__name__)
        self.run = jax.jit(self.on_rows)

    def one(self, *operands: Any) -> Any:
        """Run the function for one example; return what it returns."""
        filled = [*self.leaves]
        for (place, _), x in zip(self.places, operands, strict=True):
            filled[place] = x
        args, kwargs = jax.tree.unflatten(self.structure, filled)
        return self.func(*args, **kwargs)

    def on_rows(self, *operands: Any) -> Any:
        """Run it for all examples."""
        axes = tuple([None if is_shared else 0 for _, is_shared in self.places])
        return jax.tree.leaves(jax.vmap(self.one, in_axes=axes)(*operands))

    def learn(self, specs: Sequence[Any]) -> Any:
        """Return the shapes and dtypes of what it returns, nested as that is."""
        found = jax.eval_shape(self.one, *specs)
        if not jax.tree.leaves(found):
            raise RecordError(f"Expected {self.__name__} to return arrays. Received {found!r}.")
        return found

    def __call__(self, *operands: Any) -> Any:
        found = self.run(*operands)
        return found[0] if len(found) == 1 else tuple(found)


class RowsCall(JaxCall):
    """A cell that is written for rows, with one row for each example."""

    multifold_mark = None  # it is the user's code on rows, so it is tried as any op is

    def on_rows(self, *operands: Any) -> Any:
        own = [
            x if is_shared else self.flat(x)
            for (_, is_shared), x in zip(self.places, operands, strict=True)
        ]
        return [x[:, None] for x in jax.tree.leaves(self.one(*own))]

    def flat(self, x: Any) -> Any:
        """Return the rows of all examples on one axis."""
        if x.shape[1:2] != (1,):
            raise RecordError(
                f"The cell {self.__name__} takes rows, so the first axis of its arguments has size 1.",
                "x[None] adds one; multifold.op without rows=True takes any shape.",
            )
        return x.reshape(len(x), *x.shape[2:])


class JaxValues(PlainValues):
    """What records plain programs in JAX, and keeps what it has learnt of their calls.

    Parameters
    ----------
    fn : callable
        The program.
    """

    package = "jax"

    def __init__(self, fn: Any) -> None:
        super().__init__(PendingJax, {}, (), ())
        self.fn = fn
        self.shared: dict[int, Any] = {}
        self.seen: dict[int, Seen] = {}
        self.seen_before: dict[int, Seen] = {}

    # ---- runs ----------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def recording(self, same: Iterable[Any]) -> Iterator[None]:
        if len(self.known) > MANY:
            self.known, self.seen_before = {}, {}
        before = self.shared, self.seen
        leaves = jax.tree.leaves([*same])
        self.shared = {id(x): x for x in leaves if isinstance(x, jax.Array)}
        self.seen = {}
        try:
            yield
            for seen in self.seen.values():
                seen.refuse_changed()
        finally:
            self.shared, self.seen = before

    def apart(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    # ---- calls ---------------------------------------------------------------------------------------

    def modes(self) -> Hashable:
        return ()  # there are no alarms

    def key_of(self, x: Any, operands: list[Any]) -> Hashable:
        kind = type(x)
        if isinstance(x, (jax.Array, np.ndarray)):
            operands.append(x)
            return ("shared", id(x)) if id(x) in self.shared else form_of(x)
        if isinstance(x, np.generic):
            return kind, x.tobytes()
        if isinstance(x, (float, complex)):
            return kind, repr(x)
        if kind is slice:
            return slice, x.start, x.stop, x.step
        leaves, structure = jax.tree.flatten(x, is_leaf=lambda part: part is not x)
        if leaves != [x] and not (len(leaves) == 1 and leaves[0] is x):
            return structure, self.keys_of(leaves, operands)
        if hasattr(x, "__dict__") and not isinstance(x, type):
            return self.seen_of(x)
        try:
            hash(x)
        except TypeError:
            raise RecordError(
                f"Expected arguments that can be compared with those of other examples. Received {x!r}.",
                "a tuple says the same, and cannot change before the call runs.",
            ) from None
        return kind, x

    def seen_of(self, x: Any) -> Seen:
        """Return a function or an object as this run first met it: the one of runs before, if it is equal.

        What a cell finds around it is part of what is compiled, as constants. So what has changed since the
        run before is compiled anew.
        """
        seen = self.seen.get(id(x))
        if seen is None:
            seen = self.seen_before.get(id(x))
            if seen is None or not seen.is_now():
                parts = CURRENT.recording.reached(x)  # type: ignore[union-attr]  # it records
                seen = Seen(x, [part for part in parts if isinstance(part, np.ndarray)])
            self.seen[id(x)] = self.seen_before[id(x)] = seen
        seen.refuse_rebound()
        return seen

    def met(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self.recorded(CURRENT.recording, None, func, args, kwargs)

    def call(
        self, recording: Recording, fn: Any, rows: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return self.recorded(recording, RowsCall if rows else JaxCall, fn, args, kwargs)

    def explained(self, error: Exception) -> Exception:
        if not isinstance(error, (TypeError, ValueError)) or PendingJax.__name__ not in str(error):
            return error
        return RecordError(IN_A_FUNCTION, CELLS)

    def at_once(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        raise AssertionError("no kind of call is small")

    def has_recorded(self, op: Any) -> bool:
        return any(kind.call.func is op for kind in self.known.values())

    def own_row(self, recording: Recording, x: Any) -> Any:
        return shared(x) if id(x) in self.shared else jnp.array(x)[None]

    def refuse_stale(self, x: Any) -> None:
        """Arrays of JAX share no memory that changes."""

    def version_of(self, x: Any) -> int:
        return 0

    def nested(self, structure: Any, results: list[Any]) -> Any:
        return jax.tree.unflatten(structure, results)

    def learn(
        self,
        recording: Recording,
        maker: type[JaxCall] | None,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        operands: Sequence[Any],
    ) -> KnownCall:
        leaves, structure = jax.tree.flatten((args, dict(kwargs)), is_leaf=lambda x: x is None)
        arrays = PendingJax, jax.Array, np.ndarray
        places = [(i, id(x) in self.shared) for i, x in enumerate(leaves) if isinstance(x, arrays)]
        call = (maker or JaxCall)(func, structure, leaves, places)
        with recording.aside([func]):
            found = call.learn([form_of(leaves[i]).spec() for i, _ in places])
        results, shape = jax.tree.flatten(found)
        nested = None if len(results) == 1 and found is results[0] else shape
        held = [*leaves, func]
        return KnownCall(call, nested, [*map(form_of, results)], [None] * len(results), None, held, False)

    # ---- results -------------------------------------------------------------------------------------

    def unsettled(self, result: Any, made: Sequence[weakref.ref[Any]]) -> list[Any]:
        returned = [x for x in jax.tree.leaves(result) if type(x) is PendingJax]
        alive = [ref() for ref in made]
        return [*{id(x): x for x in (*returned, *alive) if type(x) is PendingJax}.values()]

    def computed(self, pending: PendingJax, rows: Any) -> Any:
        return rows[0]

    def settle(self, pending: PendingJax, value: Any) -> None:
        settle(pending, value)

    def settled(self, result: Any, values: Mapping[int, Any]) -> Any:
        return jax.tree.map(lambda x: value_of(values.get(id(x), x)), result)

    def join(self, values: Sequence[Any], how: str) -> Any:
        if not all(isinstance(x, (jax.Array, np.ndarray, np.generic)) for x in values):
            return [*values]
        return jnp.stack(values) if how == "stack" else jnp.concatenate(values)
