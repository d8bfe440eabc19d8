"""The minibatches that were merged last, so that one that comes again is not merged again."""

from __future__ import annotations

import operator
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import replace

from multifold._traces.minibatch import Minibatch, schedule_traces
from multifold._traces.trace import Trace


class MergeCache:
    """The last merged minibatches, found by the digests of their traces and compared by value.

    It pays where the same minibatches come again: evaluation, or training without shuffling. Traces that
    are the same objects are recognised at once; equal ones are compared column by column. What came
    once is kept without its wiring: most minibatches of shuffled training never come again, and so many
    objects that live on make Python's garbage collector go through all there are.
    """

    def __init__(self, size: int = 32) -> None:
        self.size = size
        self.kept: OrderedDict[Hashable, Minibatch] = OrderedDict()

    def merge(self, traces: Iterable[Trace], schedule: str) -> Minibatch:
        """Return the minibatch of some traces, merged before or now."""
        traces = tuple(traces)
        key = schedule, tuple([t.digest if isinstance(t, Trace) else None for t in traces])
        found = self.kept.get(key)
        if found is not None and all(map(operator.eq, found.traces, traces)):
            self.kept.move_to_end(key)
            return found
        batch = schedule_traces(traces, schedule)
        self.kept[key] = replace(batch, plan=replace(batch.plan))
        self.kept.move_to_end(key)
        if len(self.kept) > self.size:
            self.kept.popitem(last=False)
        return batch
