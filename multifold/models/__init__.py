"""Models for the data sets, each written once for all frameworks, one module each.

``BinaryTreeLSTM(vocabulary=1000, width=100, classes=5)`` runs forward, on NumPy. What its
``on("torch")`` returns is a `torch.nn.Module` with the same weights and ops, and for ``"jax"`` it
is a pytree; `Model` says the rest. A model records an example by a method of its own, `encode` for
most of them.
"""

from __future__ import annotations

from multifold.models.binary_tree_lstm import BinaryTreeLSTM
from multifold.models.child_sum_tree_lstm import ChildSumSimilarity, ChildSumTreeLSTM
from multifold.models.lattice_lstm import LatticeLSTM
from multifold.models.listops import ListOpsLSTM
from multifold.models.mlp import MLP
from multifold.models.model import Model, WeightsError
from multifold.models.mv_rnn import MVRNN
from multifold.models.qppnet import QPPNet
from multifold.models.shift_reduce import ShiftReduceParser
from multifold.models.spinn import SPINN
from multifold.models.tagger import BiLSTMTagger

__all__ = [
    "MLP",
    "MVRNN",
    "SPINN",
    "BiLSTMTagger",
    "BinaryTreeLSTM",
    "ChildSumSimilarity",
    "ChildSumTreeLSTM",
    "LatticeLSTM",
    "ListOpsLSTM",
    "Model",
    "QPPNet",
    "ShiftReduceParser",
    "WeightsError",
]
