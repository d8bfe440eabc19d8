"""Traces of values of every kind, and a way through a file, for the tests of files and tables."""

from __future__ import annotations

import dataclasses
import enum
import io
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import multifold
from multifold import ragged, shared, trace

pa = pytest.importorskip("pyarrow", reason="files of traces need the extra 'arrow'")
parquet = pytest.importorskip("pyarrow.parquet")


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    width: int
    sizes: list[int]


@dataclasses.dataclass
class Mutable:
    name: str


class Color(enum.Enum):
    RED = 1


class Model:
    @staticmethod
    def double(x: Any) -> Any:
        return 2 * x

    def leaf(self, x: Any) -> Any:
        return x


def triple(x: Any) -> Any:
    return 3 * x


TABLE = np.arange(6.0).reshape(2, 3)


def encode_example(fold: Any, picks: list[int]) -> Any:
    """Record a program with an operand of every kind, as some small integers decide."""
    nodes = [fold.add("leaf", 0.5, scale=2)]
    for pick in picks:
        node = nodes[pick % len(nodes)]
        match pick % 8:
            case 0:
                made = fold.add("leaf", pick / 3, scale=-0.0 if pick % 3 else 2.0)
            case 1:
                made = fold.add("row", np.full((1, pick), 0.25, np.float32))
            case 2:
                made = fold.add("join", node, nodes[-1], by=pick)
            case 3:
                rows = ragged([node, 1.5, np.float64(pick), np.ones(1)])
                made = fold.add("total", node, rows)
            case 4:
                made = fold.add("look", shared(TABLE), pick)
            case 5:
                made = fold.add("pair", {"b": [node, nodes[0]], "a": pick > 4})["sum"]
            case 6:
                made = fold.add("pick", fold.add("table").no_batch(), node)
            case _:
                made = fold.add(np.tanh, node)
        nodes.append(made)
    return {
        "rows": [*nodes, 2.5],
        "pair": Pair(nodes[-1], (nodes[0],)),
        "label": [picks[0]],
        "odd": [picks[0] % 2 == 1],
    }


EXAMPLES = [[7, 2, 3, 4], [1, 6, 5, 9, 3], [0], [16, 10, 11, 8]]


def made(examples: Any = EXAMPLES) -> list[multifold.Trace]:
    return [trace(encode_example, example) for example in examples]


def written(traces: Any, **options: Any) -> list[multifold.Trace]:
    file = io.BytesIO()
    multifold.save(traces, file)
    return multifold.load(file, **options)


relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)
