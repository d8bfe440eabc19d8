"""What the models are made of: initial values, affine maps, LSTM gates, and walks over trees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from multifold import ops
from multifold.backend import Array


class Initial:
    """Draws initial values: the same for the same seed, for every framework.

    Parameters
    ----------
    seed : int
    dtype : str
        NumPy's name of the parameters' dtype.
    """

    def __init__(self, seed: int, dtype: str) -> None:
        self.rng = np.random.default_rng(seed)
        self.dtype = dtype

    def embedding(self, rows: int, width: int) -> np.ndarray:
        """Draw an array ``(rows, width)``: a row of length about 1 for each entry of a vocabulary.

        Its entries are normal, with a standard deviation of ``width ** -0.5``.
        """
        return self.rng.normal(scale=width**-0.5, size=(rows, width)).astype(self.dtype)

    def matrices(self, rows: int, width: int) -> np.ndarray:
        """Draw an array ``(rows, width ** 2)``: a flat matrix near the identity for each of ``rows`` words.

        To each entry of the identity normal noise is added, of standard deviation ``0.1 / width``.
        """
        noise = self.rng.normal(scale=0.1 / width, size=(rows, width**2))
        return (np.eye(width).ravel() + noise).astype(self.dtype)

    def state(self, width: int) -> np.ndarray:
        """Return zeros of shape ``(1, width)``, a state to begin with."""
        return np.zeros((1, width), self.dtype)

    def weight(self, inputs: int, outputs: int) -> np.ndarray:
        """Draw a matrix ``(inputs, outputs)``, for ``x @ weight``.

        Its entries are uniform, as in Glorot and Bengio, AISTATS 2010, equation 16.
        """
        limit = (6 / (inputs + outputs)) ** 0.5
        return self.rng.uniform(-limit, limit, (inputs, outputs)).astype(self.dtype)

    def linear(
        self, name: str, inputs: int, outputs: int, forget: slice | None = None
    ) -> dict[str, np.ndarray]:
        """Draw the parameters of `linear`, name -> array: ``<name>.weight`` and ``<name>.bias``.

        The weight has shape ``(inputs, outputs)``. The bias, ``(outputs,)``, is 0, and 1 for the gates
        ``forget``, so that training begins with cells that keep what they hold.
        """
        bias = np.zeros(outputs, self.dtype)
        if forget is not None:
            bias[forget] = 1
        return {f"{name}.weight": self.weight(inputs, outputs), f"{name}.bias": bias}

    def lstm(self, name: str, inputs: int, width: int) -> dict[str, np.ndarray]:
        """Draw the parameters of `lstm`, name -> array: ``<name>.weight`` and ``<name>.bias``.

        The bias lets the gate that keeps the cell begin open. Their shapes are
        ``(inputs + width, 4 * width)`` and ``(4 * width,)``.
        """
        return self.linear(name, inputs + width, 4 * width, slice(width, 2 * width))


def linear(group: Any, *xs: Array) -> Array:
    """Return ``x @ group.weight + group.bias``, with the operands side by side as ``x``.

    Operands of shape ``(n, inputs_i)`` give ``(n, outputs)``.
    """
    return ops.affine(xs, group.weight, group.bias)


def gated(gates: Array, count: int) -> tuple[list[Array], Array]:
    """Return a list of ``count`` gates between 0 and 1, and the candidate between -1 and 1.

    ``gates`` has shape ``(n, (count + 1) * width)``, with the candidate last; each result has
    ``(n, width)``.
    """
    width = gates.shape[1] // (count + 1)
    before, candidate = ops.split(gates, [count * width, width], axis=1)
    return list(ops.split(ops.sigmoid(before), count, axis=1)), ops.tanh(candidate)


def lstm(group: Any, *operands: Array) -> tuple[Array, Array]:
    """Return the next state ``(h, c)`` of an LSTM (Hochreiter and Schmidhuber, 1997).

    The operands are what it reads, of shapes ``(n, inputs_i)``, then its states ``h`` and ``c``, both of
    shape ``(n, width)``. ``group`` has ``weight`` and ``bias``, as `Initial.lstm` draws them.
    """
    *read, c = operands
    return ops.lstm_state(linear(group, *read), [c])


def postorder(root: Any, children: Callable[[Any], Iterable[Any]] = attrgetter("children")) -> list[Any]:
    """Return the nodes of a tree, each after its children from left to right, however deep the tree is.

    Examples
    --------
    >>> postorder((1, (2, 3)), lambda node: node if isinstance(node, tuple) else ())
    [1, 2, 3, (2, 3), (1, (2, 3))]
    """
    nodes = []
    stack = [root]
    while stack:
        node = stack.pop()
        nodes.append(node)
        stack.extend(children(node))
    # The stack gave each node before its children and the last child first: read that backwards.
    nodes.reverse()
    return nodes


def bottom_up(tree: Any, combine: Callable[[Any, Sequence[Any]], Any]) -> Any:
    """Compute a value for each node from the values of its children, and return the root's.

    Recursion would do the same, up to Python's limit on its depth. With ``fold.add`` in ``combine`` this
    records a tree of any depth.

    Parameters
    ----------
    tree : object
        The root; every node has ``children``, a tuple of nodes, empty at a leaf.
    combine : callable
        ``combine(node, values) -> value``; ``values`` is a list of the value of each child, in order.

    Examples
    --------
    >>> from types import SimpleNamespace as Node
    >>> tall, trees = Node(word="tall", children=()), Node(word="trees", children=())
    >>> tree = Node(word=None, children=(tall, trees))
    >>> bottom_up(tree, lambda node, texts: node.word or f"({' '.join(texts)})")
    '(tall trees)'
    """
    values: list[Any] = []
    for node in postorder(tree):
        # The list is a stack: in postorder the last values are those of the node's own children.
        first = len(values) - len(node.children)
        values[first:] = [combine(node, values[first:])]
    return values[0]


def parts(node: Any) -> tuple[Any, ...]:
    """Return ``(node.left, node.right)``, or () if ``node.word`` is not None: leaves have a word."""
    return (node.left, node.right) if node.word is None else ()
