"""What examples leave behind: pending arrays in their results, and in places that others find as well.

In the loop an example sees what those before it have left, and may change it in place: ``total += y``,
where an earlier example has made ``total``. A pending array then stands for another call. So what an
example has left is known once the code of all examples has run, and is asked for only then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from multifold.operands import Each


class Left(Each):
    """The pending arrays that one example has left, as its result for `Fold.run`: a list of their values.

    Each is computed for the example that has made or changed it last, and for all that have returned it.

    Parameters
    ----------
    recorder : LazyRecorder
        Knows which arrays are out of date.
    owners : dict of int to int
        The number of the example that has made or changed an array last, by ``id`` of the array; those of
        this example are entered.
    number : int
        The number of the example. It is made when the code of the example has ended.
    result : object
        What the code has returned, nested.
    pending : list
        The pending arrays in ``result``, and all others that the example has made or changed and that some
        object still holds.
    """

    __slots__ = ("found", "number", "owners", "pending", "recorder", "result")

    def __init__(
        self, recorder: Any, owners: dict[int, int], number: int, result: Any, pending: Sequence[Any]
    ) -> None:
        self.recorder = recorder
        self.owners = owners
        self.number = number
        self.result = result
        self.pending = pending
        self.found: list[Any] | None = None
        owners.update(dict.fromkeys(map(id, pending), number))

    @property
    def asked(self) -> list[Any]:
        """The arrays whose values the example asks for; ask once the code of all examples has run.

        Those that are out of date are left out, unless the example has returned them: then a `RecordError`
        is raised.
        """
        if self.found is None:
            recorder, owners, number = self.recorder, self.owners, self.number
            found = [x for x in self.pending if not recorder.is_stale(x)]
            if len(found) < len(self.pending) or any(owners[id(x)] != number for x in found):
                returned = recorder.returned(self.result)
                found = [x for x in found if owners[id(x)] == number or id(x) in returned]
            self.found = found
        return self.found

    @property
    def value(self) -> tuple[Any, ...]:
        """The nodes of `asked`, in order."""
        return tuple([x.node for x in self.asked])
