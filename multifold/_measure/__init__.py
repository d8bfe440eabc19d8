"""What ``multifold compare`` needs: two workloads, and two ways to compute them in turn.

A `Benchmark` is a model with examples and the two programs that a person writes for ONE example: `record`,
for a fold, and `loop`, which calls the model's ops with one row each. `take_turns` times both ways on one
minibatch and believes no time before it has compared the results. The tree of a sentence of
three words has five nodes. With its output that makes 6 calls, and two such sentences make 12. A fold makes
4 launches: one for the six words, one for each of two heights above them, and one for both outputs:

>>> from multifold._measure.benchmark import Examples
>>> from multifold._measure.workloads import BinaryBenchmark, BinaryTree
>>> from multifold import load_backend
>>> from multifold._measure.compare import compare
>>> it, is_, fun = BinaryTree(0), BinaryTree(1), BinaryTree(2)
>>> statement = BinaryTree(None, it, BinaryTree(None, is_, fun))
>>> question = BinaryTree(None, BinaryTree(None, is_, it), fun)
>>> sentences = [statement, question]
>>> examples = Examples(lambda rng, count: sentences[:count], words=3, classes=5)
>>> row = compare(BinaryBenchmark(examples, width=4), load_backend("numpy"), batch=2, train=False, rounds=3)
>>> row["nodes"], row["launches"], row["mean_rows"], row["difference"] < 1e-5
(12, 4, 3.0, True)

``multifold advise`` is here, too: `advice` runs a program in its ways, `watched` looks at it from outside,
`pieces` finds what a person would write as one op, and `foretold` puts together what that would take, by a
run of its `outline`. `ways` is the table.

The distribution ``multifold-bench`` has more workloads, more contenders and more questions, and takes from
here what it shares with this room. No module here imports a framework.
"""
