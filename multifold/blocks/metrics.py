"""`Metric`: values that are wanted beside what a block returns, one list for each example.

A metric may stand anywhere: in a case that few nodes take, or inside of recursion. So what it saw differs
in number from example to example, which is what `multifold.each` is for.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

from multifold._record.node import Node
from multifold.blocks import functions
from multifold.blocks.block import Block, as_block
from multifold.blocks.inference import Flow, use_of, uses_in
from multifold.blocks.types import VOID, BlockError, Known, TensorType
from multifold.operands import each

SEEN: ContextVar[dict[str, list[Any]] | None] = ContextVar("what metrics saw of an example", default=None)
"""The values of each metric of the example that is being recorded, where `Metrics` asked for them."""


class Metric(Block):
    """Note a tensor under a name; `Metrics` returns what was noted. By itself it changes nothing.

    Parameters
    ----------
    metric_name : str
        Several blocks may note values under one name.

    Examples
    --------
    The loss of each word, and the sum of them:

    >>> import multifold
    >>> from multifold.blocks import AllOf, GetItem, Identity, Map, Scalar, Sum
    >>> word = Scalar() >> AllOf(Identity(), Metric("loss")) >> GetItem(0)
    >>> fold = multifold.Fold(backend="numpy")
    >>> total, metrics = fold.run(None, [[1, 2], [3]], Metrics(Map(word) >> Sum()))
    >>> total, metrics["loss"]
    (array([3., 3.]), [array([1., 2.]), array([3.])])
    """

    accepts = TensorType(None, None)
    hint = "a metric notes one tensor; one for each item of a tuple notes several."

    def __init__(self, metric_name: str, name: str | None = None) -> None:
        super().__init__(name)
        if not isinstance(metric_name, str):
            raise BlockError(
                f"Expected the name of a metric. Received {metric_name!r}.", "Metric('loss') notes losses."
            )
        self.metric_name = metric_name

    def __call__(self, fold: Any, x: Any) -> Any:
        seen = SEEN.get()
        if seen is not None:
            if self.metric_name not in seen:
                raise BlockError(
                    f"Expected {self!r} to be known when Metrics was made. Received it from a block that "
                    "does not tell the blocks inside of it.",
                    "a block of your own asks flow.of(inner, type) in its infer about each one inside.",
                )
            # Numbers and arrays of the example become rows as well, so that each list is an array.
            seen[self.metric_name].append(x if isinstance(x, Node) else fold.add(functions.same, x))

    def infer(self, given: Known, flow: Flow) -> Known:
        return VOID

    def label(self) -> str:
        return repr(self.metric_name)


class Metrics(Block):
    """Return a pair: what a block returns, and a dictionary of what each `Metric` inside of it noted.

    Parameters
    ----------
    block : block
        The one that holds the metrics.

    Returns
    -------
    pair
        The second entry has a list for each name, with an entry for each example: an array ``(k, *s)`` of
        the ``k`` rows that were noted in it, in the order of recording, or ``[]``. See `multifold.each`.

    Raises
    ------
    BlockError
        If there is no metric inside of the block.

    Examples
    --------
    >>> import multifold
    >>> from multifold.blocks import Composition, Length, Map, Scalar
    >>> with Composition().scope() as measured:
    ...     numbers = Map(Scalar() >> Metric("x")).reads(measured.input)
    ...     measured.output.reads(Length().reads(measured.input))
    <output of <Composition>>
    >>> multifold.Fold(backend="numpy").run(None, [[1, 2], []], Metrics(measured))
    (array([2., 0.]), {'x': [array([1., 2.]), []]})
    """

    def __init__(self, block: Any, name: str | None = None) -> None:
        super().__init__(name)
        self.block = as_block(block)
        metrics = [use.block for use in uses_in(use_of(self.block)) if isinstance(use.block, Metric)]
        self.names = list(dict.fromkeys(metric.metric_name for metric in metrics))
        if not self.names:
            raise BlockError(
                f"Expected a Metric inside of {self.block!r}. Received a block without any.",
                "Metric('loss') notes what it reads.",
            )

    def __call__(self, fold: Any, x: Any) -> Any:
        seen: dict[str, list[Any]] = {name: [] for name in self.names}
        token = SEEN.set(seen)
        try:
            result = self.block(fold, x)
        finally:
            SEEN.reset(token)
        return result, {name: each(values) for name, values in seen.items()}

    def infer(self, given: Known, flow: Flow) -> Known:
        flow.of(self.block, given)
        return None

    def label(self) -> str:
        return ", ".join(self.names)
