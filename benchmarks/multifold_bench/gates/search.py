"""Gate (d): games whose search awaits one op for each simulation, beside a loop in lockstep by hand.

The loop is the best that a person would write without multifold: each game is a generator that yields what
it wants evaluated and is sent the result. A round asks all games, puts what they want together, evaluates
it as one batch, and hands out the rows. What a fold takes beyond that is the price of its comfort.
"""

# ruff: noqa: D102 - what a sort of game overrides is documented once, at Search

from __future__ import annotations

import abc
import contextlib
import importlib.util
import random
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import multifold
from multifold_bench.gates.figures import Figure, Line, Numbers, Results, Step, share, sums, timed

GAMES = 32

Asking = Generator[Any, Any, Any]
"""A game in lockstep: it yields a request and is sent the result."""


def example() -> Any:
    """Return the module ``examples/tree_search.py`` of the checkout that this package is in."""
    path = Path(__file__).resolve().parents[3] / "examples" / "tree_search.py"
    spec = importlib.util.spec_from_file_location("tree_search", path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"Expected a module at {path}.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_lockstep(games: Sequence[Asking], evaluate: Callable[[list[Any]], Sequence[Any]]) -> list[Any]:
    """Run games by rounds; ``evaluate(requests) -> results``. Return what each game returns."""
    returned = [None] * len(games)
    waiting = list(enumerate(games))
    sent: Sequence[Any] = [None] * len(games)
    while waiting:
        asking = []
        requests = []
        for (number, game), result in zip(waiting, sent, strict=True):
            try:
                requests.append(game.send(result))
            except StopIteration as stop:
                returned[number] = stop.value
            else:
                asking.append((number, game))
        waiting = asking
        sent = evaluate(requests) if requests else []
    return returned


class Search(abc.ABC):
    """A sort of game, in the two ways.

    Parameters
    ----------
    simulations : int
        How many requests a game makes, or a few less.

    Attributes
    ----------
    model : torch.nn.Module
        Its ops are what the games await.
    """

    model: Any

    @abc.abstractmethod
    def __init__(self, simulations: int) -> None: ...

    @abc.abstractmethod
    def start(self, rng: random.Random) -> Any:
        """Draw what a game begins with."""

    @abc.abstractmethod
    async def play(self, fold: Any, start: Any) -> dict[str, Any]:
        """Play one game with a fold; return its ``"score"`` and the nodes that it awaited."""

    @abc.abstractmethod
    def play_in_lockstep(self, start: Any) -> Asking:
        """Play one game in lockstep; return its score."""

    @abc.abstractmethod
    def evaluate(self, requests: list[Any]) -> tuple[Sequence[Any], Any]:
        """Return the results of some requests, and the tensor that a loss reads of them."""


class Idle(Search):
    """Games whose op does next to nothing, so that all that is left is the price of a request."""

    def __init__(self, simulations: int) -> None:
        import torch

        class Scale(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.factor = torch.nn.Parameter(torch.tensor(0.5))

            def forward(self, x: Any) -> Any:
                return x * self.factor

        self.torch = torch
        self.model = Scale()
        self.simulations = simulations

    def start(self, rng: random.Random) -> float:
        return rng.random()

    async def play(self, fold: Any, start: float) -> dict[str, Any]:
        x = start
        nodes = []
        for _ in range(self.simulations):
            node = fold.add("forward", x)
            nodes.append(node)
            x = 1.0 + await fold.value(node)
        return {"score": x, "awaited": nodes}

    def play_in_lockstep(self, start: float) -> Asking:
        x = start
        for _ in range(self.simulations):
            x = 1.0 + (yield x)
        return x

    def evaluate(self, requests: list[float]) -> tuple[list[float], Any]:
        results = self.model(self.torch.tensor(requests))
        return results.tolist(), results


class ConnectFour(Search):
    """The searches of ``examples/tree_search.py``, from positions some random moves into a game."""

    def __init__(self, simulations: int) -> None:
        import torch

        torch.manual_seed(0)
        self.torch = torch
        self.example = example()
        self.model = self.example.Network()
        self.simulations = simulations

    def start(self, rng: random.Random) -> Any:
        position = self.example.START
        for _ in range(6):  # the seventh stone is the first that can win
            position = self.example.play(position, rng.choice(self.example.moves(position)))
        return position

    async def play(self, fold: Any, start: Any) -> dict[str, Any]:
        tree = self.example.Tree(start)
        nodes = []
        for _ in range(self.simulations):
            path = tree.descend()
            value = self.example.outcome(path[-1])
            if value is None:
                node = fold.add("value", self.example.picture(path[-1]))
                nodes.append(node)
                value = await fold.value(node)
            tree.learn(path, value)
        return {"score": tree.best(), "awaited": nodes}

    def play_in_lockstep(self, start: Any) -> Asking:
        tree = self.example.Tree(start)
        for _ in range(self.simulations):
            path = tree.descend()
            value = self.example.outcome(path[-1])
            if value is None:
                value = yield self.example.picture(path[-1])
            tree.learn(path, value)
        return tree.best()

    def evaluate(self, requests: list[Any]) -> tuple[list[float], Any]:
        results = self.model.value(self.torch.cat(requests))
        return results.tolist(), results


class TwoOutputs(Search):
    """Games over arrays, with a small convolutional network that returns a policy and a value."""

    def __init__(self, simulations: int) -> None:
        import torch

        class Network(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.body = torch.nn.Sequential(
                    *(torch.nn.Conv2d(2, 16, 3, padding=1), torch.nn.ReLU()),
                    *(torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten()),
                )
                self.policy = torch.nn.Linear(16 * 7 * 6, 7)
                self.worth = torch.nn.Linear(16 * 7 * 6, 1)

            def look(self, pictures: Any) -> Any:
                seen = self.body(pictures)
                return torch.softmax(self.policy(seen), dim=1), torch.tanh(self.worth(seen))[:, 0]

        torch.manual_seed(0)
        self.torch = torch
        self.model = Network()
        self.pictures = list(torch.randn(64, 2, 7, 6).split(1))
        self.simulations = simulations

    def start(self, rng: random.Random) -> int:
        return rng.randrange(64)

    async def play(self, fold: Any, start: int) -> dict[str, Any]:
        place = start
        total = 0.0
        nodes = []
        for step in range(self.simulations):
            node = fold.add("look", self.pictures[place])
            nodes.append(node[1])
            policy, value = await fold.value(node)
            place = (7 * step + int(policy.argmax()) + start) % 64
            total += value
        return {"score": total, "awaited": nodes}

    def play_in_lockstep(self, start: int) -> Asking:
        place = start
        total = 0.0
        for step in range(self.simulations):
            policy, value = yield self.pictures[place]
            place = (7 * step + int(policy.argmax()) + start) % 64
            total += value
        return total

    def evaluate(self, requests: list[Any]) -> tuple[list[Any], Any]:
        policies, values = self.model.look(self.torch.cat(requests))
        return list(zip(policies.detach().numpy(), values.tolist(), strict=True)), values


def search_step(kind: type[Search], simulations: int, gradients: bool, quick: bool) -> Step:
    """Return what plays the games of a repetition in both ways.

    With gradients, all results that a game awaited go into a loss, so both ways must keep them.
    """
    import torch

    search = kind(simulations // 4 if quick else simulations)
    parameters = list(search.model.parameters())
    sizes: list[int] = []

    async def play(fold: Any, start: Any) -> dict[str, Any]:
        found = await search.play(fold, start)
        return found if gradients else {"score": found["score"]}

    def folded(starts: Sequence[Any]) -> tuple[Any, Any]:
        found = multifold.Fold(backend="torch").run(search.model, starts, play)
        return found["score"], found.get("awaited")

    def by_hand(starts: Sequence[Any]) -> tuple[Any, Any]:
        kept = []

        def evaluate(requests: list[Any]) -> Sequence[Any]:
            sizes.append(len(requests))
            results, rows = search.evaluate(requests)
            if gradients:
                kept.append(rows)
            return results

        scores = in_lockstep([search.play_in_lockstep(start) for start in starts], evaluate)
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
                found = torch.autograd.grad(awaited.sum(), parameters, allow_unused=True)
                together = [sums(x.numpy()) for x in found if x is not None]
                results[name] |= {
                    "awaited": sums(awaited.detach().numpy()),
                    "gradients": np.array(together),
                }
        return numbers, results

    return step


def beyond_lockstep(found: Mapping[str, float]) -> float:
    """Return the microseconds a request that a fold takes beyond the loop."""
    return 1e6 * (found["fold"] - found["lockstep"]) / found["requests"]


def figure(name: str, kind: type[Search], simulations: int, gradients: bool, most: float | None) -> Figure:
    """Return a figure of gate (d)."""
    beyond, ratio = (None, most) if kind is TwoOutputs else (most, None)
    lines = (
        Line("a request beyond lockstep", beyond_lockstep, "us", most=beyond),
        share("fold", "lockstep", most=ratio),
    )
    name = f"search, {name}, {'with gradients' if gradients else 'inference'}"
    return Figure("d", name, "torch", partial(search_step, kind, simulations, gradients), lines)


FIGURES = [
    figure("an idle op", Idle, 200, False, 7),
    figure("an idle op", Idle, 200, True, 14),
    figure("the example's network", ConnectFour, 24, False, None),
    figure("the example's network", ConnectFour, 24, True, None),
    figure("two outputs of a small network", TwoOutputs, 60, False, 1.4),
]
