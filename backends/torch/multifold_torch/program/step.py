"""`ProgramStep`: a step over programs, forward and backward, which a card replays as a graph for each form.

All programs of a form run the same operations on the same shapes. So a step keeps buffers for each form,
copies what is different into them (integers, numbers, labels), and runs over the buffers: on a card, after
a few runs, by replaying a graph of them. The runs before are steps like any other.

A graph writes where it wrote when it was captured. Gradients therefore lie in buffers that all graphs of a
step share, and these become the ``.grad`` of the parameters. Results are copies.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Hashable, Sequence
from typing import Any, final

import optree
import torch

from multifold.errors import LaunchError, type_of
from multifold.program import Program, refuse_no_program, resolve_ops
from multifold_torch.backend import TorchBackend, state_of
from multifold_torch.kit import tensors
from multifold_torch.program import graphs, refuse_other, run, run_tiles
from multifold_torch.program.feed import Feed
from multifold_torch.program.witness import Witness, behind, edge_of
from multifold_torch.trials import generators

RUNS_BEFORE = 3
"""How many steps of a form run before one is captured, as in PyTorch's example; see `graphs`."""


@final
class ProgramStep:
    """A step of training or inference over programs: ``ProgramStep(model, loss)(program, labels)``.

    Parameters
    ----------
    model : object
        Where op names are looked up.
    loss : callable, optional
        ``loss(results, *inputs)`` returns a scalar tensor, or a tuple that begins with one. Its gradient is
        added to the ``.grad`` of all that it depends on, as ``backward()`` does. Without a loss a step
        returns the results of the program, without gradients.

    Notes
    -----
    On a card the fourth step of each form is captured, and replayed from then on. So nothing in ``loss``
    and in the ops may depend on values, or on Python that changes from step to step. The modes of modules,
    autocast, and parameters that were replaced are looked at. Where a step cannot be captured it runs as on
    a CPU, and a warning says why.

    Examples
    --------
    >>> import multifold, torch
    >>> fold = multifold.Fold(backend="torch")
    >>> model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(10, 4), "score": torch.nn.Linear(4, 2)})
    >>> traces = multifold.traces(lambda f, word: f.add("score", f.add("embed", word)), [1, 2, 3])
    >>> step = ProgramStep(model, torch.nn.functional.cross_entropy)
    >>> step(fold.program(traces), torch.tensor([0, 1, 1])).shape, model["score"].bias.grad.shape
    (torch.Size([]), torch.Size([2]))
    """

    def __init__(self, model: Any, loss: Callable[..., Any] | None = None) -> None:
        self.model = model
        self.loss = loss
        self.forms: dict[Hashable, FormStep] = {}
        self.leaves: list[torch.Tensor] = []
        self.gradients: dict[torch.Tensor, torch.Tensor] = {}

    def __call__(self, program: Program, *inputs: torch.Tensor) -> Any:
        """Run one step: forward, and backward if there is a loss.

        Parameters
        ----------
        program : Program
            Made by `multifold.Fold.program` of a fold with ``backend="torch"``.
        inputs : tensors
            What the loss takes besides the results.

        Returns
        -------
        What ``loss`` returned, or the results; detached copies.
        """
        refuse_no_program(program)
        for x in inputs:
            if not isinstance(x, torch.Tensor) or x.requires_grad:
                raise LaunchError(
                    f"Expected inputs of a step to be tensors without a gradient. Received {type_of(x)}.",
                    "let the loss close over what does not change from step to step.",
                )
        if program.unfit is not None:
            return self.compute(lambda: run(self.model, program), inputs)
        refuse_other(program.form)
        backend = TorchBackend()
        feed = Feed(program)
        if feed.tensors:  # they are new in each program, and may have gradients
            return self.compute(lambda: run(self.model, program), inputs)
        shapes = tuple((x.shape, x.dtype, x.device) for x in inputs)
        key = program.form, feed.layout, shapes, backend.context(), backend.modes([self.model])
        state = self.state()
        own = self.forms.get(key)
        if own is None or own.state != state:
            own = self.forms[key] = FormStep(self, program, feed, inputs, state)
        return own(program, feed, inputs)

    def state(self) -> Hashable:
        """Return (address, whether it needs a gradient) of each tensor of the model.

        A captured graph relies on them.
        """
        module = isinstance(self.model, torch.nn.Module)
        found = state_of(self.model) if module else tensors(self.model).values()
        return tuple((x.data_ptr(), x.requires_grad) for x in found)

    def compute(self, results: Callable[[], Any], inputs: Sequence[torch.Tensor]) -> Any:
        """Run ``results()``, the loss of what it returns, and its backward pass; return the loss, detached.

        Without a loss return the results. ``leaves`` gets the tensors with a gradient.
        """
        if self.loss is None:
            with torch.no_grad():
                return results()
        found = self.loss(results(), *inputs)
        value = found[0] if isinstance(found, tuple) else found
        value.backward()
        self.leaves = list(behind([edge_of(value)])[0].values())
        return each_tensor(torch.Tensor.detach, found)

    def attach(self, leaves: Sequence[torch.Tensor]) -> None:
        """Make the ``.grad`` of each tensor the buffer that graphs add to; its contents move along."""
        for x in leaves:
            if x not in self.gradients:
                self.gradients[x] = torch.zeros_like(x)
            buffer = self.gradients[x]
            if x.grad is None:
                buffer.zero_()
            elif x.grad is not buffer:
                buffer.copy_(x.grad)
            x.grad = buffer


