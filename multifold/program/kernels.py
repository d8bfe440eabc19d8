"""Which kernels a plan has, in which phases they run, and which row of its kernel each call is.

All of it is vectorised over calls, with loops over kernels and launches only. Kernels that read each other
in a circle, or themselves, run in one loop over the launches of the schedule; all calls of any other kernel
are one launch. A kernel whose result is read whole runs alone, since that result may have any shape.

A minibatch may lack an op, or have no tree of one leaf. If its form followed from its own calls only, every
executor would compile anew for it. So a fold keeps a `Family`: forms only ever grow, and a kernel that a
minibatch does not call has no rows there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import numpy as np

from multifold._engine.compiled.arrays import Integers, starts, strong_components, unique_pairs
from multifold._engine.plan.plan import Plan
from multifold._engine.plan.schedule import Schedule
from multifold._engine.record.freezing import freeze, nesting
from multifold._engine.record.signature import Signature

Key = tuple[Any, ...]
"""What reads or holds rows of slabs, by value: ``("operand", kernel, slot)``, ``("group", structure,
result)``, ``("given", class, dtypes)`` or ``("result", kernel, steps, dtypes)``, with `Source.dtypes`."""


Promoted = Callable[[Integers], tuple[tuple[Any, ...], Integers]]
"""Returns the dtypes that the rows of some references are promoted to, leaf by leaf, and which of the
references are converted to them; no dtypes where the rows stay as they are."""


class Family:
    """Kernels, edges and slabs that the programs of a fold have had so far.

    Attributes
    ----------
    kernels : dict
        Key of a kernel -> its number.
    signatures, sites : lists
        A signature of each kernel, and the line that recorded its first call.
    edges : set of (int, int)
        Kernels whose results are read, and the kernels that read them.
    parents : dict
        A forest of keys (union-find, Tarjan 1975): what is in one tree shares a slab.
    lacking : set of (int, int)
        Ragged operands, by kernel and slot, of which a call has had no row.
    joins_results : bool
        Whether all programs ask for the same results, as those of several shards do: then the results of
        one shard whose trees are leaves share a slab with those of another whose trees are pairs.
    """

    def __init__(self, *, joins_results: bool = False) -> None:
        self.joins_results = joins_results
        self.kernels: dict[tuple[Any, ...], int] = {}
        self.signatures: list[Signature] = []
        self.sites: list[str] = []
        self.edges: set[tuple[int, int]] = set()
        self.parents: dict[Key, Key] = {}
        self.lacking: set[tuple[int, int]] = set()

    def number(self, key: tuple[Any, ...], signature: Signature, site: str) -> int:
        """Return the number of the kernel with this key; a new key gets the next number, from 0.

        ``signature`` and ``site``, the line of its first call, are kept for a new key only.
        """
        number = self.kernels.setdefault(key, len(self.signatures))
        if number == len(self.signatures):
            self.signatures.append(signature)
            self.sites.append(site)
        return number

    def root(self, key: Key) -> Key:
        """Return the key that stands for all keys that share a slab with ``key``.

        A new key is added to ``parents`` and stands for itself.
        """
        parent = self.parents.setdefault(key, key)
        while parent != key:
            # Halve the path on the way: the next walk from here is half as long.
            self.parents[key] = self.parents[parent]
            key = parent
            parent = self.parents[parent]
        return key

    @property
    def extent(self) -> tuple[int, ...]:
        """How much it holds: five counts, which only grow. Equal counts mean that nothing was added.

        They count kernels, edges, keys of ``parents``, entries of ``lacking``, and keys that were linked.
        """
        linked = sum(key != parent for key, parent in self.parents.items())
        return len(self.kernels), len(self.edges), len(self.parents), len(self.lacking), linked

    def take_in(self, other: Family) -> None:
        """Add the kernels, edges, lacking operands and shared slabs of ``other`` to this family.

        Its kernels get the numbers that their keys have here, or new ones.
        """
        named = zip(other.kernels, other.signatures, other.sites, strict=True)
        numbers = [self.number(*kernel) for kernel in named]
        self.edges.update((numbers[source], numbers[reader]) for source, reader in other.edges)
        self.lacking.update((numbers[kernel], slot) for kernel, slot in other.lacking)

        def renumbered(key: Key) -> Key:
            # Only operands and results name a kernel.
            return key if key[0] in ("given", "group") else (key[0], numbers[key[1]], *key[2:])

        for key in list(other.parents):
            self.link(renumbered(key), [renumbered(other.root(key))])

    def link(self, reader: Key, sources: Iterable[Key]) -> None:
        """Let ``reader`` and ``sources`` share one slab, with all that shared a slab with any of them.

        New keys are added to ``parents``. Then `root` returns for all of them what it returned for
        ``reader``.
        """
        root = self.root(reader)
        for source in sources:
            self.parents[self.root(source)] = root


def kernel_key(signature: Signature) -> Key:
    """Return a hashable key: all of a signature but the values of shared arrays, the data of programs.

    `number_kernels` adds what the rows of a type have in common, whether its calls run alone, and a number
    that tells types of one key apart: calls of one such longer key are rows of one kernel.
    """
    slots = tuple((slot.kind, None if is_shared_array(slot) else slot.key) for slot in signature.slots)
    return *op_key(signature), signature.structure, slots


def op_key(signature: Signature) -> Key:
    """Return a hashable key of a signature's op, the nesting of its operands, and its static arguments."""
    op = signature.op if isinstance(signature.op, str) else freeze(signature.op)
    return op, nesting(signature.structure, len(signature.slots)), freeze(signature.static)


