r"""Stanford Sentiment Treebank: one binary tree a line, in brackets, every node labelled.

``(3 (2 It) (4 (2 's) (3 lovely)))``: a bracket holds a label from 0 to 4 and then either a word or
two brackets. The trap: words may hold U+00A0 (``8 1\/2`` is one word), so only the ASCII space
separates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from multifold._measure.files import Lines, PathLike, Progress

SOURCE = (
    "get trainDevTestTrees_PTB.zip from https://nlp.stanford.edu/sentiment/ and pass the path of "
    "its train.txt, dev.txt or test.txt."
)
LABELS = ("very negative", "negative", "neutral", "positive", "very positive")

_TOKEN = re.compile(r"[()]|[^() ]+")
_LABEL = {str(label): label for label in range(len(LABELS))}


Make = Callable[[int, str | None, tuple[Any, ...]], Any]
"""``make(label, word, children) -> tree``; a leaf has a word and no children, a phrase two and no word."""


def read(path: PathLike, make: Make, progress: Progress | None = None) -> Iterator[Any]:
    r"""Return an iterator of the trees of a file, in its order, each made by ``make``.

    Parameters
    ----------
    path : str or path
        ``train.txt``, ``dev.txt`` or ``test.txt``; blank lines are skipped.
    make : callable
        Makes a tree of a label, of a word as it stands in the file (``-LRB-`` for a bracket) and of the
        trees that the children are; see `Make`.
    progress : callable, optional
        Called with the number of bytes that were read so far.

    Raises
    ------
    DatasetError
        At once if there is no file; at the example concerned if a line is not a tree.

    References
    ----------
    Socher et al., Recursive Deep Models for Semantic Compositionality Over a Sentiment Treebank,
    EMNLP 2013.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "train.txt")
    >>> _ = path.write_text("(3 (2 It) (4 (2 's) (3 lovely)))\n")
    >>> list(read(path, lambda label, word, children: (LABELS[label], word or children)))
    [('positive', (('neutral', 'It'), ('very positive', (('neutral', "'s"), ('positive', 'lovely')))))]
    """
    lines = Lines(path, SOURCE, progress)
    return (_parse(line, lines, make) for line in lines if line.strip())


def _parse(line: str, lines: Lines, make: Make) -> Any:
    opened: list[list[Any]] = [[]]  # what each open bracket holds so far
    for token in _TOKEN.findall(line):
        if token == "(":
            opened.append([])
        elif token != ")":
            opened[-1].append(token)
        elif len(opened) > 1:
            parts = opened.pop()
            opened[-1].append(_close(parts, lines, make))
        else:
            raise lines.error("expected the end of the line, received ')' without its '('.")
    if len(opened) > 1:
        raise lines.error(f"expected ')', received the end of the line ({len(opened) - 1} open).")
    match opened[0]:
        case [tree] if not isinstance(tree, str):
            return tree
    raise lines.error(f"expected one '(...)' and nothing else, received {_show(opened[0])}.")


def _close(parts: list[Any], lines: Lines, make: Make) -> Any:
    match parts:
        case [str(label), str(word)] if label in _LABEL:
            return make(_LABEL[label], word, ())
        case [str(label), left, right] if label in _LABEL and not {type(left), type(right)} & {str}:
            return make(_LABEL[label], None, (left, right))
    raise lines.error(
        "expected '(label word)' or '(label tree tree)' with a label from 0 to 4, "
        f"received ({_show(parts)})."
    )


def _show(parts: list[Any]) -> str:
    return " ".join(part if isinstance(part, str) else "(...)" for part in parts)
