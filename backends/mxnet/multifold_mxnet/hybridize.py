"""Hybridized ops: each block that is an op becomes one cached graph, if it can be one.

The one idea: MXNet's graph serves any number of rows, so there is one for each block and nothing to bound.
What cannot be a graph runs as it was written from then on, and a warning says which op and why.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, final

from mxnet import gluon


@final
class Hybridizer:
    """Hybridized ops, an option of the adapter: ``MxnetBackend(hybridizer=Hybridizer())``.

    Keep one for as long as the model, and hand it to all folds. It calls ``hybridize()`` on the model's own
    blocks, where the user has not; methods and functions, which MXNet cannot hybridize, stay as they are.

    Parameters
    ----------
    ops : collection of str, optional
        The names of the blocks to hybridize (``block.name``). All by default.
    **flags
        As for ``hybridize``. Leave ``static_alloc`` out: it plans memory anew for each number of rows.

    Attributes
    ----------
    refused : list of str
        The names of blocks that cannot be hybridized.

    Examples
    --------
    >>> import multifold
    >>> from multifold_mxnet import MxnetBackend
    >>> dense = gluon.nn.Dense(2, in_units=1)
    >>> dense.initialize("ones")
    >>> fold = multifold.Fold(backend=MxnetBackend(hybridizer=Hybridizer()))
    >>> fold(fold.add(dense, fold.add(lambda x: x.reshape((-1, 1)), 3.0))).shape
    (1, 2)
    """

    def __init__(self, ops: Collection[str] | None = None, **flags: Any) -> None:
        self.ops = ops
        self.flags = flags
        self.refused: list[str] = []

    def __call__(self, op: Callable[..., Any], operands: Sequence[Any], static: Mapping[str, Any]) -> Any:
        """Return ``op(*operands, **static)``.

        An op that is a `gluon.HybridBlock` is hybridized before, unless there is a ``static``. If it fails
        as a graph but runs as written, it is added to ``refused``, with a warning.
        """
        if not isinstance(op, gluon.HybridBlock) or op.name in self.refused or static:
            return op(*operands, **static)
        if self.ops is not None and op.name not in self.ops:
            return op(*operands)
        if not op._active:
            op.hybridize(**self.flags)
        try:
            return op(*operands)
        except Exception as error:  # noqa: BLE001 - tried again below, as it was written
            op.hybridize(False)
            result = op(*operands)  # raises what the op raises by itself
            self.refused.append(op.name)
            text = str(error).strip().partition("\n")[0]
            warnings.warn(
                f"The op '{op.name}' runs without hybridize() from now on: "
                f"{type(error).__name__}: {text}.\n\n"
                "Hint: write it with F.* operators on its operands only; no shapes, no Python branches on "
                "values, no ragged operands.",
                stacklevel=2,
            )
            return result
