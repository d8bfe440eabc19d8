"""Gate (d): games whose search awaits one op for each simulation, beside a loop in lockstep by hand.

The loop is the best that a person would write without multifold: each game is a generator that yields what
it wants evaluated and is sent the result. A round asks all games, puts what they want together, evaluates
it as one batch, and hands out the rows. What a fold takes beyond that is its price.
"""

from __future__ import annotations

import contextlib
import importlib.util
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import multifold
from multifold_bench.gates.figures import Figure, Line, Numbers, Results, Step, share, sums, timed

GAMES = 32

Asking = Generator[Any, Any, Any]
"""A game in lockstep: it yields a request, is sent the result, and returns its score."""


class Search(NamedTuple):
    """A sort of game, in the two ways.

    Attributes
    ----------
    model : torch.nn.Module
        Its op ``evaluate`` is what the games await.
    start : callable
        ``start(rng)`` draws what a game begins with.
    search : callable
        ``search(start)`` plays a game in lockstep. With a fold, the same generator is driven.
    put_together : callable
        Makes the operand of a batch of the requests of a round.
    rows : callable
        Makes the results, on the host, of what the op returned for them.
    """

    model: Any
    start: Callable[[random.Random], Any]
    search: Callable[[Any], Asking]
    put_together: Callable[[list[Any]], Any]
    rows: Callable[[Any], Sequence[Any]]


def idle(simulations: int) -> Search:
    """Return games whose op does next to nothing, so that what is left is the price of a request."""
    import torch

    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor(0.5))

        def evaluate(self, x: Any) -> Any:
            return x * self.factor

    def search(start: float) -> Asking:
        x = start
        for _ in range(simulations):
            x = 1.0 + (yield x)
        return x

    return Search(Scale(), random.Random.random, search, torch.tensor, lambda found: found.tolist())


def connect_four(simulations: int) -> Search:
    """Return the searches of ``examples/tree_search.py``, some random moves into a game."""
    import torch

    path = Path(__file__).resolve().parents[3] / "examples" / "tree_search.py"
    spec = importlib.util.spec_from_file_location("tree_search", path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"Expected a module at {path}.")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    torch.manual_seed(0)
    model = example.Network()
    model.evaluate = model.value

    def start(rng: random.Random) -> Any:
        position = example.START
        for _ in range(6):  # the seventh stone is the first that can win
            position = example.play(position, rng.choice(example.moves(position)))
        return position

    def search(start: Any) -> Asking:
        tree = example.Tree(start)
        for _ in range(simulations):
            path = tree.descend()
            value = example.outcome(path[-1])
            if value is None:
                value = yield example.picture(path[-1])
            tree.learn(path, value)
        return tree.best()

    return Search(model, start, search, torch.cat, lambda found: found.tolist())


def two_outputs(simulations: int) -> Search:
    """Return games over arrays, with a small convolutional network that returns a policy and a value."""
    import torch

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Sequential(
                *(torch.nn.Conv2d(2, 32, 4, padding=2), torch.nn.ReLU()),
                *(torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten()),
                *(torch.nn.Linear(32 * 8 * 7, 64), torch.nn.ReLU()),
            )
            self.policy = torch.nn.Linear(64, 7)
            self.worth = torch.nn.Linear(64, 1)

        def evaluate(self, pictures: Any) -> Any:
            seen = self.body(pictures)
            return torch.softmax(self.policy(seen), dim=1), torch.tanh(self.worth(seen))[:, 0]

    torch.manual_seed(0)
    pictures = list(torch.randn(64, 2, 7, 6).split(1))

    def search(start: int) -> Asking:
        place = start
        total = 0.0
        for step in range(simulations):
            policy, value = yield pictures[place]
            place = (7 * step + int(policy.argmax()) + start) % 64
            total += value
        return total

    def rows(found: Any) -> Sequence[Any]:
        policies, values = found
        return list(zip(policies.numpy(), values.tolist(), strict=True))

    return Search(Network(), lambda rng: rng.randrange(64), search, torch.cat, rows)