def is_shared_array(slot: Any) -> bool:
    """Return whether a `Slot` of a signature is a `multifold.shared` operand whose value has a dtype."""
    return slot.kind.shared and hasattr(slot.value, "dtype")


def order_of(signature: Signature) -> str:
    """Return a text by which signatures are sorted, whatever the order of the examples.

    It has the name, the kinds and values of the slots, the structure and the static arguments, but no value
    of a shared operand.
    """
    # The values of shared arrays are left out, since they are no part of a kernel (`kernel_key`).
    slots = [(slot.kind.name, "" if slot.kind.shared else str(slot.value)) for slot in signature.slots]
    return f"{signature.name} {slots} {signature.structure} {signature.static}"


@dataclass(frozen=True)
class CalledKernels:
    """The kernels of a family, and which of them each call of a plan is of.

    Attributes
    ----------
    signatures : list of Signature
        By kernel: of this plan, or of an earlier one where no call of this plan is of the kernel.
    whole, solo : lists of bool
        See `Kernel`.
    number : int64 array of shape ``(calls,)``
        The kernel of each call that is run, else -1.
    """

    signatures: list[Signature]
    whole: list[bool]
    solo: list[bool]
    number: Integers

    def __len__(self) -> int:
        return len(self.signatures)


def number_kernels(plan: Plan, family: Family, classes: Mapping[int, Hashable]) -> CalledKernels:
    """Give each call that the plan runs a kernel of ``family``, which gets new kernels where it lacks some.

    ``classes`` maps a type of call to what its rows have in common (`refine`), and may lack types; types of
    other classes are other kernels. The numbers do not depend on the order of the examples.
    """
    columns = plan.columns
    # Sorted: the first call of each type is then the one that was recorded first, whose line errors name.
    calls = np.sort(plan.schedule.calls)
    types, first = np.unique(plan.types[calls], return_index=True)
    firsts = calls[first].tolist()
    alone = set(plan.alone.tolist())
    signatures = [columns.signatures[columns.signature[call]] for call in firsts]
    kernel_of = np.full(int(types.max()) + 1 if len(types) else 0, -1)  # by type
    twins: Counter[Hashable] = Counter()
    present: dict[int, Signature] = {}
    # By the text of the signature first: the same examples in another order must give the same form.
    for i in sorted(range(len(types)), key=lambda i: (order_of(signatures[i]), firsts[i])):
        key = kernel_key(signatures[i]), classes.get(int(types[i])), firsts[i] in alone
        # Two types may have one key: calls with the shared arrays a and b differ in type, but a key leaves
        # out the values of shared arrays. They are two kernels, the first and the second of their key.
        twins[key] += 1
        kernel = family.number((*key, twins[key]), signatures[i], plan.site(firsts[i]))
        kernel_of[types[i]] = kernel
        present[kernel] = signatures[i]
    # A kernel that no call of this plan is of keeps an earlier signature, and gets columns without rows.
    own = [present.get(kernel, signature) for kernel, signature in enumerate(family.signatures)]
    # The third entry of a key says whether its calls run alone.
    whole = [bool(key[2]) for key in family.kernels]
    # There is at least one entry, since loose values look up call 0.
    number = np.full(max(len(columns), 1), -1)
    number[calls] = kernel_of[plan.types[calls]]
    return CalledKernels(own, whole, [w or not s.batched for w, s in zip(whole, own, strict=True)], number)


