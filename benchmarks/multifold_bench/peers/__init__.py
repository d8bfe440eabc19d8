"""The models that ED-Batch was published with (Chen et al., ICML 2023), as its authors' program has them.

`trees`, `lattices` and `taggers` have one family each: the model, the program that records an example, and
how examples are drawn. `multifold_bench.in_dynet` has the same models in DyNet, operation by operation,
which is what ED-Batch extends. Its Tree-LSTM is the workload ``sentences``.
"""

from __future__ import annotations

from multifold_bench.peers import lattices, taggers, trees

WORKLOADS = {**lattices.WORKLOADS, **taggers.WORKLOADS, **trees.WORKLOADS}
"""By name."""
