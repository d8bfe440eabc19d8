"""The scores of the papers, computed from NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

Span = tuple[int, int, str]
"""First place, place after the last one, label."""


def accuracy(predicted: np.ndarray, expected: np.ndarray) -> float:
    """Return the share of equal entries, NaN if there is none.

    Examples
    --------
    >>> accuracy(np.array([1, 2, 3, 3]), np.array([1, 2, 3, 4]))
    0.75
    """
    return float(np.mean(predicted == expected)) if len(expected) else float("nan")


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Return Pearson's correlation, NaN where one side is constant.

    Examples
    --------
    >>> pearson(np.array([1.0, 2.0, 3.0]), np.array([2.0, 4.0, 6.0]))
    1.0
    """
    x = x - x.mean()
    y = y - y.mean()
    scale = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / scale if scale else float("nan")


def ranks(x: np.ndarray) -> np.ndarray:
    """Return the rank of each number from 1 on; equal ones share the mean of their ranks.

    Examples
    --------
    >>> ranks(np.array([30, 10, 30, 20]))
    array([3.5, 1. , 3.5, 2. ])
    """
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2)[inverse]


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Return Spearman's rank correlation, Pearson's of the `ranks`.

    Examples
    --------
    >>> spearman(np.array([1.0, 2.0, 3.0]), np.array([1.0, 8.0, 27.0]))
    1.0
    """
    return pearson(ranks(x), ranks(y))


def spans(tags: Sequence[str]) -> set[Span]:
    """Return the spans that BIO tags mark, as conlleval reads them.

    A span begins at ``B-x``, and at an ``I-x`` that does not continue one of label ``x``.

    Examples
    --------
    >>> sorted(spans(["B-place", "I-place", "O", "I-person", "B-person"]))
    [(0, 2, 'place'), (3, 4, 'person'), (4, 5, 'person')]
    """
    found: set[Span] = set()
    first = 0
    open_label = ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, label = tag.partition("-")
        if open_label and (prefix != "I" or label != open_label):
            found.add((first, place, open_label))
            open_label = ""
        if label and not open_label:
            first = place
            open_label = label
    return found


def precision_recall_f1(pairs: Iterable[tuple[set[Span], set[Span]]]) -> tuple[float, float, float]:
    """Return precision, recall and F1 of spans, from a predicted and an expected set a sentence.

    Without any correct span all three are 0, as in conlleval.

    Examples
    --------
    >>> precision_recall_f1([({(0, 1, "x"), (2, 3, "x")}, {(0, 1, "x")})])
    (0.5, 1.0, 0.6666666666666666)
    """
    correct = predicted = expected = 0
    for found, wanted in pairs:
        correct += len(found & wanted)
        predicted += len(found)
        expected += len(wanted)
    if not correct:
        return 0.0, 0.0, 0.0
    precision = correct / predicted
    recall = correct / expected
    return precision, recall, 2 * precision * recall / (precision + recall)


def q_error(predicted: np.ndarray, expected: np.ndarray, least: float) -> np.ndarray:
    """Return by which factor each prediction is off, 1 at best; both sides are ``least`` or more.

    References
    ----------
    Moerkotte, Neumann and Steidl, Preventing Bad Plans by Bounding the Impact of Cardinality
    Estimation Errors, VLDB 2009.

    Examples
    --------
    >>> q_error(np.array([10.0, 1.0]), np.array([5.0, 4.0]), least=0.001)
    array([2., 4.])
    """
    predicted = np.maximum(predicted, least)
    expected = np.maximum(expected, least)
    return np.maximum(predicted / expected, expected / predicted)
