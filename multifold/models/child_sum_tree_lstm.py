"""Child-sum Tree-LSTM: the state of a word from those of any number of dependents, in any order."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import multifold
from multifold import ops
from multifold.backend import Array, Ragged
from multifold.models.layers import Initial, gated, linear, postorder
from multifold.models.model import Model


class ChildSumTreeLSTM(Model):
    """Classifies trees whose nodes have a word and any number of children each.

    All arities share a launch: the children of a node are the rows of a `multifold.ragged` operand.

    Parameters
    ----------
    vocabulary : int
        The number of word ids.
    width : int
        The width of ``h`` and ``c``.
    classes : int
        The number of classes.
    inputs : int, optional
        The width of the word vectors; ``width`` by default.
    seed, dtype
        Of the initial values.

    References
    ----------
    Tai, Socher and Manning, Improved Semantic Representations From Tree-Structured Long Short-Term
    Memory Networks, ACL 2015, section 3.1.

    Examples
    --------
    >>> import multifold
    >>> from multifold.datasets.dependencies import DependencyTree
    >>> tree = DependencyTree(2, 1, (DependencyTree(1, 0), DependencyTree(3, 2)))
    >>> model = ChildSumTreeLSTM(vocabulary=4, width=6, classes=5)
    >>> fold = multifold.Fold(backend="numpy")
    >>> h, c = model.encode(fold, tree)
    >>> fold.apply(model, fold.add("logits", h)).shape
    (1, 5)
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        classes: int,
        *,
        inputs: int | None = None,
        seed: int = 0,
        dtype: str = "float32",
    ) -> None:
        initial = Initial(seed, dtype)
        parameters = self._encoder(initial, vocabulary, width, inputs)
        super().__init__(parameters | initial.linear("output", width, classes), width=width)

    @staticmethod
    def _encoder(
        initial: Initial, vocabulary: int, width: int, inputs: int | None
    ) -> dict[str, Any]:
        """Return the parameters of everything below the output."""
        inputs = width if inputs is None else inputs
        # The gates take in, out, candidate and, one for each child, keep. What they read of the
        # word has a bias; what they read of the children adds to it.
        return {
            "embedding": initial.embedding(vocabulary, inputs),
            **initial.linear("word", inputs, 4 * width, slice(3 * width, None)),
            "sum.weight": initial.linear("sum", width, 3 * width)["sum.weight"],
            "child.weight": initial.linear("child", width, width)["child.weight"],
        }

    # ---- ops ---------------------------------------------------------------------------------

    def embed(self, word: Array) -> Array:
        """Return what the gates read of words: ids ``(n,)`` give ``(n, 4 * width)``.

        Recorded apart from the nodes, it runs once for all words of a minibatch.
        """
        return linear(self.word, ops.take(self.embedding, word))

    def leaf(self, word: Array) -> tuple[Array, Array]:
        """Return the states ``(h, c)``, each ``(n, width)``, of nodes without children.

        What `node` gives for no rows; ``word`` is as there.
        """
        gates, _ = ops.split(self._read(word), [3 * self.width, self.width], axis=1)
        return _state(gates)

    def node(self, word: Array, children_h: Ragged, children_c: Ragged) -> tuple[Array, Array]:
        """Return the states ``(h, c)``, each ``(n, width)``, of nodes.

        Parameters
        ----------
        word : array
            What `embed` returned, or ids ``(n,)``.
        children_h, children_c : Ragged
            The states of the children, rows of shape ``(width,)``.
        """
        word = self._read(word)
        h, c = children_h.values, children_c.values
        if not h.shape[0]:
            return self.leaf(word)
        gates, keep = ops.split(word, [3 * self.width, self.width], axis=1)
        keep = ops.take(keep, children_h.segment_ids) + ops.matmul(h, self.child.weight)
        kept = ops.segment_sum(ops.sigmoid(keep) * c, children_c)
        total = ops.segment_sum(h, children_h)
        return _state(gates + ops.matmul(total, self.sum.weight), kept)

    def logits(self, h: Array) -> Array:
        """Return the scores of the classes: ``(n, width)`` gives ``(n, classes)``."""
        return linear(self.output, h)

    def _read(self, word: Array) -> Array:
        return self.embed(word) if len(word.shape) == 1 else word

    # ---- recording ---------------------------------------------------------------------------

    def encode(
        self, fold: Any, tree: Any, word: Callable[[Any], int] = attrgetter("word")
    ) -> tuple[Any, Any]:
        """Record a tree and return the state ``(h, c)`` of its root.

        Parameters
        ----------
        fold : Fold, Unfold or the recorder of a trace
        tree : object
            A node with the attributes ``word`` and ``children``, a tuple or list. May be as deep as
            it likes.
        word : callable, optional
            Gives the id of a node's word; by default the word is one.
        """
        return self.encode_all(fold, tree, word)[-1]

    def encode_all(
        self, fold: Any, tree: Any, word: Callable[[Any], int] = attrgetter("word")
    ) -> list[tuple[Any, Any]]:
        """Record a tree and return the states of all its nodes, each behind those of its children."""
        states: list[tuple[Any, Any]] = []
        waiting: list[tuple[Any, Any]] = []
        for node in postorder(tree, attrgetter("children")):
            arity = len(node.children)
            embedded = fold.add("embed", word(node))
            if arity:
                h, c = zip(*waiting[-arity:], strict=True)
                del waiting[-arity:]
                rows = multifold.ragged(h), multifold.ragged(c)
                state = fold.add("node", embedded, *rows).split(2)
            else:
                state = fold.add("leaf", embedded).split(2)
            waiting.append(state)
            states.append(state)
        return states


def _state(gates: Array, kept: Array | None = None) -> tuple[Array, Array]:
    """Return ``(h, c)`` from the gates take in and out, the candidate, and what children kept."""
    (take_in, out), candidate = gated(gates, 2)
    c = take_in * candidate if kept is None else take_in * candidate + kept
    return out * ops.tanh(c), c