class PhaseLaunches(NamedTuple):
    """A phase, and the launches of the schedule that it runs.

    Attributes
    ----------
    kernels : list of int
        The kernels that it runs.
    loop : bool
        Whether it is a loop.
    launches : list of list of int
        For each of its launches the launches of the schedule that become that one.
    """

    kernels: list[int]
    loop: bool
    launches: list[list[int]]


def order_launches(plan: Plan, kernels: CalledKernels, family: Family) -> list[PhaseLaunches]:
    """Return the phases in the order in which they run, each with its launches of the schedule.

    Kernels that read each other in a circle become a loop, and any other kernel a phase of one launch. A
    solo kernel, whose launches make one row of any shape, divides a loop that it is in. Launches are
    positions in ``plan.schedule``.
    """
    schedule = plan.schedule
    count = len(kernels)
    component, circle = circles(plan, kernels, family)
    kernel = kernels.number[schedule.calls[schedule.bounds[:-1]]].tolist()  # of each launch
    launches: list[list[int]] = [[] for _ in range(count)]
    members: list[list[int]] = [[] for _ in range(count)]
    for launch in range(len(schedule)):
        launches[component[kernel[launch]]].append(launch)
    for number in range(count):
        members[component[number]].append(number)
    phases: list[PhaseLaunches] = []
    # Tarjan's numbers grow from the last readers to the first sources.
    for number in range(count - 1, -1, -1):
        own = members[number]
        found = launches[number]
        batched = [kernel for kernel in own if not kernels.solo[kernel]]
        if not own:
            continue
        if not circle[number]:
            phases.append(PhaseLaunches(own, False, [found] if found else []))
        elif batched == own:
            phases.append(PhaseLaunches(own, True, [[launch] for launch in found]))
        else:
            # A solo kernel has one row a launch, of any shape, so it can't stand in a loop over tiles. Its
            # launches interrupt the loop, and each stretch between two of them is a loop of its own.
            for solo, some in groupby(found, key=lambda launch: kernels.solo[kernel[launch]]):
                stretch = [[launch] for launch in some]
                if solo:
                    phases += [PhaseLaunches([kernel[x[0]]], False, [x]) for x in stretch]
                else:
                    # Only the kernels that this stretch calls: the others may read a value that a later
                    # launch computes.
                    used = {kernel[launch] for (launch,) in stretch}
                    phases.append(PhaseLaunches([n for n in batched if n in used], True, stretch))
    return phases


