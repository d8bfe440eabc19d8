"""The models that are measured beside DyNet: an MV-RNN, a lattice of LSTMs and a deep tagger.

They are among those that ED-Batch was published with (Chen et al., ICML 2023), as its authors' program has
them. `multifold_bench.in_dynet` has the same models in DyNet, operation by operation, which is what
ED-Batch extends, and the Tree-LSTM of the workloads ``sentences``, ``sst`` and ``synthetic``.
"""

from __future__ import annotations

from multifold_bench.peers import lattices, taggers, trees

WORKLOADS = {**lattices.WORKLOADS, **taggers.WORKLOADS, **trees.WORKLOADS}
"""By name."""
