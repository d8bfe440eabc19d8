"""Brings awaited values to the host: one copy for each shape and dtype, however many rows there are.

Sixty-four examples that each await a row of scores cost one copy of an array of 64 rows, and each of them
gets its row of that copy. An example that awaits a whole result, by `no_batch`, costs a copy of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import optree

from multifold._engine import compiled
from multifold._engine.compiled.arrays import Integers
from multifold._engine.ops.messages import error_text
from multifold._engine.ops.values import CONTAINERS
from multifold._engine.plan.each import each_of
from multifold._engine.run.run import Run
from multifold.backend import Backend
from multifold.errors import LaunchError

LEAF = optree.tree_structure(0)
"""The structure of a value that is an array."""


def fetch(run: Run, refs: Integers, whole: list[int]) -> list[Any]:
    """Copy awaited values to the host; return one for each reference, in order: a row, or a whole result.

    A row that is a single number is a number of Python's, any other one a NumPy array, or a container of
    these.

    Parameters
    ----------
    run : Run
        The round that computed them, or was given them.
    refs : int64 array
        What is awaited, with the numbers that calls have in the round.
    whole : list of int
        The positions of those references whose whole result is awaited, in ascending order.

    Raises
    ------
    LaunchError
        If the framework has no values to give, as inside ``jax.jit`` or ``tf.function``.
    """
    with Readable(run.backend):
        with run.values.placed():
            found = rows_of(run, np.delete(refs, whole) if whole else refs)
        for i in whole:
            found.insert(i, whole_on_host(run.backend, run.whole(int(refs[i]))))
        return found


class Readable:
    """A context in which an error of the framework becomes a `LaunchError`, with it as the cause.

    A framework raises where it has no values to give, as inside ``jax.jit``. A `LaunchError` passes as it
    is, and so do errors of the classes in `Backend.passes`.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if not isinstance(error, Exception) or isinstance(error, (LaunchError, *self.backend.passes)):
            return
        raise LaunchError(
            f"Awaited values could not be read: {error_text(error)}.",
            f"{type(self.backend).__name__}.to_numpy failed, or there are no values yet, as in jax.jit, "
            "tf.function and torch.func: call fold.run outside, and take the gradient of all of it.",
        ) from error


@dataclass(slots=True)
class HostRows:
    """Rows of several sources on the host; a source is a part of a result.

    Attributes
    ----------
    leaves, structures : lists
        The arrays of each source, and how they nest.
    source, at : int64 arrays
        The source that each reference reads, and the row in its leaves.
    straight : bool
        Whether each source has one row for each of its references, in their order.
    """

    leaves: list[list[np.ndarray]]
    structures: list[Any]
    source: Integers
    at: Integers
    straight: bool


def host_rows(run: Run, refs: Integers) -> HostRows:
    """Copy the row that each of ``refs`` names from the results of a run to the host, as `HostRows`.

    References have the numbers that calls have in the run. Of a result of which fewer than half of the rows
    are read, only these are copied, else all. Raises `LaunchError` for a part of a result that is not
    there, or has another number of rows than its launch.
    """
    place = run.place
    values = []
    sources, source, at, straight = compiled.located(refs, place.launch, place.row, place.rows)
    # Few rows of a result are gathered before they are copied to the host. Where half of its rows or more
    # are wanted, copying all of it costs less than the gather.
    sparse = [i for i, (launch, _, count) in enumerate(sources) if place.rows[launch] > 2 * count]
    mine = {i: np.flatnonzero(source == i) for i in sparse}
    indices = dict(zip(sparse, run.values.upload([at[mine[i]] for i in sparse], int), strict=True))
    for i, (launch, part, _) in enumerate(sources):
        value = run.rows(launch, part)
        run.check_rows(launch, part)
        if i in indices:
            value = run.values.gather(value, indices[i])
            at[mine[i]] = np.arange(len(mine[i]))
        values.append(value)
    if len(values) == 1 and not isinstance(values[0], CONTAINERS):  # the scores that all examples wait for
        return HostRows([[run.backend.to_numpy(values[0])]], [LEAF], source, at, straight)
    flat = [optree.tree_flatten(value) for value in values]
    hosts = iter(on_host(run, [leaf for leaves, _ in flat for leaf in leaves]))
    leaves = [[next(hosts) for _ in leaves] for leaves, _ in flat]
    return HostRows(leaves, [structure for _, structure in flat], source, at, straight)


