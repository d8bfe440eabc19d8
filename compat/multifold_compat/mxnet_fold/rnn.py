"""The child-sum Tree-LSTM cell (Tai, Socher and Manning, 2015, section 3.1), for MXNet Gluon.

`ChildSum` holds what the cell does. The class ``ChildSumLSTMCell`` also inherits from Gluon's cells, and
importing this module must not import MXNet, so it is made when somebody asks for it. Its parameters have
the names and shapes of mxnet-jit-batch's, so saved ones can be loaded.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

from multifold._engine.record.lines import users_frame
from multifold.errors import RecordError
from multifold.models.layers import bottom_up


def __getattr__(name: str) -> Any:
    if name == "ChildSumLSTMCell":
        return child_sum_lstm_cell()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def child_sum_lstm_cell() -> type:
    """Return the class ``ChildSumLSTMCell``, made the first time: `ChildSum` as a cell of Gluon.

    Raises
    ------
    ImportError
        If MXNet is not installed.
    """
    from mxnet.gluon.rnn import HybridRecurrentCell

    own = {"__doc__": ChildSum.__doc__, "__module__": __name__}  # as pickle finds it in this module
    return type("ChildSumLSTMCell", (ChildSum, HybridRecurrentCell), own)


class ChildSum:
    """A Tree-LSTM cell that adds up the hidden states of its children.

    Parameters
    ----------
    hidden_size : int
        The width of both states.
    num_children : int
        How many children a node must have; 0 for any number.
    input_size : int
        Not needed, as in mxnet-jit-batch: the first inputs tell their width.
    *_initializer, prefix, params
        As for Gluon's cells. Cells for other numbers of children share parameters by
        ``params=cell.collect_params()``.

    Calling a cell with inputs of shape ``(n, input_size)`` and a pair of lists, the hidden and
    the memory states of each child, all of shape ``(n, hidden_size)``, gives ``(h, [h, c])``.
    States of shape ``(1, hidden_size)`` stand for all rows.
    """

    def __init__(
        self: Any,
        hidden_size: int,
        num_children: int,
        i2h_weight_initializer: Any = None,
        hs2h_weight_initializer: Any = None,
        hc2h_weight_initializer: Any = None,
        i2h_bias_initializer: Any = "zeros",
        hs2h_bias_initializer: Any = "zeros",
        hc2h_bias_initializer: Any = "zeros",
        input_size: int = 0,
        prefix: str | None = None,
        params: Any = None,
    ) -> None:
        from mxnet.gluon.nn import Dense

        super().__init__(prefix=prefix, params=params)  # type: ignore[call-arg]
        self.num_children = num_children
        self._hidden_size = hidden_size
        of_states = {"in_units": hidden_size}
        with self.name_scope():
            self.i2h = Dense(4 * hidden_size, **initial(i2h_weight_initializer, i2h_bias_initializer))
            self.hs2h = Dense(
                3 * hidden_size, **of_states, **initial(hs2h_weight_initializer, hs2h_bias_initializer)
            )
            self.hc2h = Dense(
                hidden_size,
                **of_states,
                flatten=False,
                **initial(hc2h_weight_initializer, hc2h_bias_initializer),
            )

    def state_info(self: Any, batch_size: int = 0) -> list[dict[str, Any]]:
        """Return two dictionaries with the shape of the hidden and of the memory state."""
        return [{"shape": (batch_size, self._hidden_size), "__layout__": "NC"}] * 2

    def _alias(self) -> str:
        return "childsum_lstm"

    def hybrid_forward(self: Any, ops: Any, inputs: Any, states: Any) -> Any:
        """Return ``(h, [h, c])``, each ``(n, hidden_size)``; ``ops`` is `mxnet.nd` or `mxnet.sym`.

        ``states`` are two lists, hidden and memory states of the children. Raises `RecordError` for another
        number of children than ``num_children``.
        """
        hidden, memory = states
        if self.num_children and len(hidden) != self.num_children:
            raise RecordError(
                f"Expected states of {self.num_children} children. Received {len(hidden)}.",
                "num_children=0 takes any number of children.",
            )
        i, f, u, o = ops.split(self.i2h(inputs), num_outputs=4, axis=1)
        i_sum, u_sum, o_sum = ops.split(self.hs2h(ops.add_n(*hidden)), num_outputs=3, axis=1)
        i = ops.sigmoid(ops.broadcast_add(i, i_sum))
        u = ops.tanh(ops.broadcast_add(u, u_sum))
        o = ops.sigmoid(ops.broadcast_add(o, o_sum))
        of_child = self.hc2h(ops.stack(*hidden, axis=1))  # (n, children, hidden_size)
        forget = ops.sigmoid(ops.broadcast_add(ops.expand_dims(f, axis=1), of_child))
        kept = ops.sum(ops.broadcast_mul(forget, ops.stack(*memory, axis=1)), axis=1)
        c = i * u + kept
        h = o * ops.tanh(c)
        return h, [h, c]

    @staticmethod
    def cell_forward(cell: Any, inputs: Any, states: Any) -> Any:
        """Return ``cell(inputs, states)``."""
        return cell(inputs, states)

    @staticmethod
    def encode(cells: Mapping[int, Any], inputs: Any, tree: Any) -> Any:
        """Compute one tree, one node at a time; return ``(h, [h, c])`` of its root.

        Parameters
        ----------
        cells : mapping of int to cell
            The cell for each number of children.
        inputs : array of shape ``(nodes, input_size)``
            The inputs of all nodes of the tree.
        tree : object
            Has ``idx``, its row of the inputs, and ``children``, a list of trees.
        """

        def combine(node: Any, values: Sequence[Any]) -> Any:
            x = inputs[node.idx : node.idx + 1]
            states = [state for _, state in values]
            if not states:
                with x.context:
                    # A leaf gets a state of zeros in the place of its children's.
                    states = [cells[0].begin_state(1)]
            hidden, memory = zip(*states, strict=True)
            return cells[len(values)](x, [list(hidden), list(memory)])

        return bottom_up(tree, combine)

    @staticmethod
    def fold_encode(fold: Any, cells: Mapping[int, Any], inputs: Any, tree: Any) -> Any:
        """Record what `encode` computes; return the node of the root, whose value is ``(h, [h, c])``.

        Parameters
        ----------
        fold : multifold_compat.mxnet_fold.Fold
            Records a call for each node of the tree.
        cells, inputs, tree
            As for `encode`.
        """

        def combine(node: Any, values: Sequence[Any]) -> Any:
            x = inputs[node.idx : node.idx + 1]
            states = [value[1].split(2) for value in values] or [begin]
            return fold.record(0, cells[len(values)], x, list(zip(*states, strict=True)))

        with fold._graph.at(users_frame()):
            begin = fold.record(0, cells[0].begin_state, 1).split(2)
            return bottom_up(tree, combine)


def initial(weight: Any, bias: Any) -> dict[str, Any]:
    """Return the keywords of a `Dense` layer for these initializers of weight and bias."""
    return {"weight_initializer": weight, "bias_initializer": bias}