def circles(plan: Plan, kernels: CalledKernels, family: Family) -> tuple[Integers, np.ndarray]:
    """Find the circles of kernels that read each other. Adds the edges of the plan to ``family``.

    Returns the component of each kernel, an int64 array, and a bool array: whether a component is a circle,
    so that it has several kernels or one that reads itself. Readers have lower components than sources.
    """
    count = len(kernels)
    sources, readers = (kernels.number[calls] for calls in plan.columns.edges)
    both = (sources >= 0) & (readers >= 0)
    pairs = unique_pairs(sources[both], readers[both], count)
    # Edges of earlier plans count, too. A minibatch of trees with at most two leaves has no `join` that
    # reads a `join`. If it ran `join` once, its form would differ from the form of all other minibatches.
    family.edges.update(zip(*(ends.tolist() for ends in pairs), strict=True))
    edges = np.array(sorted(family.edges), np.int64).reshape(len(family.edges), 2)
    component = strong_components(count, edges[:, 0], edges[:, 1])
    # A circle has several kernels, or one that reads itself.
    circle = np.bincount(component) > 1
    circle[component[edges[edges[:, 0] == edges[:, 1], 0]]] = True
    return component, circle


@dataclass(frozen=True)
class KernelRows:
    """The rows of kernels, in the order in which they are computed.

    Attributes
    ----------
    row : int64 array of shape ``(calls,)``
        The row of each call in its kernel.
    calls : list of int64 arrays
        For each kernel the call of each row.
    launches : int32 array of shape ``(launches, 3)``
        See `Program`.
    kernel : int64 array of shape ``(launches,)``
        The kernel of each launch.
    """

    row: Integers
    calls: list[Integers]
    launches: np.ndarray
    kernel: Integers

    def first_of_launch(self, kernel: int) -> Integers:
        """Return for each row of a kernel the first row of its launch, in the order of the rows.

        For launches of 2 and 3 rows it is ``[0, 0, 2, 2, 2]``.
        """
        own = self.launches[self.kernel == kernel]
        return np.repeat(own[:, 1], own[:, 2])


def number_rows(schedule: Schedule, kernels: CalledKernels, phases: list[PhaseLaunches]) -> KernelRows:
    """Number the rows of each kernel, from 0, in the order of ``phases``, and list the launches.

    A launch of a solo kernel (`Kernel.solo`) is one row, which all of its calls have.
    """
    merged = [launches for phase in phases for launches in phase.launches]
    position = np.zeros(len(schedule), np.int64)
    for entry, launches in enumerate(merged):
        position[launches] = entry
    launch = np.repeat(position, schedule.sizes)  # of each call, in the order of the schedule
    # By kernel, then by launch: the rows of a launch follow each other, so three integers describe it.
    order = np.lexsort((launch, kernels.number[schedule.calls]))
    calls = schedule.calls[order]
    launch = launch[order]
    bounds = starts(np.bincount(kernels.number[calls], minlength=len(kernels)))
    row = np.zeros(len(kernels.number), np.int64)
    row[calls] = np.arange(len(calls)) - bounds[kernels.number[calls]]
    own = [calls[low:high] for low, high in pairwise(bounds.tolist())]
    for number in np.flatnonzero(kernels.solo).tolist():
        # A launch of a solo kernel makes one row, whatever the number of its calls.
        of_row = launch[bounds[number] : bounds[number + 1]]
        _, index, rows = np.unique(of_row, return_index=True, return_inverse=True)
        row[own[number]] = rows.ravel()
        own[number] = own[number][index]
    table: list[tuple[int, int, int]] = []
    kernel = []
    done = [0] * len(kernels)
    heights = np.bincount(launch, minlength=len(merged)).tolist()
    for phase in phases:
        for launches in phase.launches:
            number = int(kernels.number[schedule.calls[schedule.bounds[launches[0]]]])
            # `table` has a line for each launch before this one, so its length is the number of this one.
            height = 1 if kernels.solo[number] else heights[len(table)]
            table.append((phase.kernels.index(number), done[number], height))
            kernel.append(number)
            done[number] += height
    lines = np.array(table, np.int32).reshape(len(table), 3)
    return KernelRows(row, own, lines, np.array(kernel, np.int64))
