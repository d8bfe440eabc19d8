"""How long a backward pass takes: for the examples that ran in the loop, and for those that were batched.

Of the functions that are ready, autograd runs the one first whose forward pass came last. So where the
first examples of a run went in the loop and the others were batched, a backward pass goes through all that
was batched, and then through what the loop has computed. Hooks on the results tell when it comes to the
first of either, and a callback when it ends. What was computed before the run, as by an encoder that all
examples share, comes at the end, and counts as the loop's: so the loop is taken too seldom, not too often.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd.variable import Variable

LOOPED, BATCHED = 0, 1


class BackwardTimes:
    """The times of the first backward pass through results of a run.

    Parameters
    ----------
    now : callable
        Returns the time in seconds, when the device has done its work.
    note : callable
        Takes the seconds that the pass took in the part of the loop, and in the batched one.
    looped, batched : sequence of Tensor
        The results that a backward pass goes through; one of the two may be empty. Their hooks keep this.
    """

    def __init__(
        self,
        now: Callable[[], float],
        note: Callable[[float, float], None],
        looped: Sequence[Tensor],
        batched: Sequence[Tensor],
    ) -> None:
        self.now = now
        self.note = note
        self.began: dict[int, float] = {}
        self.ended = False
        results = {LOOPED: looped, BATCHED: batched}
        self.parts = {part for part, own in results.items() if own}
        for part, own in results.items():
            for function in {x.grad_fn for x in own} - {None}:
                function.register_prehook(partial(self.come, part))

    def come(self, part: int, _: Any) -> None:
        """Note that a pass comes to a result of ``part``; the first time, let it say when it ends."""
        if self.ended or part in self.began:
            return
        if not self.began:
            Variable._execution_engine.queue_callback(self.end)
        self.began[part] = self.now()

    def end(self) -> None:
        """Note what the pass has taken, unless it has left out a part, or gone through the loop's first."""
        end, self.ended = self.now(), True
        if self.parts != self.began.keys():
            return
        middle = self.began.get(LOOPED, end)
        start = self.began.get(BATCHED, middle)
        if start <= middle:
            self.note(end - middle, middle - start)


def time_backward(
    looped: Sequence[Any],
    batched: Sequence[Any],
    now: Callable[[], float],
    note: Callable[[float, float], None],
) -> None:
    """Call ``note`` with the seconds that the first backward pass takes in either part.

    ``looped`` and ``batched`` are the leaves of what these examples have returned. If no tensor among them
    has a gradient, no backward pass will come, and ``note`` is called at once, with zeros.
    """
    parts = [
        [x for x in part if isinstance(x, Tensor) and x.grad_fn is not None] for part in (looped, batched)
    ]
    if any(parts):
        BackwardTimes(now, note, *parts)
    else:
        note(0.0, 0.0)
