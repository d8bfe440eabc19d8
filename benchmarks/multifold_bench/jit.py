"""A model whose ops are compiled by the framework's own just-in-time compiler, one op at a time.

What a person does who speeds up a model without batching it: `torch.compile`, `tf.function`, `jax.jit`
on the cell, or `hybridize()`. `Compiled` looks like the model; an op is compiled when it is first called,
once for each way in which its names and keywords are set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from multifold.backend import Backend
from multifold.errors import BackendError

Op = Callable[..., Any]
Compiler = Callable[[str, Op], Op]
"""``compiler(name, op)`` compiles ``op(model, *arrays)``."""


class Jit:
    """The compiled ops of one model class, kept over all steps.

    Parameters
    ----------
    backend : Backend
        Whose compiler is used.
    model : object
        The model whose ops are compiled.
    rows_vary : bool
        Whether ops are called with any number of rows, as by a fold; otherwise always with one.

    Raises
    ------
    BackendError
        If the framework has none, as NumPy, or none for such a model.
    """

    def __init__(self, backend: Backend, model: Any, *, rows_vary: bool) -> None:
        make = COMPILERS.get(backend.name)
        if make is None:
            raise BackendError(f"Backend '{backend.name}' has no compiler that this benchmark knows.")
        self.compiler = make(model, rows_vary)
        self.ops: dict[Any, Op] = {}

    def op(self, model: Any, name: str, operands: tuple[Any, ...], static: Mapping[str, Any]) -> Any:
        """Call a compiled op."""
        names = tuple((place, x) for place, x in enumerate(operands) if isinstance(x, str))
        key = name, names, tuple(static.items())
        compiled = self.ops.get(key)
        if compiled is None:
            written = getattr(getattr(model, "kind", type(model)), name)
            compiled = self.ops[key] = self.compiler(name, given(written, names, dict(static)))
        return compiled(model, *(x for x in operands if not isinstance(x, str)))

    def __call__(self, model: Any) -> Compiled:
        """Return the model with its ops compiled."""
        return Compiled(self, model)


class Compiled:
    """What looks like a model, and calls its compiled ops."""

    def __init__(self, jit: Jit, model: Any) -> None:
        self._jit = jit
        self._model = model

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        if not callable(found):
            return found
        return lambda *operands, **static: self._jit.op(self._model, name, operands, static)


def given(written: Op, names: tuple[tuple[int, str], ...], static: dict[str, Any]) -> Op:
    """Return an op with its names and keywords filled in."""
    if not names and not static:
        return written

    def op(model: Any, *arrays: Any) -> Any:
        operands = list(arrays)
        for place, name in names:
            operands.insert(place, name)
        return written(model, *operands, **static)

    return op


def torch(model: Any, rows_vary: bool) -> Compiler:
    """Compile by TorchInductor, for any number of rows if they vary."""
    import torch

    return lambda name, op: torch.compile(op, dynamic=rows_vary or None)


def tensorflow(model: Any, rows_vary: bool) -> Compiler:
    """Trace a graph; what would be traced anew for other rows is traced once for all of them."""
    import tensorflow as tf

    return lambda name, op: tf.function(op, reduce_retracing=True, autograph=False)


def jax(model: Any, rows_vary: bool) -> Compiler:
    """Compile by XLA, which has no programs for any number of rows."""
    if rows_vary:
        raise BackendError("Backend 'jax' would compile each op anew for each number of rows.")
    import jax

    return lambda name, op: jax.jit(op)


def mxnet(model: Any, rows_vary: bool) -> Compiler:
    """Hybridize blocks that do the same; only what is written with symbols can be."""
    from multifold_bench import hybrid

    hybrid.check(model)
    return lambda name, op: hybrid.block(name)


COMPILERS: Mapping[str, Callable[[Any, bool], Compiler]] = {
    "torch": torch,
    "tensorflow": tensorflow,
    "jax": jax,
    "mxnet": mxnet,
}
"""Backend -> what makes its compiler."""
