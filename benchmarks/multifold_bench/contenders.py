"""The other ways to compute a step: by hand, with traces, as a program, compiled by the framework.

`multifold._measure.contenders` has the loop and the fold, and what all of them share: each is
``forward(model, payload) -> logits`` for the same model and the same minibatch. `InProcess` makes a
contender of such a function. DyNet, which needs another Python and another NumPy, is in `dynet_process`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import multifold
from multifold._measure import contenders
from multifold._measure.benchmark import Batch, OneByOne
from multifold._measure.contenders import Forward, Subject
from multifold._measure.timing import Step
from multifold.backend import Array
from multifold.errors import BackendError
from multifold_bench import hand
from multifold_bench.harness import Contender
from multifold_bench.jit import Jit
from multifold_bench.programs import ByProgram


class InProcess(Contender):
    """A contender that runs here, on the arrays of the backend; `contenders.step` times it."""

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

    def prepare(self, minibatch: Batch) -> Any:
        """Make the payload of the examples."""
        return self.payload(minibatch.examples), minibatch.weights

    def step(self, prepared: Any) -> Step:
        """Compute logits, or loss and gradients, to the end."""
        return contenders.step(self.subject, self.forward, *prepared)


def loop(subject: Subject) -> Contender:
    """One example at a time: the program that a person writes first."""
    return InProcess("loop", subject, contenders.loop(subject))


def fold(subject: Subject) -> Contender:
    """Every step is recorded anew, scheduled and run."""
    return InProcess("fold", subject, contenders.fold(subject))


def unfold(subject: Subject) -> Contender:
    """The eager twin of a fold: the same program, every call runs when it is recorded."""
    benchmark, backend, *_ = subject

    def forward(model: Any, examples: Sequence[Any]) -> Array:
        return benchmark.apply(multifold.Unfold(model, backend=backend), None, examples)

    return InProcess("unfold", subject, forward)


def refuse_rounds(subject: Subject, name: str) -> None:
    """Refuse a contender that needs all calls before any is run, where values decide what is called."""
    if subject.benchmark.in_rounds:
        raise BackendError(
            f"Expected calls that are known before any is run, for the contender '{name}'. They depend on "
            "values here.",
            "give --contenders loop,fold.",
        )


def fold_traced(subject: Subject) -> Contender:
    """Traces of the examples are there already, made once per data set; a step merges and runs them."""
    benchmark, backend, *_ = subject
    refuse_rounds(subject, "fold-traced")

    def payload(examples: Sequence[Any]) -> Any:
        return [multifold.trace(benchmark.record, example) for example in examples]

    def forward(model: Any, traces: Sequence[Any]) -> Array:
        return multifold.Fold(backend=backend).run(model, traces)

    return InProcess("fold-traced", subject, forward, payload)


def fold_program(subject: Subject) -> Contender:
    """The schedule as data, in shapes that repeat."""
    refuse_rounds(subject, "fold-program")
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
    benchmark, backend, *_ = subject

    def forward(model: Any, examples: Sequence[Any]) -> Array:
        example = benchmark.stack(examples)
        if example is None:
            raise BackendError(
                "Expected examples of one structure for the contender 'stacked'. Received different ones.",
                "take 'hand' or 'fold'.",
            )
        return benchmark.loop(OneByOne(backend, model), example)

    return InProcess("stacked", subject, forward)


def by_hand(subject: Subject, name: str = "hand", suffix: str = "") -> Contender:
    """Level batching, written by hand for the framework."""
    program = hand.find(subject.backend, subject.benchmark.family + suffix)
    width = subject.benchmark.width
    return InProcess(name, subject, lambda model, examples: program(model, examples, width))


def by_hand_frontier(subject: Subject) -> Contender:
    """Level batching that carries only the states on that are still to be read: for trees."""
    return by_hand(subject, "hand-frontier", "_frontier")


CONTENDERS: Mapping[str, Callable[[Subject], Contender]] = {
    "loop": loop,
    "loop-jit": jitted(loop),
    "stacked": stacked,
    "unfold": unfold,
    "hand": by_hand,
    "hand-frontier": by_hand_frontier,
    "fold": fold,
    "fold-jit": jitted(fold),
    "fold-traced": fold_traced,
    "fold-program": fold_program,
}
"""Those that run in this process, by name."""

ABOUT = {
    "loop": "one example at a time",
    "hand": "batched by hand, as a careful engineer writes it for that framework",
    "hand-frontier": "the same, carrying on only the states that are still to be read: for trees",
    "stacked": "the plain program once on all examples, where they have one structure",
    "fold": "records, schedules and runs, anew each time",
    "fold-traced": "merges traces, which were made once, and runs",
    "fold-program": "the schedule as data: one compiled function (JAX, TensorFlow), or tiles (PyTorch)",
    "dynet": "DyNet with automatic batching, in a process of its own",
}
"""What a contender does in a step."""


def about(name: str) -> str:
    """Return what a contender does in a step.

    Examples
    --------
    >>> about("fold-jit")
    'records, schedules and runs, anew each time; each op compiled by the framework'
    """
    if name.endswith("-jit"):
        return f"{about(name.removesuffix('-jit'))}; each op compiled by the framework"
    return ABOUT.get(name, "the recording code, each call at once")
