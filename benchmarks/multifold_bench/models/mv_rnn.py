"""MV-RNN: each phrase has a vector and a matrix, which acts on the vector of its neighbour."""

from __future__ import annotations

from typing import final

from multifold import ops
from multifold.backend import Array
from multifold.models.layers import Initial, linear
from multifold.models.model import Classifier
from multifold.models.tree_model import TreeModel


@final
class MVRNN(TreeModel, Classifier):
    """Classifies a binary tree, or each of its phrases.

    Matrices are kept transposed, since they act on rows here, and whole: the paper's sum of a
    diagonal and a product of narrow ones saves memory, where words are many.

    Parameters
    ----------
    vocabulary : int
        The number of word ids.
    width : int
        The width of vectors; matrices have its square.
    classes : int
        The number of classes.
    seed, dtype
        Of the initial values.

    References
    ----------
    Socher, Huval, Manning and Ng, Semantic Compositionality through Recursive Matrix-Vector Spaces,
    EMNLP 2012.

    Examples
    --------
    >>> import multifold
    >>> from types import SimpleNamespace as Phrase
    >>> tree = Phrase(word=None, left=Phrase(word=1), right=Phrase(word=2))
    >>> model = MVRNN(vocabulary=3, width=4, classes=5)
    >>> fold = multifold.Fold(backend="numpy")
    >>> vector, matrix = model.encode(fold, tree)
    >>> fold.apply(model, fold.add("logits", vector)).shape
    (1, 5)
    """

    def __init__(
        self, vocabulary: int, width: int, classes: int, *, seed: int = 0, dtype: str = "float32"
    ) -> None:
        initial = Initial(seed, dtype)
        parameters = {
            "vectors": initial.embedding(vocabulary, width),
            "matrices": initial.matrices(vocabulary, width),
            **initial.linear("compose", 2 * width, width),
            "compose_matrices": initial.weight(2 * width, width),
            **initial.linear("output", width, classes),
        }
        super().__init__(parameters, width=width)

    def leaf(self, word: Array) -> tuple[Array, Array]:
        """Return vectors ``(n, width)`` and matrices ``(n, width, width)`` of words ``(n,)``."""
        matrices = ops.reshape(ops.take(self.matrices, word), (self.width, self.width))
        return ops.take(self.vectors, word), matrices

    def children(
        self, left: Array, left_matrix: Array, right: Array, right_matrix: Array
    ) -> tuple[Array, Array]:
        """Return vectors and matrices of phrases from the same of their parts; see `leaf`."""
        changed = [act(right_matrix, left), act(left_matrix, right)]
        vector = ops.tanh(linear(self.compose, *changed))
        return vector, ops.affine([left_matrix, right_matrix], self.compose_matrices)


def act(matrix: Array, vector: Array) -> Array:
    """Return what matrices ``(n, width, width)`` make of vectors ``(n, width)``."""
    width = vector.shape[1]
    return ops.reshape(ops.matmul(ops.reshape(vector, (1, width)), matrix), (width,))
