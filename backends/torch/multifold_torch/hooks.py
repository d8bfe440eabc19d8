"""What PyTorch's loaders and compiler are told of multifold when this backend is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch._C._dynamo import eval_frame
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data._utils.collate import default_collate_fn_map

import multifold


def merge(traces: Sequence[multifold.Trace], *, collate_fn_map: Any = None) -> multifold.Minibatch:
    """Return ``multifold.merge(traces)``, under the signature that `default_collate` calls.

    ``collate_fn_map`` is not used.
    """
    return multifold.merge(traces)


def step_over(function: Callable[..., Any]) -> None:
    """Let `torch.compile` call a function as it is, together with all that it calls.

    `torch.compiler.disable` does the same with a wrapper, and imports `torch._dynamo` for it, which takes a
    second. The compiler itself keeps both marks: one ends its graph at the call, the other tells its hook
    in the interpreter to leave the frame alone. Before PyTorch 2.7 this does nothing.
    """
    if not hasattr(eval_frame, "_FrameExecStrategy"):
        return
    vars(function).update(_torchdynamo_disable=True, _torchdynamo_disable_msg="multifold runs launches")
    skip = eval_frame._FrameAction.SKIP
    eval_frame.set_code_exec_strategy(function.__code__, eval_frame._FrameExecStrategy(skip, skip))


class DispatchMode(TorchDispatchMode):
    """A mode of PyTorch's dispatcher, for subclasses with a ``__torch_dispatch__``.

    PyTorch wraps that of its own class by `torch.compiler.disable`, whose first call takes a second; here
    it is marked by `step_over`.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        step_over(cls.__torch_dispatch__)


def tell() -> None:
    """Make `default_collate` merge traces, and `torch.compile` leave `Fold.run` and `Fold.apply` alone."""
    default_collate_fn_map[multifold.Trace] = merge
    for function in (multifold.Fold.run, multifold.Fold.apply):
        step_over(function)
