"""Traces: the recorded calls of one example as integers, and minibatches merged from many of them.

What the calls of one example are and what they read does not depend on the other examples of a minibatch.
A `Trace` keeps that in one array, made once for each example. To merge traces means to put their columns
one after the other: references to calls are shifted by the calls that come before, and numbers of
signatures are renamed where two traces number them differently.

`tracer` records examples one after the other, `cutting` makes a `trace` of each, and `known` is what the
next recording need not learn anew. `minibatch` merges traces; `replaying` records one again, on a fold.
`files` and `table` write traces as rows, without pickle: what traces have in common is text, made by
`vocabularies`; `leaves` are the bytes of their arrays. `sent` tells which ops no worker can send, and
`shown` puts a hint where a library stops at a batch of traces.

Examples
--------
Two trees, ``(1, 2)`` and ``((3, 4), 5)``; each leaf and each pair is a call.

>>> import multifold
>>> from multifold._engine.traces.minibatch import Merger
>>> def record(fold, tree):
...     if isinstance(tree, int):
...         return fold.add("leaf", tree)
...     return fold.add("cell", *[record(fold, child) for child in tree])
>>> traces = multifold.traces(record, [(1, 2), ((3, 4), 5)])

The integers of a trace begin with eight sizes and the size of each result. Then its columns follow: for
the first tree three signatures, two references (call 2 reads calls 0 and 1), two ints, and its result.

>>> traces[0].integers[:9].tolist()
[3, 2, 2, 0, 0, 0, 0, 0, 1]
>>> traces[0].integers[9:].tolist()
[0, 0, 1, 0, 1, 1, 2, 2]

In the minibatch the calls of the second trace begin at 3, so its references are raised by 3.

>>> merged = Merger(traces)
>>> merged.calls.tolist()
[0, 3, 8]
>>> {name: merged.integers[name].tolist() for name in ("signature", "refs", "ints")}
{'signature': [0, 0, 1, 0, 0, 1, 0, 1], 'refs': [0, 1, 3, 4, 5, 6], 'ints': [1, 2, 3, 4, 5]}
"""
