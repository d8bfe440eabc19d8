"""Loops of PyTorch: models as they are published, one example a call."""

# ruff: noqa: D101, D102 - the models are the known ones, and their methods say what they compute

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import multifold
from multifold import ops
from multifold._measure.workloads import BinaryTree, Branch
from multifold.backend import Ragged
from multifold_bench.datasets.plans import QueryPlan
from multifold_bench.examples import binary_tree
from multifold_bench.graphs.base import CHARACTERS, CLASSES, WORDS
from multifold_bench.graphs.control import sample_dag
from multifold_bench.graphs.sequences import sample_tagged
from multifold_bench.graphs.trees import sentence_tree
from multifold_bench.loops import PlainLoop
from multifold_bench.pairs import dependencies
from multifold_bench.typed import ABOVE, JOINS, SCANS, plan


def seeded(kind: type[nn.Module], width: int) -> Any:
    """Return a model, the same one each time."""
    torch.manual_seed(0)
    return kind(width)


def index(number: int) -> Tensor:
    """Return a number as a batch of one."""
    return torch.tensor([number])


class TreeLSTM(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 2 * width)
        self.gates = nn.Linear(2 * width, 5 * width)
        self.output = nn.Linear(width, CLASSES)

    def leaf(self, word: Tensor) -> tuple[Tensor, ...]:
        return self.embed(word).chunk(2, dim=1)

    def compose(self, left_h: Tensor, left_c: Tensor, right_h: Tensor, right_c: Tensor) -> Any:
        i, left, right, o, u = self.gates(torch.cat([left_h, right_h], dim=1)).chunk(5, dim=1)
        c = torch.sigmoid(i) * torch.tanh(u)
        c = c + torch.sigmoid(left) * left_c + torch.sigmoid(right) * right_c
        return torch.sigmoid(o) * torch.tanh(c), c

    def encode(self, tree: BinaryTree) -> Any:
        if tree.left is None:
            return self.leaf(index(tree.word))
        return self.compose(*self.encode(tree.left), *self.encode(tree.right))

    def forward(self, tree: BinaryTree) -> Tensor:
        return self.output(self.encode(tree)[0])


def trees(width: int, count: int) -> PlainLoop:
    """A binary Tree-LSTM, with its output at the root."""
    rng = np.random.default_rng(0)
    model = seeded(TreeLSTM, width)

    def encode(fold: Any, tree: BinaryTree) -> Any:
        if tree.left is None:
            return fold.add("leaf", tree.word).split(2)
        return fold.add("compose", *encode(fold, tree.left), *encode(fold, tree.right)).split(2)

    def record(fold: Any, tree: BinaryTree) -> Any:
        return fold.add("output", encode(fold, tree)[0])

    return PlainLoop(model, record, model, [binary_tree(sentence_tree(rng)) for _ in range(count)])


