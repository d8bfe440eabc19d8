"""Many trees, one result for each: by one process, by several that share the trees out, and by Ray Data.

Worker processes can't be faster than processes that know nothing of each other, each of which runs its
part of the trees by itself. So these are measured as well, by turns and on the same trees: what they lose
against one process is the machine's (memory, clock, hyperthreads), and what a stream loses against them is
the stream's. Ray Data has a floor of its own, a data set whose functions do nothing.

- `trees`: the lines of text that trees are read from, what records one, and what makes the model.
- `ways`: `multifold.stream` in one process, with workers, and in processes of their own.
- `on_ray`: the same trees by Ray Data, where it is installed.
- `measure`: the ways by turns; no time is believed before all rows are those of one process.

A line is a tree as JSON. Workers read it themselves, so a process that hands out lines has little to do:

>>> import multifold
>>> from multifold_bench.streaming.trees import MakeModel, draw_lines, read
>>> line = draw_lines(1, seed=0)[0]
>>> line[:30]
'[[[[[22, [863, 89]], [[846, [7'
>>> (key, row), = multifold.stream(None, [line], read, make_model=MakeModel("numpy", width=8))
>>> row.shape
(1, 5)
"""
