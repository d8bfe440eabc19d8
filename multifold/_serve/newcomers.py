"""Newcomers: requests whose first value is many rounds away wait for each other, and catch up together.

A decoder reads a sentence before it waits for its first piece: 20 launches of `read` for one that is served
alone. If it takes one step of them a round, each round has a launch of `read` with a few rows, for which
all requests that write wait. So newcomers are held back, and then run their chains at once in launches that
they share: 8 sentences of at most 20 words take 20 launches together, in place of one in each of 40 rounds.

While they are held back they lose a round each, and while they catch up the others lose the time of those
launches. They catch up as soon as the first has cost as much as the second would. Two requests write, and
in each round a newcomer arrives whose first value is five rounds away:

=====  =========  =============  =======================
round  held back  rounds lost    others times launches
=====  =========  =============  =======================
0      1          0              2 times 5
1      2          1              2 times 5
2      3          1 + 2          2 times 5
3      4          1 + 2 + 3      2 times 5
4      5          1 + 2 + 3 + 4  2 times 5: they catch up
=====  =========  =============  =======================

None is held back for more rounds than the longest of these chains would have taken one step a round. Where
no others are under way they run at once. And they are not held back for ops that requests go on to call
after their first value, as a language model that reads and writes by one op, or a parser: launches of these
are there in each round, and a newcomer is one row more in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import compress
from typing import NamedTuple, final

import numpy as np

from multifold import _compiled
from multifold._await.calls import CallTable
from multifold._await.tasks import ExampleTask
from multifold._compiled.arrays import CALL_MASK, starts
from multifold._record.node import Node, SharedNode

SHARE = 1
"""One launch that delays one other request weighs as much as this number of rounds lost by a newcomer.

Decoders at 900 a second, PyTorch on one core, have a p99 of 68, 58, 55, 54 and 58 ms with 0.05, 0.2, 0.4,
0.8 and 3, with 5.1, 4.4, 4.1, 3.9 and 3.5 launches a request; windows of whole requests have 41 ms and 5.0.
"""

FAR = 4
"""How many rounds ahead `Newcomers` looks for ops that are launched in several of them."""

MOST = 256
"""The most signatures that an engine hands to the next one; if there are more, it hands on none."""

Stretches = Mapping[int, Sequence[tuple[int, int]]]
"""The calls of examples, as pairs of the first one and of the one after the last."""

Waiting = tuple[ExampleTask, list[Node]]
"""A task, and the nodes whose values it waits for."""


class Held(NamedTuple):
    """What a task that is held back waits for, since which round, and how many rounds away that is."""

    nodes: list[Node]
    since: int
    rounds: int


@final
class Newcomers:
    """Knows which tasks are held back, and when they catch up.

    Parameters
    ----------
    table : CallTable
        The calls of all requests.
    stretches : dict of int to list
        The calls of each example; see `ServedTasks`.
    usual : iterable
        Keys of the signatures that requests of the same model have called after their first value.
    """

    def __init__(self, table: CallTable, stretches: Stretches, usual: Iterable[Hashable]) -> None:
        self._table, self._stretches = table, stretches
        self._before, self._usual = frozenset(usual), set[int]()  # the same as numbers of this table
        self._held: dict[ExampleTask, Held] = {}
        self._first = self._round = 0  # the next example to meet, and how many rounds there were
        self.holds = False  # whether any was held back so far
        self._joins = 0  # up to this round a launch may be one of a newcomer's first steps

    def among(self, waiting: Sequence[Waiting], started: int) -> list[bool]:
        """Return which of some tasks are held back; an empty list if none is. To be called once a round.

        ``started`` says how many examples have begun so far.
        """
        self._round += 1
        held = self._held
        if held:
            there = [task in held and held[task].nodes is nodes for task, nodes in waiting]
            self._held = held = {task: held[task] for task, _ in compress(waiting, there)}  # others went on
        if self._first < started:
            if new := [one for one in waiting if one[0].example >= self._first]:
                self._meet(new)
            self._first = started
        return [task in held for task, _ in waiting] if held else []

    def _meet(self, tasks: Sequence[Waiting]) -> None:
        """Take in tasks that wait for their first values, and hold back those that are far from them."""
        often, most = self._often(dict.fromkeys(task.example for task, _ in tasks))
        self._joins = self._round + most
        if not self._strange(often):
            return
        table, calls = self._table, _compiled.awaited([*tasks], SharedNode)[0] & CALL_MASK
        launches = np.diff(table.next_calls(calls, FAR)[1]).reshape(FAR, -1)
        counts = np.count_nonzero(launches, axis=0).tolist()
        if not self._strange({one for one, count in zip(table.order, counts, strict=True) if count > 1}):
            return
        found = np.where(table.result[calls] > 0, 0, table.renumbered(calls))
        sizes = np.array([len(nodes) for _, nodes in tasks], np.int64)
        self._joins = self._round
        for (task, nodes), rounds in zip(
            tasks, np.maximum.reduceat(found, starts(sizes)[:-1]), strict=True
        ):
            if rounds > 1:
                self.holds = True
                self._held[task] = Held(nodes, self._round, int(rounds))

    def _strange(self, numbers: set[int]) -> bool:
        """Return whether a signature among some reads nodes, and is not known to follow a first value."""
        found = [self._table.graph.signatures[number] for number in numbers - self._usual]
        return any((one.refs or one.ragged) and one.key not in self._before for one in found)

    def _often(self, examples: Iterable[int]) -> tuple[set[int], int]:
        """Return the signatures that any example calls more than once, and the most calls of an example."""
        signature, often, most = np.asarray(self._table.graph.signature), set[int](), 0
        for example in examples:
            calls = [
                one for begin, end in self._stretches[example] for one in signature[begin:end].tolist()
            ]
            often.update([number for number, count in Counter(calls).items() if count > 1])
            most = max(most, len(calls))
        return often, most

    def catch_up(self, others: int) -> int:
        """Return how many rounds those that are held back run now; 0 if they wait.

        ``others`` says how many requests besides them wait for values.
        """
        held = self._held.values()
        rounds = max(one.rounds for one in held)
        lost = [self._round - one.since for one in held]
        if max(lost) < rounds and sum(lost) < SHARE * others * rounds:
            return 0
        self._joins = self._round
        return rounds

    def ran(self, numbers: Sequence[int]) -> None:
        """Note which signatures a round has launched, unless some of it may be a newcomer's first steps."""
        if self._round > self._joins:
            self._usual.update(numbers)

    def usual(self) -> frozenset[Hashable]:
        """Return the keys of the signatures that requests have called after their first value."""
        found = [self._table.graph.signatures[number] for number in self._usual]
        kept = self._before.union([one.key for one in found if one.outlives_reset])
        return kept if len(kept) <= MOST else frozenset()
