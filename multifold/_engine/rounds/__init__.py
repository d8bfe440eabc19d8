"""Control flow that depends on computed values: examples run until they wait, then a round runs.

Each example is a coroutine. All of them run until each waits for a value or has returned. Then the calls
that the awaited values need run as one minibatch, a *round*, and the examples go on. One idea a module:

- `awaitables`: what `Fold.value`, `Fold.values` and `Fold.gather` return.
- `tasks`: drives the coroutines, and knows nothing of graphs.
- `rounds`: alternates between the two, and finds the example that is to blame for a failing launch.
- `calls`: the table of all calls, which gives a round the few that it runs and reads.
- `store`: the results of earlier rounds, as long as a node can ask for them.
- `gathers`: launches whose operands are put together from the rows of earlier ones, without a plan; rows
  that are read from many results lie in arrays written in place (`pages`).
- `collector`: Python's collector of circles, which rests meanwhile.
- `fetch`: brings awaited values to the host, in one copy where their dtype and shape allow.
- `results`: what the examples returned, as the outputs of one minibatch.

Two examples halve a number until it is below 1. For 3.0 that takes two rounds, for 1.0 one:

>>> import multifold
>>> async def halve(fold, x):
...     while await fold.value(x := fold.add("halve", x)) >= 1:
...         pass
...     return fold.add("negate", x)
>>> fold = multifold.Fold(backend="numpy")
>>> fold.run({"halve": lambda x: x / 2, "negate": lambda x: -x}, [3.0, 1.0], halve)
array([-0.75, -0.5 ])
>>> print(fold.explain())
3 rounds, 3 launches of 5 calls, 1.7 rows a launch, ... ms
<BLANKLINE>
round  waiting                   calls  launches  bound  rows  record ms  run ms
    0  examples 0, 1 for halve       2         1      1     2  ...
    1  example 0 for halve           1         1      1     1  ...
    2  the results                   2         1      1     2  ...

====  ======  =======  ==========  ========  =================================
call  op      example  reads       round     its row
====  ======  =======  ==========  ========  =================================
0     halve   0        3.0         0         row 0 of result 1
1     halve   1        1.0         0         row 1 of result 1
2     halve   0        call 0      1         row 0 of result 2
3     negate  1        call 1      2         nothing is kept after the results
4     negate  0        call 2      2
====  ======  =======  ==========  ========  =================================

Call 3 is recorded before round 1, but no example waits for it. It stays pending, and shares the launch of
call 4 in round 2. This is how round 1 looks to the table. Result 1 holds the rows of calls 0 and 1, and
example 0 waits for call 2:

>>> import numpy as np
>>> from multifold._engine.rounds.calls import CallTable
>>> table = CallTable(fold._graph)
>>> table.extend()
>>> table.store(calls=np.array([0, 1]), result=1, row=np.array([0, 1]))
>>> selection = table.select(np.array([2]))
>>> selection.given.tolist(), selection.calls.tolist()
([0], [2])

The round gets a graph of two calls. The given call 0 comes first and has no operands. Call 2 becomes call 1
and reads call 0:

>>> columns = table.columns(selection)
>>> [columns.signatures[number].name for number in columns.signature]
['halve', 'halve']
>>> columns.refs.tolist()
[0]

Its launch becomes result 2. The last round reads both results, call 1 from the first and call 2 from the
second, and runs calls 3 and 4, which are numbered 2 and 3 in it:

>>> table.store(calls=np.array([2]), result=2, row=np.array([0]))
>>> table.result.tolist()
[1, 1, 2, 0, 0]
>>> selection = table.select(np.array([3, 4]))
>>> selection.given.tolist(), selection.calls.tolist(), table.columns(selection).refs.tolist()
([1, 2], [3, 4], [0, 1])
"""
