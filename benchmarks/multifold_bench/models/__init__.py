"""Models for the data sets, each written once for all frameworks, as those of `multifold.models` are.

>>> from multifold_bench.models import SPINN
>>> model = SPINN(vocabulary=4, width=8, classes=3)
>>> sorted(model.weights())[:3]
['begin.c', 'begin.h', 'compose.bias']
"""

from __future__ import annotations

from multifold_bench.models.lattice_lstm import LatticeLSTM
from multifold_bench.models.listops import ListOpsChain, ListOpsLSTM
from multifold_bench.models.mv_rnn import MVRNN
from multifold_bench.models.qppnet import QPPNet
from multifold_bench.models.shift_reduce import ShiftReduceParser
from multifold_bench.models.spinn import SPINN
from multifold_bench.models.tagger import BiLSTMTagger

__all__ = [
    "MVRNN",
    "SPINN",
    "BiLSTMTagger",
    "LatticeLSTM",
    "ListOpsChain",
    "ListOpsLSTM",
    "QPPNet",
    "ShiftReduceParser",
]
