"""Programs of one form on several shards, here and in other processes.

What runs on several devices is compiled once for all of them, so their programs must agree in form: in the
ops that they know, in what shares a slab, and in all sizes. The shards of one process share a `Family` and
take sizes that hold each of them. Processes send each other what their shards need, a few hundred bytes a
step, and each then decides the same.

In two processes, one with the calls ``leaf leaf join`` and one with ``leaf``, it goes like this:

    said                 process 0                       process 1
    what is new          yes                             yes
    families             {leaf, join}                    {leaf}                   both: {leaf, join}
    sizes                leaf 8 rows, join 4 tiles       leaf 8 rows, join 0      both: leaf 8, join 4 tiles

In the next step nothing is new, so that no families are sent. Once sizes are known into which all shards
fit, the processes ask each other for these only.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from multifold._engine.traces.trace import Trace
from multifold.errors import RecordError, type_of
from multifold.program.kernels import Family
from multifold.program.layout import Program, RaggedColumn

T = TypeVar("T")

Exchange = Callable[[bytes], Sequence[bytes]]
"""Sends some bytes to all processes, and returns what each of them has sent, by their ranks."""

LayOut = Callable[[Sequence[Trace], Family], Program]
"""Lays out the ragged program of some traces, with what programs of a family had before."""


class Processes:
    """How processes exchange what each of them says; without ``exchange`` this process is the only one.

    Examples
    --------
    >>> Processes().all(lambda: 3)
    [3]
    >>> Processes(lambda said: [said, said]).all(lambda: 3)
    [3, 3]
    """

    def __init__(self, exchange: Exchange | None = None) -> None:
        self.exchange = exchange

    def all(self, make: Callable[[], T]) -> list[T]:
        """Call ``make()`` here, as each process does, and return what all returned, by rank.

        Values travel pickled through ``exchange``, which sends bytes to all processes and returns theirs;
        without it this is ``[make()]``. If ``make`` raises here, that is raised once the other processes
        know; if it raises in another process, this raises `RecordError`. If one process raised alone, the
        others would wait for it for ever.
        """
        if self.exchange is None:
            return [make()]
        failure: Exception | None = None
        try:
            said = pickled(make())
        except Exception as error:  # noqa: BLE001 - raised when the others know
            failure = error
            said = pickle.dumps((None, f"{type(error).__name__}: {error}"))
        found = [pickle.loads(x) for x in self.exchange(said)]
        if failure is not None:
            raise failure
        for process, (_, text) in enumerate(found):
            if text is not None:
                raise RecordError(
                    f"Process {process} could not make its programs: it raised {text}",
                    "see what that process says; without its programs no other one can go on.",
                )
        return [value for value, _ in found]


def pickled(value: Any) -> bytes:
    """Pickle the pair ``(value, None)``, which `Processes.all` sends.

    None is the place for the text of an error. Raises `RecordError` if the value can't be pickled.
    """
    try:
        return pickle.dumps((value, None))
    except Exception as error:
        raise RecordError(
            f"Expected ops and static values that can be pickled for other processes. Received some that "
            f"can't: {error}",
            "name the ops, and let the model of each process look them up.",
        ) from error


ALONE = Processes()
"""The only process: `ALONE.all` calls a function here and asks no other."""


class Said(NamedTuple):
    """What a process says first.

    Attributes
    ----------
    counts : list of int
        The examples of each of its shards.
    grown : bool
        Whether its family holds more than what the processes have agreed on.
    """

    counts: list[int]
    grown: bool


class Agreement:
    """What the programs of several shards have agreed on.

    Attributes
    ----------
    family : Family
        What their programs have had so far.
    extent : tuple of int or None
        How much of it all processes hold.
    sample : list of Trace
        One example, whose program without any call is that of a shard that has no example.
    """

    def __init__(self) -> None:
        self.family = Family(joins_results=True)
        self.extent: tuple[int, ...] | None = None
        self.sample: list[Trace] = []

    def programs(
        self, lay: LayOut, batches: Sequence[Sequence[Trace]], processes: Processes
    ) -> tuple[list[Program], list[int]]:
        """Make a ragged program for each shard of this process, all of one form.

        ``batches`` has the traces of each shard, and ``lay`` makes a program of them. Returns the programs,
        and how many examples each shard of every process has, by rank. While the programs of any process
        add something to its ``family``, all processes `agree`, and all programs are laid out once more.

        Raises
        ------
        RecordError
            If no shard has an example, or if their programs can't have one form.
        """
        made: list[Program] = []

        def lay_all() -> Said:
            # Before processes have agreed for the first time there may be no sample. Then a shard without
            # an example has no program yet; the family has grown, so all are laid out once more.
            made[:] = [self.laid_out(lay, own) for own in batches if own or self.sample]
            grown = self.family.extent != self.extent
            # As long as the family grows, the first program lacks what the last one has brought.
            if not grown:
                refuse_other_forms(made)
            return Said([len(own) for own in batches], grown)

        while True:
            said = processes.all(lay_all)
            counts = [count for one in said for count in one.counts]
            if not any(counts):
                raise RecordError(
                    "Expected an example on at least one shard. Received none.",
                    "leave out steps for which no process has an example.",
                )
            if not any(one.grown for one in said):
                return made, counts
            self.agree(batches, processes)

    def laid_out(self, lay: LayOut, own: Sequence[Trace]) -> Program:
        """Return the ragged program of a shard, ``lay(own, family)``, which may add to ``family``.

        A shard without examples gets that of ``sample``, `emptied`.
        """
        return lay(own, self.family) if own else emptied(lay(self.sample, self.family))

    def agree(self, batches: Sequence[Sequence[Trace]], processes: Processes) -> None:
        """Make one new family of the families of all processes, in the order of their ranks.

        Sets ``family``, ``extent`` and ``sample``, the same on every process. ``batches`` has the traces of
        each shard of this process; the shortest may become the sample.
        """
        # Any example will do, and the shortest is sent in the least time.
        shortest = sorted((trace for own in batches for trace in own), key=len)[:1]
        found = processes.all(lambda: (self.family, self.sample or shortest))
        # A new family takes in those of all processes by rank, so that each process gives each kernel the
        # same number.
        self.family = Family(joins_results=True)
        for family, _ in found:
            self.family.take_in(family)
        self.extent = self.family.extent
        self.sample = next(sample for _, sample in found if sample)


def refuse_other_forms(programs: Sequence[Program]) -> None:
    """Raise `RecordError` if programs have several forms, or given rows that are no arrays of NumPy."""
    given = [x for program in programs for x in program.given if not isinstance(x, np.ndarray)]
    if given:
        raise RecordError(
            f"Expected arrays of NumPy in traces of several shards. Received {type_of(given[0])}.",
            "an array of a framework can't be padded to a common size: record numpy.asarray(x).",
        )
    if len({program.form for program in programs}) > 1:
        raise RecordError(
            "Expected examples whose programs can have one form. Received shards that differ in more than "
            "their sizes.",
            "all examples return one structure; and what is read whole, as no_batch() reads it, is of "
            "another form in each minibatch.",
        )


def refuse_other_sizes() -> None:
    """Raise the `RecordError` of programs for which there are no common sizes."""
    raise RecordError(
        "Expected programs that fit into common sizes. Received shards with ragged operands of other "
        "lengths in calls that run alone.",
        "a call whose result is read whole, as no_batch() reads it, can't be padded.",
    )


def emptied(program: Program) -> Program:
    """Return a new program of the same form without calls: no column, group or given array has entries.

    Its ``starts``, ``sizes``, ``bounds`` and ``counts`` are zeros, it has no launches, and it keeps parts
    of no example. Shared arrays stay.
    """

    def none(column: Any) -> Any:
        if isinstance(column, RaggedColumn):
            return RaggedColumn(column.addresses[:0], column.splits[:1], column.segments[:0])
        return None if column is None else column[:0]

    kept = program.kept
    if kept is not None:
        kept = replace(kept, outputs=replace(kept.outputs, kept=[]), examples=0, places=())
    return replace(
        program,
        starts=np.zeros_like(program.starts),
        sizes=np.zeros_like(program.sizes),
        bounds=np.zeros_like(program.bounds),
        launches=program.launches[:0],
        columns=tuple(tuple(map(none, columns)) for columns in program.columns),
        groups=tuple(map(none, program.groups)),
        given=tuple(map(none, program.given)),
        counts=np.zeros_like(program.counts),
        kept=kept,
    )
