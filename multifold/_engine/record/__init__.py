"""Recording: what was called, with which operands, as integers. This room knows no schedule, no framework.

A call of a fold computes nothing. It appends the number of its *signature* (the op and the kinds of its
operands, which all calls of a launch have in common) to one column, and each operand to the column of
its *kind*. Here are three calls: two leaves, and a join that reads the first leaf and part 1 of the second.

>>> from multifold import Fold
>>> fold = Fold(backend="numpy")
>>> first, second = fold.add("leaf", 3), fold.add("leaf", 5)
>>> joined = fold.add("join", first, second.split(2)[1], 0.5)
>>> graph = fold._graph

Calls 0 and 1 have signature 0, call 2 has signature 1.

>>> list(graph.signature)
[0, 0, 1]
>>> for signature in graph.signatures:
...     print(signature.name, [slot.kind for slot in signature.slots])
leaf [int]
join [node, node, float]

The columns hold the operands of all calls one after the other. That call 2 has two entries in ``refs`` and
one in ``floats``, its signature knows: no call stores where its entries begin.

>>> list(graph.ints), list(graph.floats)
([3, 5], [0.5])
>>> graph.signatures[1].refs, graph.signatures[1].floats
(2, 1)

A *reference* is one integer, the call in its low 40 bits and a part of the call's result above them. The
parts are numbered as they are met: part 0 is the whole result, ``split(2)`` made parts 1 and 2.

>>> from multifold._engine.record.node import CALL_MASK, PART_BITS
>>> [(ref & CALL_MASK, ref >> PART_BITS) for ref in graph.refs]
[(0, 0), (1, 2)]
>>> [part.path for part in graph.parts]
[(), (0,), (1,)]

The caller keeps a `Node` for each call: the graph and a reference, nothing else.

Modules, from the table that all others read to the recorder that uses all of them:

- ``kinds``: the table of the kinds of operands
- ``anatomy``: the table of how values are taken apart and put together again
- ``freezing``: values as keys, and copies that later changes do not reach
- ``population``: modules of one form as one op
- ``signature``: what two calls must have in common to share a launch
- ``entry``, ``misuse``, ``node``: what the caller holds, and how it refuses to be an array
- ``graph``: the columns
- ``keywords``: keyword arguments, which are static
- ``reduce``: which neighbours an op joins, level by level
- ``recorder``: one call, sorted into the columns
- ``unroll``: a recurrent cell, recorded step by step
- ``texts``, ``damage``: values as text for files, and the error for files and pickles that were damaged
"""
