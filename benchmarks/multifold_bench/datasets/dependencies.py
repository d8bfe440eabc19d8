"""Trees of words from "who is my head", as SICK writes them.

The one idea: repeatedly take a word all of whose dependents were taken. That gives the order in
which states can be computed, without recursion; if no word is left to take but words are left,
they hold a cycle, and walking along their dependents finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from multifold._measure.files import DatasetError
from multifold_bench.datasets.trees import Tree

MakeError = Callable[[str], DatasetError]
"""Makes an error that points at the sentence from a message."""


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class DependencyTree(Tree):
    """A word and the words that depend on it.

    Attributes
    ----------
    word : str
        The word.
    position : int
        Its place in the sentence, counted from 0.
    children : tuple
        Its dependents, any number of them, in the order of the sentence.
    """

    word: str
    position: int
    children: tuple[DependencyTree, ...] = ()


def tree_of(words: Sequence[str], heads: Sequence[int], error: MakeError) -> DependencyTree:
    """Return the tree of a sentence in which each word has one head.

    Parameters
    ----------
    words : sequence of str
        The words.
    heads : sequence of int
        For each word its head, counted from 1; 0 at the root.
    error : callable
        Makes, from a message, the error that points at the sentence.

    Raises
    ------
    DatasetError
        If a head does not exist, if there is not exactly one root, or if heads form a cycle; the
        message names the cycle.

    Examples
    --------
    >>> tree = tree_of(["dogs", "bark", "loudly"], [2, 0, 2], DatasetError)
    >>> tree, [child.word for child in tree.children]
    (DependencyTree(word='bark', position=1, children=<2>), ['dogs', 'loudly'])
    >>> tree_of(["no", "way", "out"], [0, 3, 2], DatasetError)
    Traceback (most recent call last):
        ...
    multifold._measure.files.DatasetError: expected no cycle ... 2 'way' -> 3 'out' -> 2 'way' ...
    """
    if not words or len(words) != len(heads):
        raise error(f"expected a head for each word, received {len(heads)} for {len(words)}.")
    dependents: list[list[int]] = [[] for _ in words]
    roots: list[int] = []
    for position, head in enumerate(heads):
        if not 0 <= head <= len(words):
            raise error(f"expected heads from 0 to {len(words)}, received {head}.")
        (dependents[head - 1] if head else roots).append(position)
    if not roots:
        _dependents_first(dependents, words, error)  # there is a cycle, which it names
    if len(roots) != 1:
        raise error(f"expected one root (head 0), received {len(roots)}.")
    built: dict[int, DependencyTree] = {}
    for position in _dependents_first(dependents, words, error):
        children = tuple(built.pop(child) for child in dependents[position])
        built[position] = DependencyTree(words[position], position, children)
    return built[roots[0]]


def _dependents_first(
    dependents: Sequence[Sequence[int]], words: Sequence[str], error: MakeError
) -> list[int]:
    readers: list[list[int]] = [[] for _ in dependents]
    for head, own in enumerate(dependents):
        for dependent in own:
            readers[dependent].append(head)
    waiting = [len(own) for own in dependents]
    order = [position for position, count in enumerate(waiting) if count == 0]
    for position in order:  # grows while it is walked over
        for head in readers[position]:
            waiting[head] -= 1
            if waiting[head] == 0:
                order.append(head)
    if len(order) < len(dependents):
        cycle = _cycle(dependents, waiting)
        path = " -> ".join(f"{position + 1} {words[position]!r}" for position in cycle)
        raise error(f"expected no cycle of heads, received {path} (head -> dependent).")
    return order


def _cycle(dependents: Sequence[Sequence[int]], waiting: Sequence[int]) -> list[int]:
    """Return a cycle among the words that still wait; its last word is its first again."""
    position = max(range(len(waiting)), key=lambda candidate: waiting[candidate] > 0)
    path: list[int] = []
    while position not in path:
        path.append(position)
        position = next(child for child in dependents[position] if waiting[child] > 0)
    return [*path[path.index(position) :], position]
