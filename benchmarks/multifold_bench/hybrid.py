"""The ops of the binary Tree-LSTM once more, as MXNet's hybrid blocks.

MXNet 1.9 compiles only what is written with its symbols, so the ops that are written once for all
frameworks cannot be hybridized. The parameters are the model's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from multifold.errors import BackendError


def linear(f: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Return ``x @ weight + bias``."""
    return f.broadcast_add(f.dot(x, weight), bias)


def leaf(f: Any, word: Any, *, weight: Any, bias: Any, embedding: Any) -> Any:
    """Return the states ``(h, c)`` of words; ``f`` is ``mx.nd`` or ``mx.sym``."""
    gates = linear(f, f.take(embedding, word), weight, bias)
    take_in, out, candidate = f.split(gates, 3, axis=1)
    c = f.sigmoid(take_in) * f.tanh(candidate)
    return f.sigmoid(out) * f.tanh(c), c


def children(
    f: Any, left_h: Any, left_c: Any, right_h: Any, right_c: Any, *, weight: Any, bias: Any
) -> Any:
    """Return the states ``(h, c)`` of phrases from those of their parts."""
    gates = linear(f, f.concat(left_h, right_h, dim=1), weight, bias)
    take_in, keep_left, keep_right, out, candidate = f.split(gates, 5, axis=1)
    kept = f.sigmoid(keep_left) * left_c + f.sigmoid(keep_right) * right_c
    c = f.sigmoid(take_in) * f.tanh(candidate) + kept
    return f.sigmoid(out) * f.tanh(c), c


def logits(f: Any, h: Any, *, weight: Any, bias: Any) -> Any:
    """Return the scores of the classes."""
    return linear(f, h, weight, bias)


CELLS: dict[str, tuple[str, Callable[..., Any]]] = {
    "leaf": ("word", leaf),
    "children": ("compose", children),
    "logits": ("output", logits),
}
"""Op -> the layer whose parameters it reads, and what it computes."""


@functools.cache
def block_class() -> Any:
    """Return the class of the blocks; MXNet is imported now."""
    from mxnet.gluon import HybridBlock

    class Cell(HybridBlock):
        """An op that reads one linear layer of a model and, for the leaves, its word vectors."""

        def __init__(self, model: Any, name: str) -> None:
            super().__init__()
            layer, self.compute = CELLS[name]
            group = getattr(model, layer)
            self.params.update(group.params)
            self.weight, self.bias = (group._reg_params[x] for x in ("weight", "bias"))
            if name == "leaf":
                self.params.update(model.params)
                self.embedding = model._reg_params["embedding"]
            self.hybridize()

        def hybrid_forward(self, f: Any, *operands: Any, **parameters: Any) -> Any:
            """Compute the op on arrays, or on symbols of arrays."""
            return self.compute(f, *operands, **parameters)

    return Cell


def check(model: Any) -> None:
    """Refuse a model that is not written with symbols here.

    Raises
    ------
    BackendError
        If it is no binary Tree-LSTM.
    """
    if model.kind.__name__ != "BinaryTreeLSTM":
        raise BackendError(
            f"There are no ops of {model.kind.__name__} with MXNet's symbols, for hybridize()."
        )


def block(name: str) -> Callable[..., Any]:
    """Return ``op(model, *arrays)`` that calls the hybridized block of an op."""
    made: list[Any] = []

    def op(model: Any, *arrays: Any) -> Any:
        if not made:
            made.append(block_class()(model, name))
        result = made[0](*arrays)
        return tuple(result) if isinstance(result, list) else result

    return op