def in_lockstep(games: Sequence[Asking], evaluate: Callable[[list[Any]], Sequence[Any]]) -> list[Any]:
    """Run games by rounds; ``evaluate(requests) -> results``. Return the score of each game."""
    scores = [None] * len(games)
    waiting = list(enumerate(games))
    sent: Sequence[Any] = [None] * len(games)
    while waiting:
        asking = []
        requests = []
        for (number, game), result in zip(waiting, sent, strict=True):
            try:
                requests.append(game.send(result))
            except StopIteration as stop:
                scores[number] = stop.value
            else:
                asking.append((number, game))
        waiting = asking
        sent = evaluate(requests) if requests else []
    return scores


def search_step(make: Callable[[int], Search], simulations: int, gradients: bool, quick: bool) -> Step:
    """Return what plays the games of a repetition in both ways.

    With gradients, all results that games awaited go into a loss, so both ways must keep them.
    """
    import torch

    search = make(simulations // 4 if quick else simulations)
    parameters = list(search.model.parameters())
    sizes: list[int] = []

    async def play(fold: Any, start: Any) -> dict[str, Any]:
        game = search.search(start)
        nodes: list[Any] = []
        result = None
        while True:
            try:
                request = game.send(result)
            except StopIteration as stop:
                return {"score": stop.value} | ({"awaited": nodes} if gradients else {})
            node = fold.add("evaluate", request)
            if gradients:
                nodes.append(node)
            result = await fold.value(node)

    def folded(starts: Sequence[Any]) -> tuple[Any, Any]:
        found = multifold.Fold(backend="torch").run(search.model, starts, play)
        return found["score"], found.get("awaited")

    def by_hand(starts: Sequence[Any]) -> tuple[Any, Any]:
        kept = []

        def evaluate(requests: list[Any]) -> Sequence[Any]:
            sizes.append(len(requests))
            found = search.model.evaluate(search.put_together(requests))
            if gradients:
                kept.append(found)
            return search.rows(found)

        scores = in_lockstep([search.search(start) for start in starts], evaluate)
        return scores, torch.cat(kept) if gradients else None

    def step(number: int) -> tuple[Numbers, Results]:
        rng = random.Random(number)
        starts = [search.start(rng) for _ in range(GAMES)]
        sizes.clear()
        numbers: Numbers = {}
        results: Results = {}
        for name, way in (("fold", folded), ("lockstep", by_hand)):
            with contextlib.nullcontext() if gradients else torch.no_grad():
                numbers[name], (scores, awaited) = timed(partial(way, starts))
            results[name] = {"scores": np.array(scores, np.float64)}
            if awaited is not None:
                found = torch.autograd.grad(awaited.sum(), parameters)
                results[name]["awaited"] = sums(awaited.detach().numpy())
                results[name]["gradients"] = np.array([sums(x.numpy()) for x in found])
        return numbers | {"requests": sum(sizes)}, results

    return step


def beyond_lockstep(found: Mapping[str, float]) -> float:
    """Return the microseconds a request that a fold takes beyond the loop."""
    return 1e6 * (found["fold"] - found["lockstep"]) / found["requests"]


def figure(
    name: str,
    make: Callable[[int], Search],
    simulations: int,
    gradients: bool,
    beyond: float | None = None,
    ratio: float | None = None,
) -> Figure:
    """Return a figure of gate (d)."""
    lines = (
        Line("a request beyond lockstep", beyond_lockstep, "us", most=beyond),
        share("fold", "lockstep", most=ratio),
    )
    name = f"search, {name}, {'with gradients' if gradients else 'inference'}"
    return Figure("d", name, "torch", partial(search_step, make, simulations, gradients), lines)


FIGURES = [
    figure("an idle op", idle, 200, gradients=False, beyond=7),
    figure("an idle op", idle, 200, gradients=True, beyond=14),
    figure("the example's network", connect_four, 24, gradients=False),
    figure("the example's network", connect_four, 24, gradients=True),
    figure("two outputs of a network", two_outputs, 60, gradients=False, ratio=1.4),
]
