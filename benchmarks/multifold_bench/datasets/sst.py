"""Stanford Sentiment Treebank: trees with labels, compared by value; the core's reader finds them.

``multifold compare`` reads the same files, so `multifold._measure.sst` says what the format is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from multifold._measure import sst
from multifold._measure.files import PathLike, Progress
from multifold._measure.sst import LABELS, SOURCE
from multifold_bench.datasets.trees import Tree

__all__ = ["LABELS", "SOURCE", "SentimentTree", "read"]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SentimentTree(Tree):
    """A phrase with its sentiment.

    Attributes
    ----------
    label : int
        From 0 to 4, an index of `LABELS`.
    word : str or None
        The word of a leaf, as it stands in the file (``-LRB-`` for a bracket); None elsewhere.
    children : tuple
        Two trees, or none at a leaf.
    """

    label: int
    word: str | None = None
    children: tuple[SentimentTree, ...] = ()

    @property
    def left(self) -> SentimentTree:
        """The first of the two children."""
        return self.children[0]

    @property
    def right(self) -> SentimentTree:
        """The second of the two children."""
        return self.children[1]


def read(path: PathLike, progress: Progress | None = None) -> Iterator[SentimentTree]:
    r"""Read the trees of a file, in its order; see `multifold._measure.sst.read`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "train.txt")
    >>> _ = path.write_text("(3 (2 It) (4 (2 's) (3 lovely)))\n")
    >>> tree, = read(path)
    >>> tree.label, tree.left.word, tree.right.right
    (3, 'It', SentimentTree(label=3, word='lovely'))
    """
    return sst.read(path, SentimentTree, progress)
