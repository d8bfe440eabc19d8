"""mxnet-jit-batch's names: ``from multifold_compat import mxnet_fold as fold``.

One idea: rows are on axis 0 everywhere in multifold. A call with another batch axis is therefore
recorded as a call of `axes.AlongAxis`, which moves the axis in and out around the op, inside the launch.
Arrays and nodes are batched; every other argument is passed on as it is, and calls where it differs do not
share a launch.

Examples
--------
Two calls of ``np.add`` share one launch. The array of each is a row of a batch, the number 10 is one
argument for both:

>>> import numpy as np
>>> fold = Fold(backend="numpy")
>>> nodes = [fold.record(0, np.add, np.array([[i]]), 10) for i in (1, 2)]
>>> fold([nodes], reset=False)
[array([[11],
       [12]])]
>>> [len(launch) for launch in fold.explain().launches]
[2]
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

import multifold
from multifold._engine.compiled.arrays import CALL_MASK
from multifold._engine.compiled.forms import own
from multifold._engine.record.freezing import freeze, snapshot
from multifold._engine.record.lines import users_frame
from multifold._engine.record.node import Node, SharedNode
from multifold.backend import comes_from
from multifold.errors import RecordError, type_of
from multifold.operands import RaggedOperand, Shared, Static
from multifold_compat.counted import Counted, PredecessorNode
from multifold_compat.groups import as_outputs
from multifold_compat.mxnet_fold import rnn
from multifold_compat.mxnet_fold.axes import AlongAxis, Move, Moves, stays, swap

__all__ = ["Fold", "fold_unroll", "rnn"]


class Virtual(PredecessorNode):
    """A node of one recorded call, or of a part of its result."""

    __slots__ = ()

    def __getitem__(self, key: Any) -> Any:
        """Return the part ``key`` of the result; for a slice, a tuple of parts.

        Examples
        --------
        >>> import numpy as np
        >>> fold = Fold(backend="numpy")
        >>> node = fold.record(0, lambda x: [x, [2 * x, 3 * x]], np.ones((1, 2)))
        >>> first, (double, triple) = node[0], node[1][:2]
        >>> fold([[first, triple]])
        [array([[1., 1.],
               [3., 3.]])]
        """
        if not isinstance(key, slice):
            return super().__getitem__(key)
        if key.stop is None or key.stop < 0 or (key.start or 0) < 0:
            raise RecordError(
                f"Expected a slice with an end, none of them negative. Received {key}.",
                "how many parts the result has is not known yet; use .split(n).",
            )
        return tuple([self[i] for i in range(key.stop)[key]])

    def no_batch(self) -> Virtual:
        """Return a view of the node: a call that reads it gets the whole result, all rows of the launch.

        The node itself stays batched, and parts of the view are whole as well.
        """
        return SharedVirtual(self._graph, self._ref)


class SharedVirtual(Virtual, SharedNode):
    """A view of a node whose consumers get the whole result; made by `Virtual.no_batch`."""

    __slots__ = ()


class Fold(Counted):
    """A fold that takes the calls of mxnet-jit-batch.

    Parameters
    ----------
    ctx : mxnet.Context, optional
        Where ops run, unless they say it themselves; by default the current context. Kept as an attribute.
    cse : bool
        Merge identical calls, as mxnet-jit-batch does. Two calls of dropout on one operand are
        identical: pass False where they must stay two.
    backend : str or Backend
        Another framework than MXNet whose arrays have ``swapaxes``.

    Examples
    --------
    >>> import numpy as np
    >>> fold = Fold(backend="numpy")
    >>> nodes = [fold.record(0, np.add, np.array([[i]]), 10) for i in (1, 2)]
    >>> both = fold.record(0, lambda *xs: np.concatenate(xs), *nodes).no_batch()
    >>> fold([nodes, [both]])
    [array([[11],
           [12]]), array([[11],
           [12]])]
    """

    _node_type = Virtual

    def __init__(self, ctx: Any = None, *, cse: bool = True, backend: Any = "mxnet") -> None:
        if ctx is not None and not isinstance(ctx, AbstractContextManager):
            raise RecordError(
                f"Expected ctx to be a context such as mx.cpu(). Received {ctx!r}.",
                "leave ctx out, and the device of the arrays that are recorded is taken.",
            )
        # A context of another framework is entered around the ops, and is no device of its backend.
        kind: Any = type(ctx)
        super().__init__(backend, device=ctx if comes_from(kind, "mxnet") else None, cse=cse)
        self.ctx = ctx
        # Call -> its batch axis; calls with axis 0, nearly all, have no entry.
        self._axes: dict[int, int] = {}
        # An op is compared by identity, so calls share a launch only if they record one object: the same op
        # along the same axes gets the `AlongAxis` that it got first.
        self._along: dict[Hashable, Callable[..., Any]] = {}

    def reset(self) -> None:
        """Forget all calls; nodes recorded before raise `RecordError` from now on."""
        super().reset()
        self._axes = {}
        self._along = {}

    def record(self, batch_axis: int, op: Callable[..., Any], *args: Any) -> Virtual:
        """Record one call of ``op`` whose rows are on axis ``batch_axis``.

        Parameters
        ----------
        batch_axis : int
            The axis, from 0, along which the op takes and returns rows.
        op : callable
            A block, a bound method or a function.
        *args
            Nodes of this fold and arrays of length 1 along ``batch_axis`` are batched along that
            axis; lists and tuples of arguments nest, and the op receives lists. Everything else, a
            number too, is passed on as it is, and calls where it differs do not share a launch.

        Returns
        -------
        Virtual
            Stands for the call's share of the result, of length 1 along ``batch_axis``.

        Raises
        ------
        RecordError
            For an op that can't be called, an array of another length along the axis, or a node of
            another fold.

        Examples
        --------
        >>> import numpy as np
        >>> from multifold_compat import mxnet_fold
        >>> fold = mxnet_fold.Fold(backend="numpy")
        >>> def lengths(x):  # (time, n, width) -> (time, n): the rows are on axis 1
        ...     return np.sqrt((x**2).sum(axis=2))
        >>> nodes = [fold.record(1, lengths, np.full((3, 1, 4), i)) for i in (1.0, 2.0)]
        >>> fold([nodes])
        [array([[2., 4.],
               [2., 4.],
               [2., 4.]])]
        """
        if type(batch_axis) is not int or batch_axis or self._axes or not callable(op):
            return self._record_along(batch_axis, op, *args)
        # Errors and `explain` name the caller's line, and not one of this module.
        with self._graph.at(sys._getframe(1)):
            node: Any = self.add(op, *map(self._marked, args))
            return node

    def _record_along(self, batch_axis: int, op: Callable[..., Any], *args: Any) -> Virtual:
        """Record a call as `record` does, if axes have to move; raise `RecordError` for wrong arguments."""
        if not callable(op):
            raise RecordError(
                f"Expected op to be a callable. Received op={op!r}.",
                "multifold.Fold looks names of ops up on a model; here each op is passed itself.",
            )
        if isinstance(batch_axis, bool) or not isinstance(batch_axis, int) or batch_axis < 0:
            raise RecordError(
                f"Expected batch_axis to be an axis from 0. Received batch_axis={batch_axis!r}.",
                "0 is the first axis, 1 the second one; axes are not counted from the end.",
            )
        with self._graph.at(users_frame()):
            op, operands = self._moved(op, batch_axis, args)
            node: Any = self.add(op, *operands)
        if batch_axis:
            self._axes[node._ref & CALL_MASK] = batch_axis
        return node

    def __call__(self, nodes: Iterable[Iterable[Any]], reset: bool = True) -> list[Any]:
        """Run what the groups need and return one array for each group.

        Parameters
        ----------
        nodes : list of list of Virtual
            The nodes of a group become one array, joined along the batch axis that they were
            recorded with; a group that holds one `Virtual.no_batch` becomes the whole value.
        reset : bool
            Forget all calls afterwards. After an error they stay, so that the call can be repeated.

        Raises
        ------
        RecordError
            For an empty group, a group of several batch axes, or a node of another fold.
        LaunchError
            If an op fails, or returns other than one row for each node.
        """
        if isinstance(nodes, (Node, dict)):
            raise RecordError(
                f"Expected a list of groups. Received {type_of(nodes)}.",
                "fold.apply(None, outputs) takes any structure.",
            )
        outputs = as_outputs(nodes)
        axes = [self._axis_of(group) for group in outputs]
        with contextlib.nullcontext() if self.ctx is None else self.ctx:
            results = self.apply(None, outputs)
            arrays = [swap(x, 0, axis) for x, axis in zip(results, axes, strict=True)]
        if reset:
            self.reset()
        return arrays

    def __repr__(self) -> str:
        return str(self.schedule())

    def _origin(self, x: Any) -> int:
        """Return the batch axis of a node's call; 0 for anything else."""
        return self._axes.get(x._ref & CALL_MASK, 0) if isinstance(x, Node) else 0

    def _axis_of(self, group: Any) -> int:
        """Return the one batch axis of the nodes of a group; raise `RecordError` if they have several."""
        axes = sorted({self._origin(x) for x in group}) if isinstance(group, list) else []
        if len(axes) > 1:
            raise RecordError(
                "Expected the nodes of a group to have one batch axis. "
                f"Received {' and '.join(map(str, axes))}.",
                "ask for them as two groups.",
            )
        return axes[0] if axes else self._origin(group)

    def _moved(self, op: Any, axis: int, args: tuple[Any, ...]) -> tuple[Any, list[Any]]:
        """Return the op to record, wrapped in `AlongAxis` if an axis has to move, and its operands.

        ``axis`` is where ``op`` has its rows.
        """
        pairs = [self._operand(x, axis) for x in args]
        moves = tuple([move for _, move in pairs])
        if axis or not all(map(stays, moves)):
            key = freeze(op), axis, moves
            if key not in self._along:
                self._along[key] = AlongAxis(snapshot(op), axis, moves)
            op = self._along[key]
        return op, [x for x, _ in pairs]

    def _marked(self, x: Any) -> Any:
        """Return the operand for an argument whose rows are on axis 0: what has no rows becomes static.

        Lists and tuples become lists of operands.
        """
        if isinstance(x, (Node, np.ndarray, RaggedOperand, Shared, Static)):
            return x
        if isinstance(x, (list, tuple)):
            return [self._marked(item) for item in x]
        return multifold.static(x) if self._owner(x) is None else x

    def _operand(self, x: Any, axis: int) -> tuple[Any, Moves]:
        """Return the operand for an argument, and the `Move` of its axes before the op sees it.

        Lists and tuples give a list of operands and a tuple of moves.
        """
        if isinstance(x, (list, tuple)):
            pairs = [self._operand(item, axis) for item in x]
            return [item for item, _ in pairs], tuple([move for _, move in pairs])
        if isinstance(x, Node):
            origin = self._origin(x)
            return x, Move(origin, origin if isinstance(x, SharedNode) else axis)
        if isinstance(x, np.ndarray) or self._owner(x) is not None:
            return self._rows_first(x, axis), Move(axis, axis)
        return self._marked(x), Move(0, 0)

    def _rows_first(self, x: Any, axis: int) -> Any:
        """Return an array with its row on axis 0: as it is, or a node that moves ``axis`` there.

        Raises `RecordError` if its length along ``axis`` is not 1.

        The move is recorded rather than done at once: an array may want a gradient although nothing
        is taped while calls are recorded.
        """
        if not axis:
            return x
        shape = tuple(x.shape)
        if len(shape) <= axis or shape[axis] != 1:
            raise RecordError(
                f"Expected an array of length 1 along batch axis {axis}. Received shape {shape}.",
                "x.expand_dims(axis) gives an array such an axis; each row of a longer one is a call.",
            )
        # Of length 1 along both axes: to swap them would change nothing.
        if shape[0] == 1:
            return x
        move = self._along.setdefault(axis, Move(axis, axis))
        return self.add(move, multifold.shared(own(x)))


def fold_unroll(
    cell: Any,
    fold: Fold,
    length: int,
    inputs: Any,
    begin_state: Sequence[Any] | None = None,
    layout: str = "NTC",
) -> tuple[list[Any], list[Any]]:
    """Unroll a recurrent cell over one example; see `multifold._engine.record.unroll.unroll`.

    Parameters
    ----------
    cell : gluon.rnn.RecurrentCell
        Has any number of states; sequential and bidirectional cells work as well.
    fold : Fold
        Records a call for each step. The fold may also come first and the cell second.
    length : int
        The number of steps.
    inputs : array or list
        An array of shape ``(1, length, *s)`` for layout NTC, ``(length, 1, *s)`` for TNC, or a list
        of arrays or nodes, one for each step.
    begin_state : list, optional
        The states before the first step.
    layout : str
        ``"NTC"`` or ``"TNC"``.

    Returns
    -------
    outputs : list of Virtual
        The output of each step.
    states : list of Virtual
        The last states.
    """
    if isinstance(cell, Fold):
        cell, fold = fold, cell
    outputs, states = fold.unroll(cell, length, inputs, begin_state, layout)
    return outputs, states
