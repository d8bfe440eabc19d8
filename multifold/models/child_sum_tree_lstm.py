"""Child-sum Tree-LSTM: the state of a word from the states of any number of dependents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, final

import numpy as np

from multifold import ops
from multifold.backend import Array, Ragged
from multifold.models.layers import Initial, linear, postorder
from multifold.models.model import Classifier
from multifold.models.tree_model import Pair, TreeModel
from multifold.operands import ragged


class ChildSumEncoder(TreeModel):
    """All but the output of models over such trees: states of nodes from those of their children."""

    def _encoder(
        self, initial: Initial, vocabulary: int, width: int, inputs: int | None
    ) -> dict[str, np.ndarray]:
        """Return new initial parameters of the encoder, name -> array; ``inputs`` is ``width`` if None.

        There are the gates take in and out, the candidate, and a gate for each child that says what is kept
        of it. What they read of the word has a bias; what they read of the children is added to that.
        """
        inputs = width if inputs is None else inputs
        return {
            "embedding": initial.embedding(vocabulary, inputs),
            # Take in, out and the candidate, as `ops.lstm_state` reads them; then the gate for each child.
            **initial.linear("word", inputs, 4 * width, slice(3 * width, None)),
            "total.weight": initial.weight(width, 3 * width),
            "child.weight": initial.weight(width, width),
        }

    def embed(self, word: Array) -> Array:
        """Return the part of the gates that words make: ids of shape ``(n,)`` give ``(n, 4 * width)``.

        Recorded apart from the nodes, it runs once for all words of a minibatch.
        """
        return linear(self.word, ops.take(self.embedding, word))

    def leaf(self, word: Array) -> tuple[Array, Array]:
        """Return the states ``(h, c)``, each ``(n, width)``, of nodes without children.

        They equal those of `node` without children. ``word`` is what `embed` returned, or ids ``(n,)``.
        """
        gates, _ = ops.split(self._read(word), [3 * self.width, self.width], axis=1)
        return ops.lstm_state(gates)

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
        h = children_h.values
        c = children_c.values
        # In a TensorFlow graph for any number of rows the shape is None, which is not 0.
        if h.shape[0] == 0:
            return self.leaf(word)
        gates, keep = ops.split(word, [3 * self.width, self.width], axis=1)
        keep = ops.take(keep, children_h.segment_ids) + ops.matmul(h, self.child.weight)
        kept = ops.segment_sum(ops.sigmoid(keep) * c, children_c)
        total = ops.segment_sum(h, children_h)
        return ops.lstm_state(gates + ops.matmul(total, self.total.weight), kept=kept)

    def _read(self, word: Array) -> Array:
        return self.embed(word) if len(word.shape) == 1 else word

    def _pairs(self, fold: Any, tree: Any, word: Callable[[Any], int]) -> Iterator[Pair]:
        waiting: list[Pair] = []
        for node in postorder(tree, attrgetter("children")):
            arity = len(node.children)
            embedded = fold.add("embed", word(node))
            if arity:
                # In postorder the last states that wait are those of the node's own children.
                h, c = zip(*waiting[-arity:], strict=True)
                del waiting[-arity:]
                rows = ragged(h), ragged(c)
                state = fold.add("node", embedded, *rows).split(2)
            else:
                state = fold.add("leaf", embedded).split(2)
            waiting.append(state)
            yield state


@final
class ChildSumTreeLSTM(ChildSumEncoder, Classifier):
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
    >>> from types import SimpleNamespace as Word
    >>> tree = Word(word=2, children=[Word(word=1, children=[]), Word(word=3, children=[])])
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


@final
class ChildSumSimilarity(ChildSumEncoder):
    """Says how related two sentences are, from 1 to ``classes``, by their dependency trees.

    Parameters
    ----------
    vocabulary, width, inputs, seed, dtype
        As for `ChildSumTreeLSTM`.
    hidden : int
        The width of the layer that compares the two states.
    classes : int
        The largest score; scores between two whole numbers lie between two classes.

    References
    ----------
    Tai, Socher and Manning, ACL 2015, section 4.2.

    Examples
    --------
    >>> import multifold
    >>> from types import SimpleNamespace as Record
    >>> left, right = Record(word=1, children=[]), Record(word=2, children=[])
    >>> pair = Record(left=left, right=right, similarity=3.5)
    >>> model = ChildSumSimilarity(vocabulary=4, width=6)
    >>> fold = multifold.Fold(backend="numpy")
    >>> logits = fold.apply(model, model.compare(fold, pair))
    >>> logits.shape, model.targets([pair.similarity]), model.scores(logits).shape
    ((1, 5), array([[0. , 0. , 0.5, 0.5, 0. ]]), (1,))
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        hidden: int = 50,
        classes: int = 5,
        *,
        inputs: int | None = None,
        seed: int = 0,
        dtype: str = "float32",
    ) -> None:
        initial = Initial(seed, dtype)
        parameters = {
            **self._encoder(initial, vocabulary, width, inputs),
            **initial.linear("compare_states", 2 * width, hidden),
            **initial.linear("output", hidden, classes),
        }
        super().__init__(parameters, width=width, classes=classes)

    def similarity(self, left: Array, right: Array) -> Array:
        """Return the logits of the classes, ``(n, classes)``, from ``h`` of two roots, ``(n, width)``."""
        distance = ops.concat([left * right, abs(left - right)], axis=1)
        return linear(self.output, ops.sigmoid(linear(self.compare_states, distance)))

    def compare(self, fold: Any, pair: Any, word: Callable[[Any], int] = attrgetter("word")) -> Any:
        """Record the trees ``pair.left`` and ``pair.right``, and return the node of their `similarity`.

        ``word(node)`` returns the id of a node's word.
        """
        (left, _), (right, _) = (self.encode(fold, tree, word) for tree in (pair.left, pair.right))
        return fold.add("similarity", left, right)

    def targets(self, similarities: Sequence[float]) -> np.ndarray:
        """Return for each similarity, from 1 to ``classes``, a distribution over classes with that mean.

        Shape ``(n, classes)``: 3.5 is half class 3 and half class 4, and 3 is class 3 alone.
        """
        places = np.arange(1, self.classes + 1)
        return np.maximum(0, 1 - np.abs(np.subtract.outer(similarities, places)))

    def scores(self, logits: np.ndarray) -> np.ndarray:
        """Return the mean score, from 1 to ``classes``, of each row of logits ``(n, classes)``."""
        return ops.softmax(logits, axis=1) @ np.arange(1, self.classes + 1)
