"""Scheduling: which calls share a launch, in which order, and how few launches there could be.

Only integers are read here. Each call gets a *type*, a number: calls of equal signatures have one type and
may share a launch, unless one needs the result of the other. The *level* of a call is the number of calls
of its own type on the longest path to it, itself included. Calls of one type on one level never need each
other.

The example has two trees, of three words and of two, and reads out the root of each:

>>> import multifold
>>> def record(policy):
...     fold = multifold.Fold(backend="numpy", schedule=policy)
...     leaves = [fold.add("leaf", word) for word in range(5)]
...     tall = fold.add("join", fold.add("join", *leaves[:2]), leaves[2])
...     flat = fold.add("join", *leaves[3:])
...     return fold, [fold.add("out", root) for root in (tall, flat)]
>>> fold, outputs = record("auto")
>>> columns = fold._columns()
>>> [signature.name for signature in columns.signatures]
['leaf', 'join', 'out']

Calls 0 to 4 are leaves, 5 to 7 joins (call 6 reads call 5), 8 and 9 read out the roots 6 and 7:

>>> import numpy as np
>>> from multifold._schedule.schedule import call_types, problem_of
>>> types = call_types(columns, alone=np.zeros(0, np.int64))
>>> problem = problem_of(columns, types, np.arange(len(columns)))
>>> types.tolist()
[0, 0, 0, 0, 0, 1, 1, 1, 2, 2]
>>> problem.levels.tolist()
[1, 1, 1, 1, 1, 1, 2, 1, 1, 1]

There are four pairs of a type and a level: (0, 1), (1, 1), (1, 2) and (2, 1). No schedule can have fewer
launches, and here one launch for each pair is a schedule:

>>> print(fold.schedule([outputs]))
4 launches of 10 calls, lower bound 4: optimal (auto), 2.5 rows a launch
launch  op      rows
     0  leaf       5
     1  join       2
     2  join       1
     3  out        2

Earlier libraries batch by the depth of a call in the graph. That separates calls 8 and 9, since the root
of one tree lies deeper than the root of the other:

>>> fold, outputs = record("depth")
>>> print(fold.schedule([outputs]))
5 launches of 10 calls, lower bound 4: heuristic (depth), 2.0 rows a launch
launch  op      rows
     0  leaf       5
     1  join       2
     2  join       1
     3  out        1
     4  out        1

- ``columns``: the columns of a graph as arrays
- ``levels``: typed levels and the lower bound
- ``policies``: from types and edges to the launch of each call
- ``schedule``: types of calls, and the `Schedule`
- ``outputs``: what is asked for, taken apart into references and put together again
"""
