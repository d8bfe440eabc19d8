"""Newcomers: requests whose first value is many rounds away wait for each other, and catch up together.

A decoder reads a sentence before it waits for its first piece: 20 words, say, by as many launches of `read`
if it is alone. If it takes one step of them a round, each round has a launch of `read` with a few rows, for
which all requests that write wait. So newcomers are held back, and then run their chains at once in
launches that they share: 8 sentences of at most 20 words take 20 launches together. If one came in every
third round, and each read by itself, there would be one in each of 41 rounds.

While they are held back they lose a round each, and while they catch up the others lose the time of those
launches. They catch up once they have lost, all together, as many rounds as their launches times the
requests that would wait for those. Two requests write, and in each round a newcomer arrives whose first
value is five rounds away:

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

from collections.abc import Hashable, Iterable
from typing import NamedTuple, final

from multifold._await.calls import CallTable
from multifold._compiled import Owners
from multifold._compiled.arrays import Growing, Integers

SHARE = 1
"""One launch that delays one other request weighs as much as this number of rounds lost by a newcomer.

Decoders at 1,250 a second, PyTorch on one core, have a p99 of 54, 52, 59 and 60 ms with 0.5, 1, 2 and 4,
with 3.3, 3.0, 2.9 and 2.7 launches a request; windows of 64 whole requests have 46 ms and 3.2. At 900 a
second the decoders have 40, 37, 37 and 40 ms, and windows 37.
"""

FAR = 4
"""How many rounds ahead `Newcomers` looks for ops that are launched in several of them."""

MOST = 256
"""The most signatures that an engine hands to the next one; if there are more, it hands on none."""


class Held(NamedTuple):
    """The request that waits for a value, since which round, and how many rounds away the value is."""

    example: int
    since: int
    rounds: int


@final
class Newcomers:
    """Knows which values wait for others, and when the requests that wait for them catch up.

    Parameters
    ----------
    table : CallTable
        The calls of all requests.
    owners : Owners
        Whose they are.
    usual : iterable
        Keys of the signatures that requests of the same model have called after their first value.
    """

    def __init__(self, table: CallTable, owners: Owners, usual: Iterable[Hashable]) -> None:
        self._table = table
        self._owners = owners
        # and numbers learned here
        self._before = frozenset(usual)
        self._usual = set[int]()
        self._odd: dict[int, bool] = {}  # signatures that read nodes, and are new after a first value
        self._held: dict[int, Held] = {}  # calls whose values are held back
        self._flags = Growing(bool)  # for each call whether it is one of those
        self._requests: list[Held] = []  # the same, one for each request
        self._first = self._seen = 0  # the examples that were met, and the calls that were looked at
        self._round = 0
        self.holds = False  # whether any was held back so far

    def divide(
        self, calls: Integers, count: int, started: int, requests: int
    ) -> tuple[Integers, Integers, int]:
        """Divide calls that requests wait for into those that go on and those that are held back.

        To be called once a round.

        Parameters
        ----------
        calls : int64 array
            What the requests wait for: first their tasks, then their results.
        count : int
            How many of these calls tasks wait for.
        started, requests : int
            How many examples have begun so far, and how many are under way.

        Returns
        -------
        others, held : int64 arrays
            The calls that go on, and those that are held back.
        rounds : int
            How many rounds those that are held back run now; 0 if they wait.
        """
        self._round += 1
        if not self._held and self._first == started:
            return calls, calls[:0], 0
        self._flags.grow(len(self._table.graph.signature) - self._flags.size)
        if self._first < started:
            self._meet(calls[:count])
            self._first = started
        mine = self._flags.values[calls]
        held = calls[mine]
        if len(held) != len(self._held):  # some have run, or their requests have ended
            before = self._held
            self._held = {}
            self._requests = []
            self._flags.values[[*before]] = False
            self._hold({call: before[call] for call in held.tolist()})
        return calls[~mine], held, self._catch_up(requests) if self._held else 0

    def _meet(self, awaited: Integers) -> None:
        """Hold back what new examples wait for, if that is far away by calls that only they have."""
        table = self._table
        odd = self._learn()
        if not odd:
            return
        examples = self._owners.of_calls[awaited]
        new = examples >= self._first
        calls = awaited[new]
        launched = table.next_calls(calls, FAR)[1].tolist()
        count = len(table.order)
        often = [
            sum([launched[i] < launched[i + 1] for i in range(rank, FAR * count, count)]) > 1
            for rank, number in enumerate(table.order)
            if number in odd
        ]
        if any(often):
            facts = calls, examples[new], table.renumbered(calls), table.result[calls]
            found = zip(*[fact.tolist() for fact in facts], strict=True)
            far = {
                x: Held(of, self._round, rounds) for x, of, rounds, ran in found if not ran and rounds > 1
            }
            self._hold(far)
            self.holds |= bool(far)

    def _hold(self, far: dict[int, Held]) -> None:
        """Hold back calls, of other requests than those that are held back already."""
        for call in far:
            self._flags.values[call] = True
        self._held |= far
        farthest = {one.example: one for one in sorted(far.values(), key=lambda one: one.rounds)}
        self._requests += farthest.values()

    def _catch_up(self, requests: int) -> int:
        """Return how many rounds those that are held back run now; 0 if they wait."""
        held = self._requests
        rounds = max([one.rounds for one in held])
        lost = [self._round - one.since for one in held]
        waits = max(lost) < rounds and sum(lost) < SHARE * (requests - len(held)) * rounds
        return 0 if waits else rounds

    def _learn(self) -> set[int]:
        """Look at the calls since the last time: learn which signatures follow a first value.

        Return those that read nodes, belong to new examples, and are not known to follow a first value.
        """
        signatures = self._table.graph.signatures
        first = self._seen
        self._seen, later, new = self._owners.signatures(first, self._first)
        self._usual |= later
        found = new - self._usual
        for number in found - self._odd.keys():
            one = signatures[number]
            self._odd[number] = bool(one.refs or one.ragged) and one.key not in self._before
        return {number for number in found if self._odd[number]}

    def usual(self) -> frozenset[Hashable]:
        """Return the keys of the signatures that requests have called after their first value."""
        self._learn()
        found = [self._table.graph.signatures[number] for number in self._usual]
        kept = self._before.union([one.key for one in found if one.outlives_reset])
        return kept if len(kept) <= MOST else frozenset()
