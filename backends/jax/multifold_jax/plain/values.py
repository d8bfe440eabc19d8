"""What records plain programs in JAX: a call runs under ``jax.vmap``, compiled for few numbers of rows."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from multifold import shared, trusted
from multifold.errors import RecordError
from multifold.plain_values import MANY, KnownCall, PlainCall, PlainValues
from multifold.recording import CURRENT, Recording, Seen
from multifold_jax.plain.pending import CELLS, IN_A_FUNCTION, PendingJax, SettledJax, form_of, settle


@trusted  # vmap runs each row as the loop does, so it cannot mix them
class JaxCall(PlainCall):
    """A function of one example, run for all under ``jax.vmap``, compiled."""

    is_cell = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.run = jax.jit(self.on_rows)

    def on_rows(self, *operands: Any) -> Any:
        """Run it for all examples."""
        axes = tuple([None if is_shared else 0 for is_shared in self.shared])
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
        found = self.one(*self.mapped(self.as_rows, operands))
        return [x[:, None] for x in jax.tree.leaves(found)]


class JaxValues(PlainValues):
    """What records plain programs in JAX, and keeps what it has learnt of their calls.

    Parameters
    ----------
    fn : callable
        The program.
    """

    package = "jax"

    def __init__(self, fn: Any) -> None:
        super().__init__(PendingJax, SettledJax, {})
        self.seen: dict[int, Seen] = {}
        self.seen_before: dict[int, Seen] = {}

    def flatten(self, x: Any) -> tuple[list[Any], Any]:
        leaves, structure = jax.tree.flatten(x, is_leaf=lambda part: part is None)
        return leaves, structure

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

    # ---- calls ---------------------------------------------------------------------------------------

    def key_of(self, x: Any, operands: list[Any]) -> Hashable:
        if isinstance(x, (jax.Array, np.ndarray)):
            operands.append(x)
            return ("shared", id(x)) if id(x) in self.shared else form_of(x)
        container = self.container_key(x, operands)
        if container is not None:
            return container
        if hasattr(x, "__dict__") and not isinstance(x, type):
            return self.seen_of(x)
        return self.constant_key(x, operands)

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

    def call(
        self, recording: Recording, fn: Any, rows: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return self.recorded(recording, RowsCall if rows else JaxCall, fn, args, kwargs)

    def explained(self, error: Exception) -> Exception:
        if not isinstance(error, (TypeError, ValueError)) or PendingJax.__name__ not in str(error):
            return error
        return RecordError(IN_A_FUNCTION, CELLS)

    def own_row(self, recording: Recording, x: Any) -> Any:
        return shared(x) if id(x) in self.shared else jnp.array(x)[None]

    def learn(
        self,
        recording: Recording,
        maker: type[JaxCall] | None,
        func: Any,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        operands: Sequence[Any],
    ) -> KnownCall:
        leaves, structure = self.flatten((args, dict(kwargs)))
        arrays = PendingJax, jax.Array, np.ndarray
        places = [i for i, x in enumerate(leaves) if isinstance(x, arrays)]
        same = [id(leaves[i]) in self.shared for i in places]
        call = (maker or JaxCall)(func, structure, leaves, places, same)
        with recording.aside([func]):
            found = call.learn([form_of(leaves[i]).spec() for i in places])
        results, shape = jax.tree.flatten(found)
        nested = None if len(results) == 1 and found is results[0] else shape
        held = [*leaves, func]
        return KnownCall(call, nested, [*map(form_of, results)], [None] * len(results), None, held, False)

    # ---- results -------------------------------------------------------------------------------------

    def computed(self, pending: PendingJax, rows: Any) -> Any:
        return rows[0]

    def on_host(self, form: Any, value: Any) -> Any:
        return np.asarray(value).reshape(form.shape)[()]

    def settle(self, pending: PendingJax, rows: Any) -> None:
        settle(pending, self.computed(pending, rows))

    def join(self, values: Sequence[Any], how: str) -> Any:
        if not all(isinstance(x, (jax.Array, np.ndarray, np.generic)) for x in values):
            return [*values]
        return jnp.stack(values) if how == "stack" else jnp.concatenate(values)
