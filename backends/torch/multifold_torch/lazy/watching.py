"""Watching what is computed at once: functions of computed tensors, which no pending value records."""

from __future__ import annotations

from typing import Any

import optree
from torch import Tensor
from torch.overrides import TorchFunctionMode

from multifold.lazy.current import CURRENT
from multifold_torch.lazy.answers import ANSWERS, out_of_place
from multifold_torch.lazy.written import is_pending


class recording_all(TorchFunctionMode):  # noqa: N801 - it is used as a function
    """A context in which functions of tensors are recorded where none of these is pending, too.

    Questions for shapes and the like, and changes in place, are answered at once.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        recording = CURRENT.recording
        tensors = [x for x in optree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if recording is None or not tensors or any(map(is_pending, tensors)) or is_at_once(func):
            return func(*args, **kwargs)
        return recording.recorder.recorded(recording, None, func, args, kwargs)


def is_at_once(func: Any) -> bool:
    """Return whether a function is no operation to record: an attribute, a question or one in place."""
    return func in ANSWERS or getattr(func, "__name__", "") == "__get__" or out_of_place(func) is not None