@final
class FormStep:
    """The steps over programs of one form; it captures the fourth of them as a CUDA graph, where it can.

    Attributes
    ----------
    state : Hashable
        `ProgramStep.state` of the model for which the steps were made.
    replay : callable or None
        What runs the captured graph.
    leaves : list of tensors
        What has got a gradient in the last run.
    """

    def __init__(
        self,
        step: ProgramStep,
        program: Program,
        feed: Feed,
        inputs: Sequence[torch.Tensor],
        state: Hashable,
    ) -> None:
        self.step = step
        self.state = state
        self.backend = TorchBackend()
        self.program = program
        self.buffers = feed.buffers(self.backend, self.backend.device(step.model))
        self.data = feed.views(self.buffers)
        self.inputs = [x.clone() for x in inputs]
        self.device = self.data.real.device
        self.captures = graphs.can_capture(self.device)
        self.runs = 0
        self.leaves: list[torch.Tensor] = []
        self.replay: Callable[[], None] | None = None
        self.results: Any = None

    def __call__(self, program: Program, feed: Feed, inputs: Sequence[torch.Tensor]) -> Any:
        """Run the step on a program of this form: copy it into the buffers, and compute or replay.

        Returns what `ProgramStep` does.
        """
        self.program = program
        for dtype, buffer in self.buffers.items():
            # A captured graph reads from fixed places, so the buffers stay and their contents change.
            buffer.copy_(self.backend.constant(feed.flat[dtype], "cpu"))
        for own, x in zip(self.inputs, inputs, strict=True):
            own.copy_(x)
        if self.captures and self.replay is None and self.runs >= RUNS_BEFORE:
            try:
                self.capture()
            except Exception as error:  # noqa: BLE001 - whatever an op does that no graph can hold
                self.refuse(str(error).partition("\n")[0])
        self.runs += 1
        if self.replay is None:
            with self.beside() as waits:
                found = self.compute()
            self.leaves = self.step.leaves
            if waits and self.runs == RUNS_BEFORE:  # an op may wait in its first run and in no other
                self.refuse(waits[0])
            return found
        # `optimizer.zero_grad()` may have set `.grad` to None since, and the graph writes into the buffers.
        self.step.attach(self.leaves)
        self.replay()
        return each_tensor(torch.clone, self.results)

    def compute(self) -> Any:
        """Run the step over the buffers, without a graph; return what `ProgramStep.compute` does."""
        return self.step.compute(self.tiles, self.inputs)

    def tiles(self) -> Any:
        """Run the tiles over the buffers; return the results of the program."""
        ops = resolve_ops(self.backend, self.step.model, self.program.form)
        return run_tiles(
            self.backend, ops, self.program.form, self.data, Witness(self.backend, self.program)
        )

    def beside(self) -> contextlib.AbstractContextManager[list[str]]:
        """Return a context for a run before a capture; it yields a list of what made the host wait.

        On a CPU it does nothing, and the list is empty.
        """
        return graphs.beside(self.device) if self.captures else contextlib.nullcontext([])

    def capture(self) -> None:
        """Capture a step, and set ``replay`` and ``results``.

        Raises if an op does what no graph can hold.
        """
        self.step.attach(self.leaves)
        self.replay, self.results = graphs.capture(self.compute, self.device, generators([self.step.model]))

    def refuse(self, why: str) -> None:
        """Run without a graph from now on; warn that ``why`` is the reason."""
        self.captures = False
        warnings.warn(f"This step runs without a CUDA graph: {why}", stacklevel=4)


def each_tensor(change: Callable[[torch.Tensor], torch.Tensor], found: Any) -> Any:
    """Return a structure in which each tensor ``x`` is ``change(x)``; other leaves stay."""
    return optree.tree_map(lambda x: change(x) if isinstance(x, torch.Tensor) else x, found)
