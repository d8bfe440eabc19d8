"""The ways to compute a step: one example at a time, by hand, folded, with traces, and DyNet.

Each is ``forward(model, payload) -> logits`` for the same model and the same minibatch; `InProcess` adds
what all of them share, the loss and the gradients. DyNet, which has neither our arrays nor our Python,
is in `dynet_process`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import multifold
from multifold.backend import Array, Backend
from multifold.bench import hand
from multifold.bench.harness import Contender, Step
from multifold.bench.jit import Jit
from multifold.bench.programs import ByProgram
from multifold.bench.task import Minibatch, OneByOne, Task
from multifold.errors import BackendError


class Subject(NamedTuple):
    """What is measured: a task with its model on a backend, with or without gradients."""

    task: Task
    backend: Backend
    model: Any
    train: bool


Forward = Callable[[Any, Any], Array]
"""``forward(model, payload) -> logits`` of shape ``(rows, classes)``."""


class InProcess(Contender):
    """A contender that runs here, on the arrays of the backend.

    The loss is a fixed random weighting of the logits, another one for each minibatch: one operation
    in any framework, so that what is compared is the batching. Gradients are those of all parameters.
    """

    def __init__(
        self,
        name: str,
        subject: Subject,
        forward: Forward,
        payload: Callable[[Sequence[Any]], Any] = lambda examples: examples,
    ) -> None:
        self.name = name
        self.subject = subject
        self.forward = forward
        self.payload = payload

    def prepare(self, minibatch: Minibatch) -> Any:
        """Make the payload of the examples."""
        return self.payload(minibatch.examples), minibatch.weights

    def step(self, prepared: Any) -> Step:
        """Compute logits, or loss and gradients, to the end."""
        payload, weights = prepared
        _, backend, model, train = self.subject
        with contextlib.nullcontext() if train else no_gradients(backend):
            start = time.perf_counter()
            if train:
                kit = backend.kit
                value, gradients = kit.value_and_grad(
                    lambda model: kit.dot(self.forward(model, payload), weights), model
                )
                arrays = {"the loss": value}
                arrays |= {f"the gradient of {name}": x for name, x in gradients.items()}
            else:
                arrays = {"the logits": self.forward(model, payload)}
            backend.synchronize()
            seconds = time.perf_counter() - start
        return Step(seconds, lambda: {name: backend.to_numpy(x) for name, x in arrays.items()})


def no_gradients(backend: Backend) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which a framework's users run inference.

    Only PyTorch records for gradients unless it is told not to.
    """
    if backend.name == "torch":
        import torch

        return torch.no_grad()
    return contextlib.nullcontext()


def loop(subject: Subject) -> Contender:
    """One example at a time: the program that a person writes first."""
    task, backend, *_ = subject

    def forward(model: Any, examples: Sequence[Any]) -> Array:
        one = OneByOne(backend, model)
        rows = [task.loop(one, example) for example in examples]
        return backend.concat(rows) if len(rows) > 1 else rows[0]

    return InProcess("loop", subject, forward)


def fold(subject: Subject) -> Contender:
    """Every step is recorded anew, scheduled and run."""
    task, backend, *_ = subject

    def forward(model: Any, examples: Sequence[Any]) -> Array:
        recorder = multifold.Fold(backend=backend)
        return task.apply(recorder, model, examples)

    return InProcess("fold", subject, forward)


def unfold(subject: Subject) -> Contender:
    """The eager twin of a fold: the same program, every call runs when it is recorded."""
    task, backend, *_ = subject

    def forward(model: Any, examples: Sequence[Any]) -> Array:
        return task.apply(multifold.Unfold(model, backend=backend), None, examples)

    return InProcess("unfold", subject, forward)


def fold_traced(subject: Subject) -> Contender:
    """Traces of the examples are there already, made once per data set; a step merges and runs them."""
    task, backend, *_ = subject

    def payload(examples: Sequence[Any]) -> Any:
        return [multifold.trace(task.record, example) for example in examples]

    def forward(model: Any, traces: Sequence[Any]) -> Array:
        return multifold.Fold(backend=backend).run(model, traces)

    return InProcess("fold-traced", subject, forward, payload)


def fold_program(subject: Subject) -> Contender:
    """The schedule as data, in one function that is compiled once."""
    return ByProgram(*subject)


def jitted(plain: Callable[[Subject], Contender]) -> Callable[[Subject], Contender]:
    """Return what makes a contender whose ops the framework compiles."""

    def make(subject: Subject) -> Contender:
        contender: Any = plain(subject)
        jit = Jit(subject.backend, subject.model, rows_vary=contender.name != "loop")
        forward = contender.forward
        contender.forward = lambda model, payload: forward(jit(model), payload)
        contender.name += "-jit"
        return contender

    return make


def stacked(subject: Subject) -> Contender:
    """The plain program once, on all examples: where they have one structure, batching by hand is that."""
    task, backend, *_ = subject

    def forward(model: Any, examples: Sequence[Any]) -> Array:
        example = task.stack(examples)
        if example is None:
            raise BackendError(
                "Expected examples of one structure for the contender 'stacked'. Received different ones.",
                "take 'hand' or 'fold'.",
            )
        return task.loop(OneByOne(backend, model), example)

    return InProcess("stacked", subject, forward)


def by_hand(subject: Subject, name: str = "hand", suffix: str = "") -> Contender:
    """Level batching, written by hand for the framework."""
    program, width = hand.find(subject.backend, subject.task.kind + suffix), subject.task.width
    return InProcess(name, subject, lambda model, examples: program(model, examples, width))


def by_hand_cat(subject: Subject) -> Contender:
    """Level batching as most people write it: growing states, and a gather for each operand.

    It is there to be compared with ``hand``: a bar that was measured against growing states is not one
    against slabs. PyTorch and NumPy have it. In MXNet and TensorFlow, where autograd does not follow
    writes into a slab, ``hand`` itself grows.
    """
    return by_hand(subject, "hand-cat", "_cat")


def by_hand_frontier(subject: Subject) -> Contender:
    """Level batching that carries only the states on that are still to be read: for trees."""
    return by_hand(subject, "hand-frontier", "_frontier")


CONTENDERS: Mapping[str, Callable[[Subject], Contender]] = {
    "loop": loop,
    "loop-jit": jitted(loop),
    "stacked": stacked,
    "unfold": unfold,
    "hand": by_hand,
    "hand-cat": by_hand_cat,
    "hand-frontier": by_hand_frontier,
    "fold": fold,
    "fold-jit": jitted(fold),
    "fold-traced": fold_traced,
    "fold-program": fold_program,
}
"""Those that run in this process, by name."""
