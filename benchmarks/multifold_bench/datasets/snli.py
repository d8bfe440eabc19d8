"""Stanford Natural Language Inference: sentence pairs with binary parses, one JSON object a line.

``( ( A dog ) ( runs . ) )``: a bracket joins two parts, so a parse read from left to right is a
program for a shift-reduce parser (`transitions`). The trap: where the annotators disagreed, the
gold label is ``-``; such pairs are skipped, as in all published figures. MultiNLI has the same
format.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from multifold._measure.files import Lines, PathLike, Progress
from multifold.models.layers import postorder
from multifold_bench.datasets.trees import Tree

SOURCE = (
    "get snli_1.0.zip from https://nlp.stanford.edu/projects/snli/ and pass the path of one of its "
    "jsonl files."
)
LABELS = ("entailment", "neutral", "contradiction")

_NO_AGREEMENT = "-"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ParseTree(Tree):
    """A word, or two phrases side by side.

    Attributes
    ----------
    word : str or None
        The word of a leaf; None elsewhere.
    children : tuple
        Two trees, or none at a leaf.
    """

    word: str | None = None
    children: tuple[ParseTree, ...] = ()

    @property
    def left(self) -> ParseTree:
        """The first of the two children."""
        return self.children[0]

    @property
    def right(self) -> ParseTree:
        """The second of the two children."""
        return self.children[1]


@dataclass(frozen=True, slots=True)
class InferencePair:
    """Two sentences and whether the first implies the second.

    Attributes
    ----------
    premise, hypothesis : ParseTree
        The sentences.
    label : int
        From 0 to 2, an index of `LABELS`.
    """

    premise: ParseTree
    hypothesis: ParseTree
    label: int


def read(path: PathLike, progress: Progress | None = None) -> Iterator[InferencePair]:
    """Read the pairs of a file that have a gold label, in its order.

    Parameters
    ----------
    path : str or path
        A jsonl file; blank lines are skipped.
    progress : callable, optional
        Called with the number of bytes that were read so far.

    Raises
    ------
    DatasetError
        At once if there is no file; at the pair concerned if a line does not hold one.

    References
    ----------
    Bowman et al., A large annotated corpus for learning natural language inference, EMNLP 2015.

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "train.jsonl")
    >>> record = {
    ...     "gold_label": "entailment",
    ...     "sentence1_binary_parse": "( ( A dog ) ( runs . ) )",
    ...     "sentence2_binary_parse": "( It moves )",
    ... }
    >>> _ = path.write_text(json.dumps(record))
    >>> pair, = read(path)
    >>> LABELS[pair.label], pair.premise.left.right
    ('entailment', ParseTree(word='dog'))
    >>> transitions(pair.premise)
    ('A', 'dog', None, 'runs', '.', None, None)
    """
    return _pairs(Lines(path, SOURCE, progress))


def transitions(tree: ParseTree) -> tuple[str | None, ...]:
    """Return the parse as steps of a shift-reduce parser: a word to shift, or None to reduce."""
    return tuple(node.word for node in postorder(tree))


def _pairs(lines: Lines) -> Iterator[InferencePair]:
    for line in lines:
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise lines.error(f"expected one JSON object, received {line[:40]!r}.") from error
        label = _text(record, "gold_label", lines)
        if label == _NO_AGREEMENT:
            continue
        if label not in LABELS:
            expected = ", ".join(LABELS)
            raise lines.error(f"expected a gold_label of {expected} or '-', received {label!r}.")
        yield InferencePair(
            _parse(_text(record, "sentence1_binary_parse", lines), lines),
            _parse(_text(record, "sentence2_binary_parse", lines), lines),
            LABELS.index(label),
        )


def _text(record: object, key: str, lines: Lines) -> str:
    value = record.get(key) if isinstance(record, dict) else None
    if not isinstance(value, str):
        raise lines.error(f"expected a JSON object with a text {key!r}, received {value!r}.")
    return value


def _parse(text: str, lines: Lines) -> ParseTree:
    opened: list[list[ParseTree]] = [[]]
    for token in text.split(" "):
        if token == "(":
            opened.append([])
        elif token == ")" and len(opened) > 1:
            parts = opened.pop()
            if len(parts) == 1:  # a sentence of one word may stand in a bracket of its own
                opened[-1] += parts
            elif len(parts) == 2:
                opened[-1].append(ParseTree(None, tuple(parts)))
            else:
                raise lines.error(f"expected two parts in each bracket, received {len(parts)}.")
        elif token == ")":
            raise lines.error("expected the end of the parse, received ')' without its '('.")
        elif token:
            opened[-1].append(ParseTree(token))
    if len(opened) > 1:
        raise lines.error(f"expected ')', received the end of the parse ({len(opened) - 1} open).")
    if len(opened[0]) != 1:
        raise lines.error(f"expected one tree in the parse, received {len(opened[0])} parts.")
    return opened[0][0]
