"""Scheduling: which calls share a launch, in which order, and how few launches there could be.

Two calls may share a launch if they have one *type* and if none of them has to wait for the other. A
call's *typed level* counts the calls of its own type on the longest path to it. Two calls of one type
and one level never wait for each other, so each pair of a type and a level becomes a *bucket*; and
calls that follow each other on a path need launches of their own, so no schedule has fewer launches
than there are buckets. If the buckets can be put into an order in which each comes after those that it
reads, that order is the schedule; else `multifold._schedule.policies` searches for one.

`columns` has the recorded calls as arrays, `levels` the problem in integers, `policies` the ways to
solve it, `kept` what was solved before, `schedule` the result, and `outputs` takes apart what the caller
asked for.

Examples
--------
Two trees, ``(1, 2)`` and ``((3, 4), 5)``. Each leaf is a call, and so is each pair.

>>> import numpy as np
>>> from multifold import Fold
>>> from multifold._schedule.schedule import call_types, make_schedule, problem_of
>>> def record(fold, tree):
...     if isinstance(tree, int):
...         return fold.add("leaf", tree)
...     return fold.add("cell", *[record(fold, child) for child in tree])
>>> fold = Fold(backend="numpy")
>>> roots = [record(fold, tree) for tree in [(1, 2), ((3, 4), 5)]]

There are eight calls. Call 2 is the cell of the first tree: it reads calls 0 and 1.

>>> columns = fold._columns()
>>> columns.refs[columns.ref_starts[2] : columns.ref_starts[3]].tolist()
[0, 1]

Leaves have type 0 and cells type 1. Call 7 is the only cell that waits for a cell, so its level is 2.

>>> calls = np.arange(len(columns))
>>> types = call_types(columns, columns.shared_calls)
>>> problem = problem_of(columns, types, calls)
>>> types.tolist(), problem.levels.tolist()
([0, 0, 1, 0, 0, 1, 0, 1], [1, 1, 1, 1, 1, 1, 1, 2])

So there are three buckets, and three launches.

>>> schedule = make_schedule(columns, fold, types, calls, "auto")
>>> [schedule.members(launch).tolist() for launch in range(len(schedule))]
[[0, 1, 3, 4, 6], [2, 5], [7]]
>>> problem.lower_bound, schedule.certificate
(3, 'optimal')
"""
