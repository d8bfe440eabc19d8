"""Damaged traces are refused with one error, or run within their own memory; so are damaged columns."""

from __future__ import annotations

import copy
import os

import numpy as np

from multifold import Fold, LaunchError, RecordError, ragged, trace

MANY = int(os.environ.get("MULTIFOLD_DAMAGED_TRACES", "500"))
"""How many damaged traces are run; the session ``sanitize`` of nox asks for 100,000."""

VALUES = (
    -(1 << 63),
    -(1 << 40),
    -2,
    -1,
    0,
    1,
    2,
    3,
    7,
    1 << 31,
    1 << 40,
    (1 << 40) + 1,
    1 << 62,
    (1 << 63) - 1,
)
"""What an integer may become, beside its neighbours."""

MODEL = {
    "leaf": lambda x: np.stack([x, x + 1.0], axis=1),
    "array": lambda x: x,
    "pair": lambda x, y: (x + y, x - y),
    "sum": lambda rows: np.stack(
        [rows.values[rows.segment_ids == i].sum(0) for i in range(len(rows.lengths))]
    ),
    "whole": lambda x, table: x + table.sum(0),
    "scale": lambda x, s: x * s[:, None],
}


def record(fold, word):
    """Record a call for each letter, which reads the calls of the letters before it."""
    nodes = [fold.add("leaf", len(word)), fold.add("array", np.float64([[0.5, 2.0]]))]
    for letter in word:
        if letter == "p":
            nodes += fold.add("pair", nodes[-1], nodes[0]).split(2)
        elif letter == "r":
            nodes.append(fold.add("sum", ragged([*nodes[-3:], np.float64([[1.0, 1.0]])])))
        elif letter == "w":
            nodes.append(fold.add("whole", nodes[-1], nodes[0].no_batch()))
        else:
            nodes.append(fold.add("scale", nodes[-1], 0.5))
    return {"last": nodes[-1], "all": nodes[-2:]}


WORDS = ("p", "sp", "rps", "prs", "ssr", "wp")


def run(traces):
    """Run traces in every way that reads them; a fold merges, schedules and wires them."""
    fold = Fold(backend="numpy")
    found = fold.run(MODEL, traces)
    str(fold.explain())
    return found


def refused_or_run(make):
    """Make and run traces; return the error, of which only two kinds may come."""
    try:
        run(make())
    except (
        RecordError,
        LaunchError,
    ) as error:  # rows of other shapes fail
        return error
    return None


def changed(made, **columns):
    """Return a trace with other columns that was not looked at when it was made."""
    other = copy.copy(made)
    for name, column in columns.items():
        object.__setattr__(other, name, column)
    return other


def damage(rng, made, others):
    """Return a trace with a random damage to its integers or with parts of another trace."""
    integers = made.integers.copy()
    other = others[rng.integers(len(others))]
    kind = rng.integers(8)
    if kind < 4:
        for place in rng.integers(len(integers), size=1 + kind // 2):
            near = integers[place] + rng.integers(-3, 4)
            integers[place] = near if rng.integers(2) else VALUES[rng.integers(len(VALUES))]
        return changed(made, integers=integers)
    if kind == 4:
        low, high = np.sort(rng.integers(len(integers) + 1, size=2))
        return changed(made, integers=np.delete(integers, slice(low, high)))
    if kind == 5:
        low, high = rng.integers(len(integers), size=2)
        integers[[low, high]] = integers[[high, low]]
        return changed(made, integers=integers)
    name = ["integers", "vocabulary", "floats", "arrays", "loose", "lines"][rng.integers(6)]
    return changed(made, **{name: getattr(other, name)})


def test_damaged_traces_are_refused_or_run_within_their_memory():
    rng, right = np.random.default_rng(8), [trace(record, word) for word in WORDS]
    refused = 0
    for _ in range(MANY):
        made = [right[i] for i in rng.integers(len(right), size=rng.integers(1, 4))]
        place = rng.integers(len(made))
        made[place] = damage(rng, made[place], right)
        refused += refused_or_run(lambda made=made: made) is not None
    assert refused > MANY / 2
