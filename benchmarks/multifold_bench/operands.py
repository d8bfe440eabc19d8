"""What a call of `Fold.add` costs by the kind of its operands: numbers, ragged rows, static values, arrays.

Each kind is one small program that is run with a fold's `add` and, as the floor, with a function of
the same arguments that does nothing. So a row contains what the user's own line costs, markers such as
`multifold.ragged(...)` included, and beside it what of that is not the fold's.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np

from multifold import Fold, _compiled, load_backend, ragged, static
from multifold._compare import machine
from multifold._compare.results import Row
from multifold._compare.timing import UNTIMED, Step, take_turns
from multifold.errors import RecordError
from multifold_bench.harness import quartiles

CALLS = 2000
"""Calls in a fold: more than a fold keeps plans of, and a few milliseconds of recording."""

WAYS = ("new", "reset", "floor")
"""A new fold in each round, one fold that is reset, and the same loop without a fold."""

FACTORS = {"single": 1.0, "double": 2.0, "triple": 3.0}

MODEL: dict[str, Callable[..., Any]] = {
    "double": lambda x: x * 2.0,
    "total": lambda rows: np.bincount(rows.segment_ids, rows.values, minlength=len(rows.lengths)),
    "times": lambda x, factor: x * float(factor),
    "named": lambda x, name: x * FACTORS[name],
    "keyed": lambda x, *, factor: x * float(factor),
}


@dataclass(frozen=True)
class OperandKind:
    """One kind of operand: how examples are drawn, how one is recorded, and what its value is."""

    draw: Callable[[Random], Any]
    record: Callable[[Callable[..., Any], Any], Any]
    plain: Callable[[Any], Any]
    cse: bool = False


def row(rng: Random) -> np.ndarray:
    """Draw one row of eight entries."""
    return np.array([[rng.random() for _ in range(8)]])


def record_number(add: Callable[..., Any], x: float) -> Any:
    """Record a call of one number, or of one array."""
    return add("double", x)


KINDS: dict[str, OperandKind] = {
    "numbers": OperandKind(Random.random, record_number, lambda x: x * 2.0),
    "arrays": OperandKind(row, record_number, lambda x: x[0] * 2.0),
    "ragged": OperandKind(
        lambda rng: [rng.random() for _ in range(rng.randint(1, 4))],
        lambda add, xs: add("total", ragged(xs)),
        sum,
    ),
    "static": OperandKind(
        lambda rng: (rng.random(), rng.randint(1, 3)),
        lambda add, x: add("times", x[0], static(x[1])),
        lambda x: x[0] * x[1],
    ),
    "strings": OperandKind(
        lambda rng: (rng.random(), rng.choice(tuple(FACTORS))),
        lambda add, x: add("named", x[0], x[1]),
        lambda x: x[0] * FACTORS[x[1]],
    ),
    "keywords": OperandKind(
        lambda rng: (rng.random(), rng.randint(1, 3)),
        lambda add, x: add("keyed", x[0], factor=x[1]),
        lambda x: x[0] * x[1],
    ),
    # Half of the calls are equal to an earlier one, about as many as the words of a text.
    "cse": OperandKind(lambda rng: rng.randrange(CALLS // 2), record_number, lambda x: x * 2.0, cse=True),
}
"""Name -> what is recorded. All but the last are recorded by a fold that merges no calls."""


def nothing(op: str, *operands: Any, **keywords: Any) -> None:
    """Take what `Fold.add` takes, and do nothing."""


def ways_of(kind: OperandKind, examples: Sequence[Any]) -> dict[str, Callable[[], Step]]:
    """Return the ways to record the examples, each of which takes a step."""
    kept = Fold(backend="numpy", cse=kind.cse)
    expected = np.array([kind.plain(x) for x in examples])

    def seconds_and_nodes(add: Callable[..., Any]) -> tuple[float, list[Any]]:
        record = kind.record
        start = time.perf_counter()
        nodes = [record(add, x) for x in examples]
        return time.perf_counter() - start, nodes

    def recorded(fold: Fold) -> Step:
        seconds, nodes = seconds_and_nodes(fold.add)
        return Step(seconds, lambda: {"values": fold.apply(MODEL, [nodes])[0]})

    def reset() -> Step:
        kept.reset()
        return recorded(kept)

    def new() -> Step:
        return recorded(Fold(backend="numpy", cse=kind.cse))

    def floor() -> Step:
        # The floor computes nothing: its results are those of the plain loop, which the folds must equal.
        return Step(seconds_and_nodes(nothing)[0], lambda: {"values": expected})

    return {"floor": floor, "new": new, "reset": reset}


def measure_operands(
    kinds: Sequence[str],
    *,
    rounds: int = 30,
    seed: int = 0,
    advance: Callable[[str], object] = lambda what: None,
) -> list[Row]:
    """Record calls of each kind of operand, by turns, and return a row for each kind.

    Parameters
    ----------
    kinds : sequence of str
        Names of `KINDS`.
    rounds : int
        How often each way records all calls of a kind.
    seed : int
        Of the examples.
    advance : callable
        Told what runs next.

    Returns
    -------
    Rows with the quartiles of microseconds a call for each of `WAYS`, as ``new_us``.

    Raises
    ------
    RecordError
        For a kind that there is not.
    MismatchError
        If a fold does not return what the plain loop does.

    Examples
    --------
    >>> (row,) = measure_operands(["numbers"], rounds=1)
    >>> row["calls"], row["recorded"], row["floor_us"][1] > 0
    (2000, 2000, True)
    """
    unknown = [name for name in kinds if name not in KINDS]
    if unknown or not kinds:
        raise RecordError(f"Expected operands out of {', '.join(KINDS)}. Received '{', '.join(unknown)}'.")
    return [measure_kind(name, rounds, seed, advance) for name in kinds]


def measure_kind(name: str, rounds: int, seed: int, advance: Callable[[str], object]) -> Row:
    """Return the row of one kind of operand."""
    kind, rng = KINDS[name], Random(seed)
    examples = [kind.draw(rng) for _ in range(CALLS)]
    fold = Fold(backend="numpy", cse=kind.cse)
    for example in examples:
        kind.record(fold.add, example)
    seconds, _ = take_turns(ways_of(kind, examples), rounds, advance=partial(said, advance, name))
    found: Row = {"command": "bench record", "operands": name, "rounds": rounds, "seed": seed}
    found |= {"version": "compiled" if _compiled.in_use else "plain Python"}
    found |= {"calls": len(examples), "recorded": len(fold)}
    for way in WAYS:
        found[f"{way}_us"] = [1e6 * x / len(examples) for x in quartiles(seconds[way][UNTIMED:])]
    return found | {"environment": machine.describe(load_backend("numpy"))}


def said(advance: Callable[[str], object], kind: str, way: str) -> None:
    """Tell what runs next."""
    advance(f"{kind} {way}")
