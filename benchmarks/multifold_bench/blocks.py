"""What a model costs that is said as blocks, beside the same function written by hand.

Four models, each twice: a recursion over trees with two results a call, one over expressions with a case
for each operation, a chain, and a balanced reduction. Both ways must make the same launches and values.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import numpy as np

from multifold import Fold, MismatchError, load_backend, traces
from multifold._compare import machine
from multifold._compare.results import Row
from multifold._compare.timing import UNTIMED, Step, take_turns
from multifold.blocks import Fold as FoldLeft
from multifold.blocks import (
    ForwardDeclaration,
    Function,
    GetItem,
    Map,
    OneOf,
    Record,
    Reduce,
    Scalar,
    Zeros,
)
from multifold_bench.harness import quartiles

WIDTH, LEAVES = 64, 20

Recorder = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class SaidTwice:
    """A model as blocks and by hand, its ops, and what draws an example with a number of leaves."""

    block: Recorder
    by_hand: Recorder
    model: dict[str, Callable[..., Any]]
    draw: Callable[[Random, int], Any]


def tree(rng: Random, leaves: int, names: str = "") -> Any:
    """Draw a binary tree of integers, or of (name, left, right)."""
    if leaves == 1:
        return rng.randrange(9)
    left = rng.randrange(1, leaves)
    sides = tree(rng, left, names), tree(rng, leaves - left, names)
    return (rng.choice(names), *sides) if names else sides


def words(rng: Random, leaves: int) -> list[int]:
    """Draw a sequence of integers."""
    return [rng.randrange(9) for _ in range(leaves)]


def table(seed: int, *shape: int) -> np.ndarray:
    """Return small random numbers."""
    return np.random.default_rng(seed).normal(0, 0.1, shape).astype(np.float32)


EMBEDDED, JOINED = table(0, 9, WIDTH), table(1, 2 * WIDTH, WIDTH)


def join(left: Any, right: Any) -> Any:
    """Return one state of two."""
    return np.tanh(np.concatenate([left, right], axis=1) @ JOINED)


def states() -> SaidTwice:
    """Return a recursion over trees, whose calls return a pair as those of an LSTM do."""
    declared = ForwardDeclaration(output_type=(WIDTH, WIDTH))
    leaf = Scalar("int") >> Function("leaf", out=(WIDTH, WIDTH))
    pair = Record([(0, declared()), (1, declared())]) >> Function("join", out=(WIDTH, WIDTH))
    block = declared.resolve_to(OneOf(type, {int: leaf, tuple: pair})) >> GetItem(0)

    def state(fold: Any, x: Any) -> Any:
        if isinstance(x, int):
            return fold.add("leaf", x).split(2)
        left, right = state(fold, x[0]), state(fold, x[1])
        return fold.add("join", tuple(left), tuple(right)).split(2)

    model: dict[str, Callable[..., Any]] = {
        "leaf": lambda i: (EMBEDDED[i], EMBEDDED[i]),
        "join": lambda left, right: (join(left[0], right[0]), left[1] + right[1]),
    }
    return SaidTwice(block, lambda fold, x: state(fold, x)[0], model, tree)


def expressions() -> SaidTwice:
    """Return a recursion over expressions, with a case for each operation."""
    model: dict[str, Callable[..., Any]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
    declared = ForwardDeclaration(output_type="float")
    sides = Record([(1, declared()), (2, declared())])
    calls = OneOf(GetItem(0), {name: sides >> Function(name, out="float") for name in model})
    block = declared.resolve_to(OneOf(type, {int: Scalar(), tuple: calls}))

    def value(fold: Any, x: Any) -> Any:
        if isinstance(x, int):
            return float(x)
        name, left, right = x
        return fold.add(name, value(fold, left), value(fold, right))

    return SaidTwice(block, value, model, partial(tree, names="+-*"))


def chain() -> SaidTwice:
    """Return a state that is led along a sequence."""
    embedded = Map(Scalar("int") >> Function("leaf", out=WIDTH))
    block = embedded >> FoldLeft(Function("join", out=WIDTH), Zeros(WIDTH))
    zeros = np.zeros((1, WIDTH), np.float32)

    def last(fold: Any, xs: Sequence[int]) -> Any:
        state: Any = zeros
        for word in [fold.add("leaf", x) for x in xs]:
            state = fold.add("join", state, word)
        return state

    return SaidTwice(block, last, {"leaf": lambda i: EMBEDDED[i], "join": join}, words)


def reduction() -> SaidTwice:
    """Return a sequence that is joined by pairs."""
    block = Map(Scalar("int") >> Function("leaf", out=WIDTH)) >> Reduce(Function("join", out=WIDTH))

    def whole(fold: Any, xs: Sequence[int]) -> Any:
        return fold.reduce("join", [fold.add("leaf", x) for x in xs])

    return SaidTwice(block, whole, {"leaf": lambda i: EMBEDDED[i], "join": join}, words)


MODELS: dict[str, Callable[[], SaidTwice]] = {
    "tree": states, "expression": expressions, "chain": chain, "reduction": reduction,
}  # fmt: skip
"""By name."""

WAYS = ("by hand", "blocks")


def measure_blocks(
    batch: int = 64, rounds: int = 30, seed: int = 0, advance: Callable[[str], object] = lambda what: None
) -> list[Row]:
    """Record and run each model both ways, in turns on NumPy, and return a row for each.

    Parameters
    ----------
    batch : int
        Examples of a minibatch, of 20 leaves each.
    rounds : int
        How often each way is timed.
    seed : int
        Of the examples.
    advance : callable
        Told what runs next.

    Returns
    -------
    Rows with the quartiles of microseconds a call, for each of `WAYS`: of recording, ``record_us``, of a
    whole step, ``step_us``, and of making traces, ``traces_us``.

    Raises
    ------
    MismatchError
        If launches or values differ.

    Examples
    --------
    >>> [row["model"] for row in measure_blocks(batch=2, rounds=1)]
    ['tree', 'expression', 'chain', 'reduction']
    """
    return [measure_model(name, batch, rounds, seed, advance) for name in MODELS]


def measure_model(name: str, batch: int, rounds: int, seed: int, advance: Callable[[str], object]) -> Row:
    """Return the row of one model."""
    both, rng = MODELS[name](), Random(seed)
    examples = [both.draw(rng, LEAVES) for _ in range(batch)]
    ways = dict(zip(WAYS, (both.by_hand, both.block), strict=True))
    launches = {}
    for way, fn in ways.items():
        fold = Fold(backend="numpy")
        fold.run(both.model, examples, fn)
        launches[way] = str(fold.schedule())
    if launches["by hand"] != launches["blocks"]:
        raise MismatchError(f"Expected the launches of {name} by hand from its blocks. Received others.")
    found: Row = {"command": "bench record --blocks", "model": name, "batch": batch, "rounds": rounds}
    calls = found["calls"] = calls_of(both.by_hand, examples)
    for what in ("record", "step", "traces"):
        steps = {way: partial(timed, what, fn, both.model, examples) for way, fn in ways.items()}
        seconds, _ = take_turns(steps, rounds, advance=partial(said, advance, f"{name}, {what}"))
        timings = {way: quartiles(times[UNTIMED:]) for way, times in seconds.items()}
        found[f"{what}_us"] = {way: [1e6 * x / calls for x in times] for way, times in timings.items()}
    return found | {"environment": machine.describe(load_backend("numpy"))}


def calls_of(fn: Recorder, examples: Sequence[Any]) -> int:
    """Return how many calls some examples have."""
    fold = Fold(backend="numpy")
    for example in examples:
        fn(fold, example)
    return len(fold)


def said(advance: Callable[[str], object], what: str, way: str) -> None:
    """Tell what runs next."""
    advance(f"{what}, {way}")


def timed(what: str, fn: Recorder, model: Any, examples: Sequence[Any]) -> Step:
    """Record, run or trace the examples once."""
    fold = Fold(backend="numpy")
    start = time.perf_counter()
    if what == "traces":
        made = traces(fn, examples)
        return Step(time.perf_counter() - start, lambda: {"values": fold.run(model, made)})
    if what == "step":
        values = fold.run(model, examples, fn)
        return Step(time.perf_counter() - start, lambda: {"values": values})
    nodes = [fn(fold, example) for example in examples]
    return Step(time.perf_counter() - start, lambda: {"values": fold.apply(model, [nodes])[0]})
