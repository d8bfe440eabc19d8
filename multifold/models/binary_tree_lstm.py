"""Binary Tree-LSTM: the state of a phrase from those of its two parts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from operator import attrgetter
from typing import Any, final

from multifold import ops
from multifold.backend import Array
from multifold.models.layers import Initial, gated, linear, record_binary
from multifold.models.model import Model


@final
class BinaryTreeLSTM(Model):
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
            **initial.linear("word", inputs, 3 * width),
            **initial.linear("compose", 2 * width, 5 * width, slice(width, 3 * width)),
            **initial.linear("output", width, classes),
        }
        super().__init__(parameters, width=width)

    # ---- ops ---------------------------------------------------------------------------------

    def leaf(self, word: Array) -> tuple[Array, Array]:
        """Return the states ``(h, c)`` of words: ids ``(n,)`` give ``(n, width)`` each."""
        gates = linear(self.word, ops.take(self.embedding, word))
        (take_in, out), candidate = gated(gates, 2)
        c = take_in * candidate
        return out * ops.tanh(c), c

    def children(self, left_h: Array, left_c: Array, right_h: Array, right_c: Array) -> tuple[Array, Array]:
        """Return the states ``(h, c)`` of phrases from those of their parts, all ``(n, width)``."""
        gates = linear(self.compose, ops.concat([left_h, right_h], axis=1))
        (take_in, keep_left, keep_right, out), candidate = gated(gates, 4)
        c = take_in * candidate + keep_left * left_c + keep_right * right_c
        return out * ops.tanh(c), c

    def logits(self, h: Array) -> Array:
        """Return the scores of the classes: ``(n, width)`` gives ``(n, classes)``."""
        return linear(self.output, h)

    # ---- recording ---------------------------------------------------------------------------

    def encode(
        self, fold: Any, tree: Any, word: Callable[[Any], int] = attrgetter("word")
    ) -> tuple[Any, Any]:
        """Record a tree and return the state ``(h, c)`` of its root.

        Parameters
        ----------
        fold : Fold, Unfold or the recorder of a trace
        tree : object
            A node with the attributes ``word``, None above the leaves, and there ``left`` and
            ``right``. May be as deep as it likes.
        word : callable, optional
            Gives the id of a leaf's word; by default the word is one.
        """
        return deque(record_binary(fold, tree, word), maxlen=1).pop()

    def encode_all(
        self, fold: Any, tree: Any, word: Callable[[Any], int] = attrgetter("word")
    ) -> list[tuple[Any, Any]]:
        """Record a tree; return the states of all nodes, each behind those of its parts."""
        return list(record_binary(fold, tree, word))
