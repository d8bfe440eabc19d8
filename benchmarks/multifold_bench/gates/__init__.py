"""Ten end-to-end figures of this checkout beside those of another one, for changes to the core.

A *gate* is a few figures with a limit: training on 512 trees must not take more than 1.03 times what it
takes in the other checkout, say, and a search at most 1.4 times what a loop by hand takes. The one idea is
that both checkouts take turns, repetition by repetition, each in a process of its own (`worker`): whatever
else the machine does slows both of them alike, and the medians of pairwise ratios mean something on a
machine that is shared. The benchmark's code, this package, is the same in both processes, and only
multifold and its adapters come from the two checkouts. So it uses nothing but what users may use.

What each way computes is sent along with its time, and is compared with what all other ways of both
checkouts computed from the same minibatch, before any time is shown (`driver`).

- `figures`: what a figure, its lines and its limits are.
- `trees`, `parsers`, `search`, `serving`, `compiling`, `planning`, `ragged`: the gates.
- `worker`, `driver`: the process of one checkout, and what asks two of them by turns and judges.

::

    multifold bench gates --against /path/to/other/checkout

The other checkout needs its compiled modules: ``python setup.py build_ext --inplace`` there.
"""
