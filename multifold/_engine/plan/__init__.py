"""Planning: which calls share a launch, and which rows go where between the results of launches.

A frame is the calls of a run as columns of integers. Its plan is made of them alone, and no array is
touched here. So a plan can be made ahead of time, in a worker of a data loader, and serves other frames of
the same form. Modules, in the order in which they are used:

- `columns`: a frame, the recorded calls as arrays
- `outputs`, `each`: what the caller asked for, taken apart, and put together again
- `levels`, `policies`: the problem in integers, and the ways to solve it
- `schedule`: the launches in order, with a lower bound on their number
- `wiring`: which rows go where, by splits, gathers and concatenations
- `plan`: all decisions of a run in one object, and the cache of such plans

Scheduling
----------
Two calls may share a launch if they have one *type* and if none of them has to wait for the other. A
call's *typed level* counts the calls of its own type on the longest path to it. Two calls of one type
and one level never wait for each other, so each pair of a type and a level becomes a *bucket*; and
calls that follow each other on a path need launches of their own, so no schedule has fewer launches
than there are buckets. If the buckets can be put into an order in which each comes after those that it
reads, that order is the schedule; else `multifold._engine.plan.policies` searches for one.

Two trees, ``(1, 2)`` and ``((3, 4), 5)``. Each leaf is a call, and so is each pair.

>>> import numpy as np
>>> from multifold import Fold
>>> from multifold._engine.plan.schedule import call_types, make_schedule, problem_of
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

Wiring
------
A schedule says which calls share a launch. The wiring says in which order the rows of each launch lie, how
its result is read by later launches, and how their operands are put together.

The example has two trees, of three words and of two:

>>> import multifold
>>> fold = multifold.Fold(backend="numpy")
>>> def leaf(x):
...     return fold.add("leaf", x)
>>> tall = fold.add("join", fold.add("join", leaf(3), leaf(5)), leaf(7))
>>> flat = fold.add("join", leaf(11), leaf(13))
>>> print(fold)
<Fold of 8 calls, backend 'numpy'>
0  leaf(3)
1  leaf(5)
2  join(0, 1)
3  leaf(7)
4  join(2, 3)
5  leaf(11)
6  leaf(13)
7  join(5, 6)

Three launches run them: five leaves, then calls 2 and 7, then call 4. What the left operand of one launch
reads of one result is a *section*, and so is what its right operand reads. The wiring below has six:

======  ==================  =======  ===========  ================================
launch  calls of its rows   operand  reads calls  sections
======  ==================  =======  ===========  ================================
0       0, 5, 1, 6, 3       none
1       2, 7                left     0, 5         0: rows 0 and 1 of launch 0
..                          right    1, 6         1: rows 2 and 3 of launch 0
2       4                   left     2            3: row 0 of launch 1
..                          right    3            2: row 4 of launch 0
output                               4, 7         5: launch 2; 4: row 1 of launch 1
======  ==================  =======  ===========  ================================

The leaves lie in the order 0, 5, 1, 6, 3, which is not the order of recording. So calls 0 and 5, which the
left operand of launch 1 reads, are neighbours, and one split of the result into 2, 2 and 1 rows makes all
its sections. In the order of recording the same rows would have to be gathered.

>>> import numpy as np
>>> from multifold._engine.plan.wiring import Place
>>> from multifold._engine.plan.wiring import wire
>>> columns, schedule = fold._columns(), fold.schedule([[tall, flat]])
>>> asked = [np.array([tall._ref, flat._ref])]
>>> wiring = wire(columns, schedule, Place.nowhere(len(columns)), asked)
>>> for launch in wiring.launches:
...     print(launch.calls.tolist(), [operand.sections for operand in launch.operands])
[0, 5, 1, 6, 3] []
[2, 7] [(0,), (1,)]
[4] [(3,), (2,)]
>>> wiring.sources  # the launch and the part of its result that each section is read from
[(0, 0), (0, 0), (0, 0), (1, 0), (1, 0), (2, 0)]
>>> [[(reading.sizes, reading.whole) for reading in launch.readings] for launch in wiring.launches]
[[((2, 2, 1), ())], [((1, 1), ())], [((), (5,))]]
>>> [output.sections for output in wiring.outputs]
[(5, 4)]

Where a plan is sure to be run, one compiled call makes the schedule and the wiring (`plan_and_wire`). Here
they are made one after the other, as where a policy has to choose the launches.

A row that several operands read is gathered, once a result, and an operand whose rows lie in another order
than its own is permuted; neither happens here.
"""
