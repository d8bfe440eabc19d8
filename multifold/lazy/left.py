"""What examples leave behind: pending arrays in their results, and in places that others find as well.

In the loop an example sees what those before it have left, and may change it in place: ``total += y``,
where an earlier example has made ``total``. A pending array then stands for another call. So what an
example has left is known once the code of all examples has run, and is asked for only then.
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from multifold._engine.plan.each import RowsOfEach


class Left(RowsOfEach):
    """The pending arrays that one example has left behind, as its result for `Fold.run`.

    Each is computed for the example that has made or changed it last, and for all that have returned it.

    Parameters
    ----------
    lefts : Lefts
        What all examples of the run have left.
    number : int
        The number of the example, whose code has ended.
    result : object
        What the code has returned, nested.
    pending : list
        The pending arrays in ``result``, and all others that the example has made or changed and that some
        object still holds.
    """

    __slots__ = ("found", "lefts", "number", "pending", "result")

    def __init__(self, lefts: Lefts, number: int, result: Any, pending: Sequence[Any]) -> None:
        self.lefts = lefts
        self.number = number
        self.result = result
        self.pending = pending
        self.found: list[Any] | None = None

    @property
    def asked(self) -> list[Any]:
        """The arrays whose values the example asks for; ask once the code of all examples has run.

        Those that are out of date are left out, unless the example has returned them: then a `RecordError`
        is raised.
        """
        if self.found is None:
            recorder, owners, number = self.lefts.recorder, self.lefts.owners, self.number
            found = [x for x in self.pending if owners[id(x)] == number and not recorder.is_stale(x)]
            if len(found) < len(self.pending):
                found = [x for x in self.pending if not recorder.is_stale(x)]
                returned = recorder.returned(self.result)
                found = [x for x in found if owners[id(x)] == number or id(x) in returned]
            self.found = found
        return self.found

    @property
    def value(self) -> tuple[Any, ...]:
        """The nodes of `asked`, in order."""
        return tuple([x.node for x in self.asked])

    @property
    def are_joined(self) -> bool:
        """Whether the rows of all examples become one array for each entry of `value`."""
        return self.lefts.forms is not None

    def forget(self) -> list[weakref.ref[Any]]:
        """Drop the result, and return weak references to the arrays in `asked`: others may hold these."""
        found = [weakref.ref(x) for x in self.asked]
        self.result, self.pending, self.found = None, (), None
        return found


class Lefts:
    """What all examples of a run have left, by their numbers.

    Parameters
    ----------
    recorder : LazyRecorder
        Knows which arrays are out of date.
    how : str
        How the results of the examples are to be joined; `LazyRecorder.may_join` says whether arrays of
        rows can be.

    Attributes
    ----------
    owners : dict of int to int
        The number of the example that has made or changed an array last, by ``id`` of the array.
    of_example : dict of int to Left
        What each example has left, by its number.
    """

    def __init__(self, recorder: Any, how: str) -> None:
        self.recorder = recorder
        self.how = how
        self.owners: dict[int, int] = {}
        self.of_example: dict[int, Left] = {}

    def add(self, number: int, result: Any, pending: Sequence[Any]) -> Left:
        """Keep what an example has left, whose code has ended, and return it; see `Left`."""
        self.owners.update(dict.fromkeys(map(id, pending), number))
        left = self.of_example[number] = Left(self, number, result, pending)
        return left

    @cached_property
    def forms(self) -> list[Any] | None:
        """The form of each array in the result of an example, if all are alike; ask as for `Left.asked`.

        None if results differ in structure or in forms, if they have anything but pending arrays in them,
        or if examples have left others.
        """
        first: Any = None
        for left in self.of_example.values():
            asked = left.asked
            if len(asked) != 1 or asked[0] is not left.result:
                leaves, structure = self.recorder.flatten(left.result)
                if len(leaves) != len(asked) or any(x is not y for x, y in zip(leaves, asked, strict=True)):
                    return None
            else:
                structure = None  # it is one array, as nearly always
            found = structure, [x.form for x in asked]
            if first is None:
                first = found
            elif found != first:
                return None
        forms: list[Any] = [] if first is None else first[1]
        may_join = bool(forms) and all(self.recorder.may_join(form, self.how) for form in forms)
        return forms if may_join else None

    def settled(self, rows: Sequence[Any], raised: Container[int], failed: Container[int]) -> list[Any]:
        """Return the results of all examples, in order, but those of the numbers ``raised`` and ``failed``.

        ``rows`` has a list of the values of `Left.asked` for each example that has not failed.
        """
        kept = [left for number, left in sorted(self.of_example.items()) if number not in failed]
        for left, own in zip(kept, rows, strict=True):
            for x, row in zip(left.asked, own, strict=True):
                # Several examples may have returned one array. What an example has kept before it raised
                # has a value, too, as in the loop.
                if type(x) is self.recorder.pending:
                    self.recorder.settle(x, row)
        return [self.recorder.settled(left.result, {}) for left in kept if left.number not in raised]

    def joined(self, arrays: Sequence[Any]) -> JoinedResult:
        """Return the joined result of all examples, from an array with their rows for each of ``forms``.

        Pending arrays that someone else holds are settled; the lefts are empty afterwards.
        """
        lefts = [left for _, left in sorted(self.of_example.items())]
        structure = self.recorder.flatten(lefts[0].result)[1]
        refs = zip(*[left.forget() for left in lefts], strict=True)
        found = [self.column(*column) for column in zip(self.forms or (), arrays, refs, strict=True)]
        return JoinedResult(structure.unflatten(found))

    def column(self, form: Any, rows: Any, refs: Sequence[weakref.ref[Any]]) -> Any:
        """Return one array of the joined result, from the rows of all examples.

        ``refs`` are weak references to the pending array of each example. If someone holds any of these,
        those are settled, and the result is made of their values, not of the rows: the program may ask for
        their gradients, and give them hooks.
        """
        recorder = self.recorder
        held: list[Any] = [ref() for ref in refs]
        if not any(type(x) in (recorder.pending, recorder.settled_type) for x in held):
            return recorder.join_rows(self.how, form, rows)
        found = []
        for i, x in enumerate(held):
            own = rows[i : i + 1]
            if type(x) is recorder.pending:  # several examples may have returned it
                recorder.settle(x, own)
            found.append(x.value if type(x) is recorder.settled_type else recorder.computed(form, own))
        return recorder.join(found, self.how)


class JoinedResult(NamedTuple):
    """The results of all examples as one: their arrays are joined."""

    value: Any
