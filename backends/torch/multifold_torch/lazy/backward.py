"""How long a backward pass takes: in what the loop has recorded, and in what was batched.

Autograd runs the function first that was recorded last. So where the first examples of a run went in the
loop and the others were batched, a backward pass goes through all of the batched part, and then through
that of the loop. It tells when it comes to the first result of either, and when it ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.autograd.variable import Variable

BATCHED, LOOPED = 0, 1


class BackwardTimes:
    """The times of the first backward pass through results of a run.

    Parameters
    ----------
    now : callable
        Returns the time in seconds.
    note : callable
        Takes the seconds that the pass took in the part of the loop, and in the batched one.
    looped, batched : sequence of Tensor
        The results that have gradients; one of the two may be empty.
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
        self.parts = {part for part, results in ((BATCHED, batched), (LOOPED, looped)) if results}
        for part, results in ((BATCHED, batched), (LOOPED, looped)):
            for function in {x.grad_fn for x in results}:
                if function is not None:
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
    """Do what `LazyRecorder.time_backward` says; the results are leaves of what examples have returned."""
    parts = [
        [x for x in part if isinstance(x, Tensor) and x.grad_fn is not None] for part in (looped, batched)
    ]
    if any(parts):
        BackwardTimes(now, note, *parts)
    else:
        note(0.0, 0.0)