class DependencyLSTM(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(2255, width)
        self.inputs = nn.Linear(width, 4 * width)
        self.gates = nn.Linear(width, 3 * width, bias=False)
        self.keeps = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, CLASSES)

    def state(self, inputs: Tensor, gates: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        i, o, u = (inputs + gates).chunk(3, dim=1)
        c = torch.sigmoid(i) * torch.tanh(u) + kept
        return torch.sigmoid(o) * torch.tanh(c), c

    def node(self, word: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        own, keep = self.inputs(self.embed(word)).split([3 * self.width, self.width], dim=1)
        kept = torch.sum(torch.sigmoid(keep + self.keeps(h)) * c, dim=0, keepdim=True)
        return self.state(own, self.gates(torch.sum(h, dim=0, keepdim=True)), kept)

    def nodes(self, word: Tensor, h: Ragged, c: Ragged) -> tuple[Tensor, Tensor]:
        own, keep = self.inputs(self.embed(word)).split([3 * self.width, self.width], dim=1)
        keeps = torch.sigmoid(keep[h.segment_ids] + self.keeps(h.values))
        kept = ops.segment_sum(keeps * c.values, c)
        return self.state(own, self.gates(ops.segment_sum(h.values, h)), kept)

    def encode(self, tree: Branch) -> tuple[Tensor, Tensor]:
        states = [self.encode(child) for child in tree.children]
        if not states:
            states = [(torch.zeros(1, self.width), torch.zeros(1, self.width))]
        h, c = (torch.cat(parts) for parts in zip(*states, strict=True))
        return self.node(index(tree.word), h, c)

    def forward(self, tree: Branch) -> Tensor:
        return self.output(self.encode(tree)[0])


def child_sum(width: int, count: int) -> PlainLoop:
    """A child-sum Tree-LSTM over dependency trees, with its output at the root."""
    rng = np.random.default_rng(0)
    model = seeded(DependencyLSTM, width)
    row = (width,), np.float32

    def encode(fold: Any, tree: Branch) -> Any:
        states = [encode(fold, child) for child in tree.children]
        h, c = (multifold.ragged([x[part] for x in states], *row) for part in (0, 1))
        return fold.add("nodes", tree.word, h, c).split(2)

    def record(fold: Any, tree: Branch) -> Any:
        return fold.add("output", encode(fold, tree)[0])

    return PlainLoop(model, record, model, [dependencies(rng) for _ in range(count)])


class Tagger(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.right = nn.LSTMCell(width, width)
        self.left = nn.LSTMCell(width, width)
        self.output = nn.Linear(2 * width, CLASSES)
        self.register_buffer("zeros", torch.zeros(1, width))

    def start(self) -> tuple[Tensor, Tensor]:
        return self.zeros, self.zeros

    def tag(self, right: Tensor, left: Tensor) -> Tensor:
        return self.output(torch.cat([right, left], dim=1))

    def step_right(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return self.right(x, (h, c))

    def step_left(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        return self.left(x, (h, c))

    def forward(self, words: Sequence[int]) -> Tensor:
        vectors = [self.embed(index(word)) for word in words]
        rights, lefts = [], []
        h, c = self.zeros, self.zeros
        for x in vectors:
            h, c = self.step_right(x, h, c)
            rights.append(h)
        h, c = self.zeros, self.zeros
        for x in reversed(vectors):
            h, c = self.step_left(x, h, c)
            lefts.append(h)
        return torch.cat([self.tag(*pair) for pair in zip(rights, reversed(lefts), strict=True)])


def tagger(width: int, count: int) -> PlainLoop:
    """An LSTM in each direction, and scores for each word."""
    rng = np.random.default_rng(0)
    model = seeded(Tagger, width)

    def read(fold: Any, step: str, vectors: Sequence[Any]) -> list[Any]:
        h, c = fold.add("start").split(2)
        states = []
        for x in vectors:
            h, c = fold.add(step, x, h, c).split(2)
            states.append(h)
        return states

    def record(fold: Any, words: Sequence[int]) -> Any:
        vectors = [fold.add("embed", word) for word in words]
        right, left = read(fold, "step_right", vectors), read(fold, "step_left", vectors[::-1])
        return [fold.add("tag", *pair) for pair in zip(right, left[::-1], strict=True)]

    sentences = [[word for word, _ in sample_tagged(rng, 0.0)] for _ in range(count)]
    return PlainLoop(model, record, model, sentences)


class Nested(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(CHARACTERS, width)
        self.spell = nn.GRUCell(width, width)
        self.read = nn.GRUCell(width, width)
        self.output = nn.Linear(width, CLASSES)
        self.begin = nn.Parameter(torch.zeros(1, width))

    def start(self) -> Tensor:
        return self.begin

    def forward(self, words: Sequence[Sequence[int]]) -> Tensor:
        state = self.begin
        for word in words:
            spelled = self.begin
            for character in word:
                spelled = self.spell(self.embed(index(character)), spelled)
            state = self.read(spelled, state)
        return self.output(state)


def nested(width: int, count: int) -> PlainLoop:
    """A GRU over words, each of which a GRU has spelled."""
    rng = np.random.default_rng(0)
    model = seeded(Nested, width)

    def record(fold: Any, words: Sequence[Sequence[int]]) -> Any:
        state = begin = fold.add("start")
        for word in words:
            spelled = begin
            for character in word:
                spelled = fold.add("spell", fold.add("embed", character), spelled)
            state = fold.add("read", spelled, state)
        return fold.add("output", state)

    def spelled() -> list[int]:
        return rng.integers(CHARACTERS, size=rng.integers(1, 10)).tolist()

    texts = [[spelled() for _ in range(rng.integers(2, 16))] for _ in range(count)]
    return PlainLoop(model, record, model, texts)


class TypedGraph(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.layers = nn.ModuleList(nn.Linear((1 + number % 3) * width, width) for number in range(1, 6))
        self.output = nn.Linear(width, CLASSES)

    def mix(self, *states: Tensor, number: int) -> Tensor:
        return torch.tanh(self.layers[number - 1](torch.cat(states, dim=1)))

    def forward(self, calls: Sequence[Sequence[int]]) -> Tensor:
        states: list[Tensor] = []
        for number, *places in calls:
            read = [states[place] for place in places]
            states.append(self.mix(*read, number=number) if read else self.embed(index(len(states))))
        return self.output(states[-1])


def typed(width: int, count: int) -> PlainLoop:
    """Graphs of calls of five types, with an output at the end."""
    rng = np.random.default_rng(0)
    model = seeded(TypedGraph, width)

    def record(fold: Any, calls: Sequence[Sequence[int]]) -> Any:
        states: list[Any] = []
        for number, *places in calls:
            read = [states[place] for place in places]
            made = fold.add("mix", *read, number=number) if read else fold.add("embed", len(states))
            states.append(made)
        return fold.add("output", states[-1])

    return PlainLoop(model, record, model, [sample_dag(rng)[:128] for _ in range(count)])


class PlanNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(1, width))
        self.networks = nn.ModuleDict(
            {
                name: nn.Sequential(
                    nn.Linear(2 + 2 * width, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()
                )
                for name in (*SCANS, *ABOVE, *JOINS)
            }
        )
        self.output = nn.Linear(width, 1)

    def nobody(self) -> Tensor:
        return self.nothing

    def unit(self, fields: Tensor, outer: Tensor, inner: Tensor, *, operator: str) -> Tensor:
        return self.networks[operator](torch.cat([fields, outer, inner], dim=1))

    def encode(self, node: QueryPlan) -> Tensor:
        told = [self.encode(child) for child in node.children]
        outer, inner = (*told, self.nothing, self.nothing)[:2]
        return self.unit(torch.from_numpy(facts(node)), outer, inner, operator=node.operator)

    def forward(self, node: QueryPlan) -> Tensor:
        return self.output(self.encode(node))


def facts(node: QueryPlan) -> np.ndarray:
    """Return what is known of an operator before it runs."""
    known = [node.fields.get(name, 1) for name in ("Plan Rows", "Total Cost")]
    return np.log1p(np.array([known], np.float32))


def plans(width: int, count: int) -> PlainLoop:
    """Query plans with a network for each of a dozen operators."""
    rng = np.random.default_rng(0)
    model = seeded(PlanNet, width)

    def encode(fold: Any, node: QueryPlan, nobody: Any) -> Any:
        told = [encode(fold, child, nobody) for child in node.children]
        outer, inner = (*told, nobody, nobody)[:2]
        return fold.add("unit", facts(node), outer, inner, operator=node.operator)

    def record(fold: Any, node: QueryPlan) -> Any:
        return fold.add("output", encode(fold, node, fold.add("nobody")))

    return PlainLoop(model, record, model, [plan(rng, int(rng.integers(8, 41))) for _ in range(count)])


class Exits(nn.Module):
    def __init__(self, width: int, depth: int = 12) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.exits = nn.ModuleList(nn.Linear(width, CLASSES) for _ in range(depth))

    def enter(self, pixels: Tensor) -> Tensor:
        return torch.relu(self.first(pixels))

    def layer(self, x: Tensor, *, number: int) -> Tensor:
        return x + torch.relu(self.layers[number](x))

    def leave(self, x: Tensor, *, number: int) -> Tensor:
        return torch.softmax(4 * self.exits[number](x), dim=1)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.enter(pixels)
        for number in range(len(self.layers)):
            x = self.layer(x, number=number)
            answer = self.leave(x, number=number)
            if answer.max() >= 0.9:
                break
        return answer


def exits(width: int, count: int) -> PlainLoop:
    """A deep network that each image leaves where an exit is sure of it: each layer looks at values."""
    model = seeded(Exits, width)

    async def record(fold: Any, pixels: Tensor) -> Any:
        x = fold.add("enter", pixels)
        for number in range(len(model.layers)):
            x = fold.add("layer", x, number=number)
            answer = fold.add("leave", x, number=number)
            if (await fold.value(answer)).max() >= 0.9:
                break
        return answer

    return PlainLoop(model, record, model, torch.randn(count, 64).split(1))
