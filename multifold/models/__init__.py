"""Models for the data sets, each written once for all frameworks (one module each).

>>> from multifold.models import BinaryTreeLSTM
>>> model = BinaryTreeLSTM(vocabulary=1000, width=100, classes=5)   # NumPy: runs forward only

``model.on("torch")`` is a `torch.nn.Module` with the same weights and ops; `Model` says the rest.
"""

from __future__ import annotations

from multifold.models.binary_tree_lstm import BinaryTreeLSTM
from multifold.models.child_sum_tree_lstm import ChildSumTreeLSTM
from multifold.models.model import Model, WeightsError

__all__ = ["BinaryTreeLSTM", "ChildSumTreeLSTM", "Model", "WeightsError"]
