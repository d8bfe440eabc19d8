"""What records plain programs in JAX: a call runs under ``jax.vmap``, compiled for few numbers of rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from multifold import trusted
from multifold.errors import RecordError
from multifold.lazy.current import Recording
from multifold.lazy.forms import PendingForm
from multifold.lazy.keeping import Watch
from multifold.lazy.operators import CompiledCall, OperatorRecorder
from multifold_jax.lazy.pending import IN_A_FUNCTION, PendingJax, SettledJax


@trusted  # vmap runs each row as the loop does, so it cannot mix them
class JaxCall(CompiledCall):
    """A function of one example, run for all examples of a launch by a compiled `jax.vmap`."""

    is_cell = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.run = jax.jit(self.on_rows)

    def on_rows(self, *operands: Any) -> Any:
        """Run the function under `jax.vmap`; return the leaves of its result, each ``(n, *s)``.

        Each operand has shape ``(n, *s)``, but for those that ``self.shared`` marks: each example gets
        these whole.
        """
        axes = tuple([None if is_shared else 0 for is_shared in self.shared])
        return jax.tree.leaves(jax.vmap(self.traced, in_axes=axes)(*operands))

    def learn(self, recording: Recording, forms: Sequence[PendingForm]) -> tuple[Sequence[Any], Any]:
        specs = [jax.ShapeDtypeStruct(form.shape, form.dtype) for form in forms]

        # A new function each time: JAX remembers what it has traced.
        def traced() -> Any:
            return jax.eval_shape(partial(self.traced), *specs)

        with recording.aside([self.func, *self.leaves]) as kept:
            watch = Watch(kept)
            found = traced()
            self.refuse_keeping(kept, watch, traced)
        results, structure = jax.tree.flatten(found)
        if not results:
            raise RecordError(f"Expected {self.__name__} to return arrays. Received {found!r}.")
        return results, None if found is results[0] else structure

    def __call__(self, *operands: Any) -> Any:
        found = self.run(*operands)
        return found[0] if len(found) == 1 else tuple(found)


class RowsCall(JaxCall):
    """A cell that the user wrote for rows: it takes ``(n, *s)`` and runs without `jax.vmap`."""

    multifold_mark = None  # it is the user's code on rows, so it is tried as any op is

    def on_rows(self, *operands: Any) -> Any:
        found = self.traced(*self.mapped(self.as_rows, operands))
        return [x[:, None] for x in jax.tree.leaves(found)]


class JaxRecorder(OperatorRecorder):
    """Records the calls of one plain program in JAX, and keeps what it has learnt of each kind of call.

    Parameters
    ----------
    fn : callable
        The program.
    """

    package = "jax"
    arrays = (jax.Array,)
    calls = JaxCall, JaxCall, RowsCall
    in_a_function = IN_A_FUNCTION

    def __init__(self, fn: Any) -> None:
        super().__init__(PendingJax, SettledJax)

    def flatten(self, x: Any) -> tuple[list[Any], Any]:
        leaves, structure = jax.tree.flatten(x, is_leaf=lambda part: part is None)
        return leaves, structure

    def row_of(self, recording: Recording, x: Any) -> Any:
        return jnp.array(x)[None]

    def computed(self, pending: PendingJax, rows: Any) -> Any:
        return rows[0]

    def join(self, values: Sequence[Any], how: str) -> Any:
        if not all(isinstance(x, (jax.Array, np.ndarray, np.generic)) for x in values):
            return [*values]
        return jnp.stack(values) if how == "stack" else jnp.concatenate(values)
