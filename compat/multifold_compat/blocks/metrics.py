"""`Metric`: values that are wanted beside what a block returns, one list for each example.

A metric may stand anywhere: in a case that few nodes take, or inside of recursion. So what it saw differs
in number from example to example, which is what `multifold.each` is for.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from multifold._engine.record.node import Node
from multifold.operands import each
from multifold_compat.blocks.block import Block, as_block
from multifold_compat.blocks.code import Code, Value, joined
from multifold_compat.blocks.functions import same
from multifold_compat.blocks.inference import Flow, fitting, use_of, uses_in
from multifold_compat.blocks.types import OBJECT, VOID, BlockError, Known, TensorType, TupleType

Noted = dict[str, list[tuple[Any, Any]]]
"""Pairs of a value and its label, by the names of metrics."""

NOTED: ContextVar[Noted | None] = ContextVar("what metrics saw of an example", default=None)
"""What metrics saw of the example that is being recorded, where `Metrics` asked for it."""


class Metric(Block):
    """Note a tensor, or a pair of one and its label; `Metrics` returns what was noted.

    By itself it changes nothing. A label is a Python object that says where a value comes from.

    Parameters
    ----------
    metric_name : str
        Several blocks may note values under one name.

    Examples
    --------
    The loss of each word, and the sum of them:

    >>> import multifold
    >>> from multifold_compat.blocks import AllOf, GetItem, Identity, Map, Scalar, Sum
    >>> word = Scalar() >> AllOf(Identity(), Metric("loss")) >> GetItem(0)
    >>> fold = multifold.Fold(backend="numpy")
    >>> total, metrics = fold.run(None, [[1, 2], [3]], Metrics(Map(word) >> Sum()))
    >>> total, metrics["loss"]
    (array([3., 3.]), [array([1., 2.]), array([3.])])
    """

    hint = "a metric notes one tensor, alone or with a Python object that is its label."
    records = True

    def __init__(self, metric_name: str, name: str | None = None) -> None:
        super().__init__(name)
        if not isinstance(metric_name, str):
            raise BlockError(
                f"Expected the name of a metric. Received {metric_name!r}.", "Metric('loss') notes losses."
            )
        self.metric_name = metric_name

    def emit(self, code: Code, x: Value) -> Value:
        noted, value, label = (code.new() for _ in range(3))
        code.write(f"{noted} = {code.constant(self.noted)}()")
        with code.under(f"if {noted} is not None:"):
            code.write(f"{value}, {label} = {code.constant(labelled)}({joined(x)})")
            # Numbers and arrays of the example become rows as well, so that each list is an array.
            with code.under(f"if not isinstance({value}, {code.constant(Node)}):"):
                code.write(f"{value} = add({code.constant(same)}, {value})")
            code.write(f"{noted}.append(({value}, {label}))")
        return "None"

    def noted(self) -> list[tuple[Any, Any]] | None:
        """Return the list that this metric appends to; None unless a `Metrics` records this example.

        Raises `BlockError` if that `Metrics` does not know this metric.
        """
        every = NOTED.get()
        if every is None:
            return None
        if self.metric_name not in every:
            raise BlockError(
                f"Expected {self!r} to be known when Metrics was made. Received it from a block that "
                "does not tell the blocks inside of it.",
                "a block of your own asks flow.of(inner, type) in its infer about each one inside.",
            )
        return every[self.metric_name]

    def infer(self, given: Known, flow: Flow) -> Known:
        expected = TupleType(ROW, OBJECT) if isinstance(given, TupleType) else ROW
        fitting(f"as the input of {self!r}", expected, given, self.hint)
        return VOID

    def label(self) -> str:
        return repr(self.metric_name)


ROW = TensorType(None, None)


def labelled(x: Any) -> tuple[Any, Any]:
    """Return the pair ``x``, a value and its label, as it is; of anything else ``(x, None)``."""
    return x if isinstance(x, tuple) else (x, None)


class Metrics(Block):
    """Return a pair: what a block returns, and a dictionary of what each `Metric` inside of it noted.

    Parameters
    ----------
    block : block
        The one that holds the metrics.
    labels : bool
        Whether labels are wanted as well.

    Returns
    -------
    pair, or triple with ``labels``
        The second entry has a list for each name, with an entry for each example: an array ``(k, *s)`` of
        the ``k`` rows that were noted in it, in the order of recording, or ``[]``. The third one has as
        many labels in place of the rows. See `multifold.each`. A block that returns nothing, such as
        `Void`, makes a list of None.

    Raises
    ------
    BlockError
        If there is no metric inside of the block.

    Examples
    --------
    >>> import multifold
    >>> from multifold_compat.blocks import Composition, Identity, Length, Map, Scalar, Void
    >>> with Composition().scope() as measured:
    ...     numbers = Map(Scalar() >> Metric("x")).reads(measured.input)
    ...     measured.output.reads(Length().reads(measured.input))
    <output of <Composition>>
    >>> multifold.Fold(backend="numpy").run(None, [[1, 2], []], Metrics(measured))
    (array([2., 0.]), {'x': [array([1., 2.]), []]})

    With a label for each value:

    >>> words = Map((Scalar(), Identity()) >> Metric("loss")) >> Void()
    >>> examples = [[(1, "one"), (2, "two")], []]
    >>> multifold.Fold(backend="numpy").run(None, examples, Metrics(words, labels=True))[1:]
    ({'loss': [array([1., 2.]), []]}, {'loss': [['one', 'two'], []]})
    """

    def __init__(self, block: Any, labels: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        self.block = as_block(block)
        self.labels = labels
        metrics = [use.block for use in uses_in(use_of(self.block)) if isinstance(use.block, Metric)]
        self.names = list(dict.fromkeys(metric.metric_name for metric in metrics))
        if not self.names:
            raise BlockError(
                f"Expected a Metric inside of {self.block!r}. Received a block without any.",
                "Metric('loss') notes what it reads.",
            )

    def __call__(self, fold: Any, x: Any) -> Any:
        noted: Noted = {name: [] for name in self.names}
        token = NOTED.set(noted)
        try:
            result = self.block(fold, x)
        finally:
            NOTED.reset(token)
        values = {name: each([value for value, _ in pairs]) for name, pairs in noted.items()}
        result = each(None) if result is None else result
        if not self.labels:
            return result, values
        return result, values, {name: each([label for _, label in pairs]) for name, pairs in noted.items()}

    def infer(self, given: Known, flow: Flow) -> Known:
        flow.of(self.block, given)
        return None

    def label(self) -> str:
        return ", ".join(self.names)
