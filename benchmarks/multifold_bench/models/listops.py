"""Expressions over digits: one network for each operator, over any number of operands in order.

`ListOpsLSTM` reads all operands of an operation in one launch, `ListOpsChain` one after the other, which
takes more launches and learns more: a sum modulo 10 is a walk over ten states, a digit a step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import multifold
from multifold import ops
from multifold.backend import Array, Ragged
from multifold.models.layers import Initial, bottom_up, gated, linear, lstm
from multifold.models.model import Classifier

DIGITS = 10


@final
class ListOpsLSTM(Classifier):
    """Computes nested list operations: a Tree-LSTM whose cell depends on the operator.

    Operands are rows of ragged operands, so an operator's calls share launches whatever their
    number. Each operand reads an embedding of its position from the left and one from the right; positions
    beyond ``places`` count as the last one.

    Parameters
    ----------
    operators : sequence of str
        The names of the operators, ``"MAX"`` and so on.
    width : int
        The width of ``h`` and ``c``.
    places : int
        How many positions are told apart.
    seed, dtype
        Of the initial values.

    References
    ----------
    Nangia and Bowman, ListOps: A Diagnostic Dataset for Latent Tree Learning, NAACL 2018.

    Examples
    --------
    >>> import multifold
    >>> from types import SimpleNamespace as Expression
    >>> four, nine = (Expression(op=None, digit=x, children=()) for x in (4, 9))
    >>> sum_of_two = Expression(op="SM", digit=None, children=(four, nine))
    >>> model = ListOpsLSTM(("MIN", "MAX", "SM"), width=8)
    >>> fold = multifold.Fold(backend="numpy")
    >>> h, c = model.encode(fold, sum_of_two)
    >>> fold.apply(model, fold.add("logits", h)).shape
    (1, 10)
    """

    def __init__(
        self,
        operators: Sequence[str],
        width: int,
        *,
        places: int = 8,
        seed: int = 0,
        dtype: str = "float32",
    ) -> None:
        initial = Initial(seed, dtype)
        parameters = {
            "digits": initial.embedding(DIGITS, 2 * width),
            "from_left": initial.embedding(places, width),
            "from_right": initial.embedding(places, width),
            **initial.linear("output", width, DIGITS),
        }
        for name in operators:
            # The first map gives a message of each operand and how much of its state to keep, the second
            # reads all messages together and gives the other gates.
            group = f"operators.{name}"
            parameters |= initial.linear(f"{group}.operand", 3 * width, 2 * width, slice(width))
            parameters |= initial.linear(f"{group}.gates", 2 * width, 3 * width)
        super().__init__(parameters, width=width, places=places)

    def digit(self, value: Array) -> tuple[Array, Array]:
        """Return the states ``(h, c)`` of digits: ``(n,)`` gives ``(n, width)`` each."""
        out, c = ops.split(ops.take(self.digits, value), 2, axis=1)
        return ops.sigmoid(out) * ops.tanh(c), c

    def operation(
        self, h: Ragged, c: Ragged, left: Ragged, right: Ragged, *, operator: str
    ) -> tuple[Array, Array]:
        """Return the states ``(h, c)``, each ``(n, width)``, of operations with one operator.

        Parameters
        ----------
        h, c : Ragged
            The states of the operands, rows of shape ``(width,)``.
        left, right : Ragged
            Their positions from both ends, from 0 to ``places - 1``.
        operator : str
            One of the operators; a static argument.
        """
        group = getattr(self.operators, operator)
        sides = ops.take(self.from_left, left.values), ops.take(self.from_right, right.values)
        operands = linear(group.operand, h.values, *sides)
        (keep,), message = gated(operands, 1)
        pooled = ops.concat([ops.segment_sum(message, h), ops.segment_max(message, h)], axis=1)
        return ops.lstm_state(linear(group.gates, pooled), kept=ops.segment_sum(keep * c.values, c))

    def encode(self, fold: Any, expression: Any) -> tuple[Any, Any]:
        """Record an expression and return its state ``(h, c)``.

        Parameters
        ----------
        fold : Fold, Unfold or the recorder of a trace
        expression : object
            A node with the attributes ``op``, None at a digit, ``digit`` there, and ``children``.
            May be as deep as it likes.
        """

        def record(node: Any, operands: Sequence[Any]) -> tuple[Any, Any]:
            if node.op is None:
                return fold.add("digit", node.digit).split(2)
            h, c = zip(*operands, strict=True)
            places = [min(position, self.places - 1) for position in range(len(operands))]
            rows = map(multifold.ragged, (h, c, places, reversed(places)))
            return fold.add("operation", *rows, operator=node.op).split(2)

        return bottom_up(expression, record)

    def compute(self, fold: Any, expression: Any) -> Any:
        """Record an expression and return the `logits` of its value; see `encode`."""
        return fold.add("logits", self.encode(fold, expression)[0])


@final
class ListOpsChain(Classifier):
    """Computes nested list operations: an LSTM for each operator walks over its operands.

    What the LSTM says after the last operand is the value of the operation, and an operand of the
    operation around it. Digits have such values by themselves.

    Parameters
    ----------
    operators : sequence of str
        The names of the operators, ``"MAX"`` and so on.
    width : int
        The width of values, which is that of ``h`` and ``c``.
    seed, dtype
        Of the initial values.

    Examples
    --------
    >>> import multifold
    >>> from types import SimpleNamespace as Expression
    >>> four, nine = (Expression(op=None, digit=x, children=()) for x in (4, 9))
    >>> sum_of_two = Expression(op="SM", digit=None, children=(four, nine))
    >>> model = ListOpsChain(("MIN", "MAX", "SM"), width=8)
    >>> fold = multifold.Fold(backend="numpy")
    >>> fold.apply(model, model.compute(fold, sum_of_two)).shape
    (1, 10)
    """

    def __init__(
        self, operators: Sequence[str], width: int, *, seed: int = 0, dtype: str = "float32"
    ) -> None:
        initial = Initial(seed, dtype)
        parameters = {"digits": initial.embedding(DIGITS, width)}
        for name in operators:
            group = f"operators.{name}"
            parameters |= {f"{group}.begin_{part}": initial.state(width) for part in "hc"}
            parameters |= initial.lstm(f"{group}.cell", width, width)
        super().__init__(parameters | initial.linear("output", width, DIGITS))

    def digit(self, value: Array) -> Array:
        """Return the values of digits: ``(n,)`` gives ``(n, width)``."""
        return ops.take(self.digits, value)

    def begin(self, operator: str) -> tuple[Array, Array]:
        """Return the state ``(h, c)`` before the first operand; one row. The operator is static."""
        group = getattr(self.operators, operator)
        return group.begin_h, group.begin_c

    def step(self, operand: Array, h: Array, c: Array, operator: str) -> tuple[Array, Array]:
        """Return the state ``(h, c)`` after one more operand, all of shape ``(n, width)``."""
        return lstm(getattr(self.operators, operator).cell, operand, h, c)

    def encode(self, fold: Any, expression: Any) -> Any:
        """Record an expression and return its value.

        Parameters
        ----------
        fold : Fold, Unfold or the recorder of a trace
        expression : object
            A node with the attributes ``op``, None at a digit, ``digit`` there, and ``children``.
            May be as deep as it likes.
        """

        def record(node: Any, operands: Sequence[Any]) -> Any:
            if node.op is None:
                return fold.add("digit", node.digit)
            h, c = fold.add("begin", node.op).split(2)
            for operand in operands:
                h, c = fold.add("step", operand, h, c, node.op).split(2)
            return h

        return bottom_up(expression, record)

    def compute(self, fold: Any, expression: Any) -> Any:
        """Record an expression and return the `logits` of its value; see `encode`."""
        return fold.add("logits", self.encode(fold, expression))