def rows_of(run: Run, refs: Integers) -> list[Any]:
    """Copy the row of each reference from the results of a run to the host; return a list in their order.

    References have the numbers that calls have in the run. A row is a number of Python's, an array, or a
    container of these (`separate`); errors are those of `host_rows`.
    """
    return separate(host_rows(run, refs))


def separate(found: HostRows) -> list[Any]:
    """Return the row of each reference by itself, as a list in the order of the references.

    A row is a number of Python's where the array has one axis, else an array; a container of these where
    its source, the part of a result that it is from, is a container.
    """
    source = found.source
    if len(found.leaves) == 1 and found.structures[0] is LEAF and found.straight:  # nearly always
        (host,) = found.leaves[0]
        return host.tolist() if host.ndim == 1 else list(host)
    taken = []
    for number, (leaves, structure) in enumerate(zip(found.leaves, found.structures, strict=True)):
        if not found.straight:
            at = found.at if len(found.leaves) == 1 else found.at[source == number]
            leaves = [leaf[at] for leaf in leaves]
        taken.append(taken_apart(leaves, structure, len(source)))
    if len(taken) == 1:
        return taken[0]
    left = list(map(iter, taken))
    return [next(left[number]) for number in source.tolist()]


def on_host(run: Run, leaves: list[Any]) -> list[np.ndarray]:
    """Return NumPy copies of the arrays ``leaves``, of the backend of ``run``, in their order.

    Arrays of one trailing shape, dtype and device are joined on the device and copied together.
    """
    backend = run.backend
    classes: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        classes.setdefault(backend.signature(leaf), []).append(i)
    hosts: list[Any] = [None] * len(leaves)
    for members in classes.values():
        host = backend.to_numpy(run.values.concat([leaves[i] for i in members]))
        end = 0
        for i in members:
            begin = end
            end = end + backend.rows(leaves[i])
            hosts[i] = host[begin:end]
    return hosts


def taken_apart(hosts: list[np.ndarray], structure: Any, count: int) -> list[Any]:
    """Return a list of the rows of one value: a number of Python's, an array, or a container for each.

    ``hosts`` has the leaves of the value, of shapes ``(rows, *s)``, and ``structure`` nests them. Without
    leaves there are ``count`` empty containers.
    """
    if not hosts:  # the op returned nothing but None, or an empty tuple
        return [optree.tree_unflatten(structure, ()) for _ in range(count)]
    columns = [host.tolist() if host.ndim == 1 else list(host) for host in hosts]  # numbers of Python's
    if optree.treespec_is_leaf(structure):
        return columns[0]
    if structure.type is tuple and structure.num_nodes == 1 + len(columns):
        return [*zip(*columns, strict=True)]  # a flat tuple: its rows are tuples as they are
    return [optree.tree_unflatten(structure, row) for row in zip(*columns, strict=True)]


def whole_on_host(backend: Backend, value: Any) -> Any:
    """Copy the arrays of a whole result to the host; what is no array of the backend stays what it is.

    An array without dimensions becomes a number of Python's.
    """
    return optree.tree_map(lambda x: plain(backend.to_numpy(x)) if backend.owns(x) else x, value)


def hosted(backend: Backend, x: Any) -> Any:
    """Return results with NumPy arrays in the place of the backend's; all else stays as it is.

    ``x`` may be an array, any container that optree opens, or what `multifold.each` has made.
    """
    if backend.owns(x):
        return backend.to_numpy(x)
    inner = each_of(x, lambda value: hosted(backend, value))
    # An op may have returned any container that optree opens.
    if inner is not x:
        return inner
    return optree.tree_map(lambda leaf: backend.to_numpy(leaf) if backend.owns(leaf) else leaf, x)


def plain(value: Any) -> Any:
    """Return a number of Python's for an array without dimensions, and any other array as it is."""
    return value.item() if np.ndim(value) == 0 else value
