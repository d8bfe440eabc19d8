"""ListOps: nested list operations over digits, with exact answers; one op per operator.

``4<TAB>( ( ( [MAX 2 ) 4 ) ] )``: the file brackets the expression into a left-branching binary tree
with round brackets, for models that know two children only. Dropping those gives the real thing,
``[MAX 2 4 ]``: operators with any number of operands.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from multifold._measure.files import Lines, PathLike, Progress
from multifold.models.layers import bottom_up, postorder
from multifold_bench.datasets.trees import Tree

SOURCE = (
    "get the tsv files from https://github.com/nyu-mll/spinn (python/spinn/data/listops) or write "
    "some with the make_data.py there."
)

OPERATORS: Mapping[str, Callable[[Sequence[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda digits: int(statistics.median(digits)),
    "SM": lambda digits: sum(digits) % 10,
    "FIRST": lambda digits: digits[0],
    "LAST": lambda digits: digits[-1],
}
"""What each operator does with the values of its operands."""

DEPTH = 6
NODES = 50
"""How deep and how large expressions are that are made up."""

_DIGIT = {str(digit): digit for digit in range(10)}


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Expression(Tree):
    """A digit, or an operator with one or more operands.

    Attributes
    ----------
    op : str or None
        A key of `OPERATORS`; None at a digit.
    digit : int or None
        From 0 to 9; None at an operator.
    children : tuple
        The operands.
    """

    op: str | None = None
    digit: int | None = None
    children: tuple[Expression, ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """An expression and its value, from 0 to 9, as the file says it."""

    label: int
    expression: Expression


def read(path: PathLike, progress: Progress | None = None) -> Iterator[Example]:
    r"""Read the expressions of a file, in its order.

    Parameters
    ----------
    path : str or path
        A tsv file: label, TAB, expression; blank lines are skipped.
    progress : callable, optional
        Called with the number of bytes that were read so far.

    Raises
    ------
    DatasetError
        At once if there is no file; at the example concerned if a line is not an expression.

    References
    ----------
    Nangia and Bowman, ListOps: A Diagnostic Dataset for Latent Tree Learning, NAACL 2018.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "train.tsv")
    >>> _ = path.write_text("4\t( ( ( ( [MAX 2 ) 4 ) 1 ) ] )\n")
    >>> example, = read(path)
    >>> example.expression, [child.digit for child in example.expression.children]
    (Expression(op='MAX', children=<3>), [2, 4, 1])
    >>> example.label == evaluate(example.expression)
    True
    """
    lines = Lines(path, SOURCE, progress)
    return (_example(line, lines) for line in lines if line.strip())


def made(count: int, seed: int = 0, *, depth: int = DEPTH, nodes: int = NODES) -> Iterator[Example]:
    """Make up expressions, no two of them equal, as Nangia and Bowman's ``make_data.py`` draws them.

    Parameters
    ----------
    count : int
        How many expressions.
    seed : int
        Equal seeds give equal expressions.
    depth : int
        How many operations lie inside each other at most.
    nodes : int
        The largest number of operations and digits; an expression of more is drawn anew. With both limits
        as they are, expressions have 15 of them on average.

    Examples
    --------
    >>> example, = made(1, depth=1)
    >>> example.expression, [child.digit for child in example.expression.children], example.label
    (Expression(op='MIN', children=<5>), [6, 5, 2, 3, 0], 0)
    """
    rng = np.random.default_rng(seed)
    known: set[tuple[Any, ...]] = set()
    while len(known) < count:
        expression = draw(rng, depth)
        text = tuple((node.op, node.digit, len(node.children)) for node in postorder(expression))
        if len(text) <= nodes and text not in known:
            known.add(text)
            yield Example(evaluate(expression), expression)


def draw(rng: np.random.Generator, depth: int) -> Expression:
    """Draw an operation on two to five operands, each an operation with probability 1/4, else a digit.

    Operators, numbers of operands and digits are equally likely. ``depth`` is how many operations lie
    inside each other at most.
    """
    operators = tuple(OPERATORS)
    operands = tuple(
        draw(rng, depth - 1)
        if depth > 1 and rng.random() < 0.25
        else Expression(digit=int(rng.integers(10)))
        for _ in range(rng.integers(2, 6))
    )
    return Expression(operators[int(rng.integers(len(operators)))], None, operands)


def evaluate(expression: Expression) -> int:
    """Return the value of an expression, from 0 to 9."""

    def value(node: Expression, operands: Sequence[int]) -> int:
        return OPERATORS[node.op](operands) if node.op else node.digit or 0

    return bottom_up(expression, value)


def _example(line: str, lines: Lines) -> Example:
    label, tab, text = line.partition("\t")
    if not tab or label not in _DIGIT:
        raise lines.error(f"expected a label from 0 to 9 and a TAB, received {line[:40]!r}.")
    return Example(_DIGIT[label], _parse(text, lines))


def _parse(text: str, lines: Lines) -> Expression:
    opened: list[tuple[str | None, list[Expression]]] = [(None, [])]
    for token in text.split():
        if token in "()":
            continue
        if token in _DIGIT:
            opened[-1][1].append(Expression(digit=_DIGIT[token]))
        elif token[0] == "[" and token[1:] in OPERATORS:
            opened.append((token[1:], []))
        elif token == "]" and len(opened) > 1 and opened[-1][1]:
            op, operands = opened.pop()
            opened[-1][1].append(Expression(op, None, tuple(operands)))
        else:
            operators = ", ".join(f"[{op}" for op in OPERATORS)
            raise lines.error(
                f"expected a digit, one of {operators}, or ']' behind an operand, received {token!r}."
            )
    if len(opened) > 1:
        raise lines.error(f"expected ']', received the end of the line ({len(opened) - 1} open).")
    if len(opened[0][1]) != 1:
        raise lines.error(f"expected one expression, received {len(opened[0][1])}.")
    return opened[0][1][0]
