"""How the classes of traces and minibatches are shown where a library stops at one of them.

accelerate's `dispatch_batches=True` cuts batches into tensors, which traces are not. It stops with the
class of the batch and no word on what to do, and calls no method of the batch that could say it (1.15).
So the text of the class has the hint, for accelerate only.
"""

from __future__ import annotations

import sys
from typing import final

HINT = (
    "Hint: dispatch_batches=True takes tensors only; pass Accelerator(dataloader_config="
    "DataLoaderConfiguration(dispatch_batches=False)), and let each process read its own shard."
)


@final
class Shown(type):
    """The metaclass of `Trace` and `Minibatch`: the `repr` of these classes has `HINT` for accelerate."""

    def __repr__(cls) -> str:
        asks = sys._getframe(1).f_globals.get("__name__", "")
        return f"{super().__repr__()}. {HINT}" if asks.startswith("accelerate.") else super().__repr__()
