"""Binary Tree-LSTM: the state of a phrase from the states of its two parts."""

from __future__ import annotations

from typing import final

from multifold import ops
from multifold.backend import Array
from multifold.models.layers import Initial, linear
from multifold.models.model import Classifier
from multifold.models.tree_model import TreeModel


@final
class BinaryTreeLSTM(TreeModel, Classifier):
    """Classifies a binary tree, or each of its phrases.

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
    Memory Networks, ACL 2015, section 3.2 with N = 2; words go through gates of their own.

    Examples
    --------
    >>> import multifold
    >>> from types import SimpleNamespace as Phrase
    >>> tree = Phrase(word=None, left=Phrase(word=1), right=Phrase(word=2))
    >>> model = BinaryTreeLSTM(vocabulary=3, width=4, classes=5)
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
        inputs = width if inputs is None else inputs
        parameters = {
            "embedding": initial.embedding(vocabulary, inputs),
            # A word has no cells to keep: its gates are take in, out and the candidate.
            **initial.linear("word", inputs, 3 * width),
            # In the order of `ops.lstm_state`: take in, a gate to keep each of the two parts, out, the
            # candidate. The slice is that of the two gates, which begin open.
            **initial.linear("compose", 2 * width, 5 * width, slice(width, 3 * width)),
            **initial.linear("output", width, classes),
        }
        super().__init__(parameters, width=width)

    def leaf(self, word: Array) -> tuple[Array, Array]:
        """Return the states ``(h, c)`` of words: ids of shape ``(n,)`` give two arrays ``(n, width)``."""
        return ops.lstm_state(linear(self.word, ops.take(self.embedding, word)))

    def children(self, left_h: Array, left_c: Array, right_h: Array, right_c: Array) -> tuple[Array, Array]:
        """Return the states ``(h, c)`` of phrases from those of their two parts, all ``(n, width)``."""
        return ops.lstm_state(linear(self.compose, left_h, right_h), [left_c, right_c])
