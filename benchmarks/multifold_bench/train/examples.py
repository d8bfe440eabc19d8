"""The examples of a task, recorded once for all epochs, and a digest of them.

A run is refused if its folder holds one with other examples, so the digest covers all that training sees of
them: calls, operands and targets.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import multifold
from multifold._engine.traces.trace import Trace, Vocabulary
from multifold_bench.train.settings import SettingsError
from multifold_bench.train.tasks.task import TrainingTask

OnStep = Callable[[str, int, int], object]
"""``on_step(what, done, total)``: what is being done, and how much of it is."""


class Recorded(NamedTuple):
    """The examples of a part, recorded, and their targets."""

    traces: list[Trace]
    targets: list[np.ndarray]


def record(task: TrainingTask, model: Any, part: str, on_step: OnStep) -> Recorded:
    """Record the examples of a part, once for all epochs; an error gets a note that names its example."""
    examples = task.parts[part]
    found = Recorded([], [])
    for number, example in enumerate(examples):
        try:
            nodes: list[Any] = []

            def recorded(fold: Any, x: Any, nodes: list[Any] = nodes) -> list[Any]:
                nodes += task.record(model, fold, x)
                return nodes

            found.traces.append(multifold.trace(recorded, example))
            target = np.asarray(task.targets(model, example), np.float32)
            if not target.ndim or len(target) != len(nodes):
                raise SettingsError(
                    f"Expected targets with a row for each of {len(nodes)} recorded nodes. Received an "
                    f"array of shape {target.shape}.",
                    "for one node, `target=lambda y: [y]` makes one row.",
                )
            found.targets.append(target)
        except Exception as error:
            error.add_note(f"Raised by example {number} of the part {part}.")
            raise
        on_step(f"recording {part}", number + 1, len(examples))
    return found


def filler(task: TrainingTask, model: Any, part: Recorded) -> Callable[[int], Trace]:
    """Return a function that returns a trace of that many rows: of the shortest example, the last one."""
    example = task.parts["train"][int(np.argmin([len(trace) for trace in part.traces]))]

    @functools.cache
    def fill(rows: int) -> Trace:
        return multifold.trace(lambda fold, x: [task.record(model, fold, x)[-1]] * rows, example)

    return fill


def digest(parts: dict[str, Recorded]) -> str:
    """Return a text that is equal for equal examples, wherever their files lie."""
    state = hashlib.blake2b(digest_size=8)
    vocabularies: dict[int, bytes] = {}
    for part in parts.values():
        for trace, target in zip(*part, strict=True):
            state.update(trace.digest.to_bytes(8, "little") + target.tobytes())
            key = id(trace.vocabulary)
            if key not in vocabularies:  # thousands of traces have a few
                vocabularies[key] = text_of(trace.vocabulary)
            for x in (vocabularies[key], *trace.arrays, *trace.loose):
                array = np.asarray(x)
                state.update(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
        state.update(b"/")
    return state.hexdigest()


def text_of(vocabulary: Vocabulary) -> bytes:
    """Return the ops of a vocabulary with their static arguments, the same in every process."""
    slots = [[(slot.kind.name, repr(slot.value)) for slot in s.slots] for s in vocabulary.signatures]
    ops = [(s.name, sorted(s.static.items())) for s in vocabulary.signatures]
    text = repr((ops, slots, [part.path for part in vocabulary.parts]))
    return re.sub(r" at 0x[0-9a-f]+", "", text).encode()  # where an object is differs from run to run
