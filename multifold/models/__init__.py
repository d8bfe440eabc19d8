"""Models written once for all frameworks, one module each; `multifold_bench.models` has more of them.

A model has parameters by name, ops over `multifold.ops`, and a method that records one example, `encode`
for most models. As it is made it runs forward, on NumPy. ``model.on("torch")`` returns a `torch.nn.Module`
with the same weights and ops, ``model.on("jax")`` a pytree; see `Model`.

Examples
--------
Two trees of one and three words. Four leaves share a launch; the two phrases of the second tree are made
one after the other:

>>> from types import SimpleNamespace as Tree
>>> import multifold
>>> from multifold.models import BinaryTreeLSTM
>>> words = [Tree(word=i) for i in range(4)]
>>> phrase = Tree(word=None, left=words[1], right=Tree(word=None, left=words[2], right=words[3]))
>>> model = BinaryTreeLSTM(vocabulary=4, width=8, classes=5)
>>> fold = multifold.Fold(backend="numpy")
>>> roots = [fold.add("logits", model.encode(fold, tree)[0]) for tree in (words[0], phrase)]
>>> fold.apply(model, [roots])[0].shape
(2, 5)
>>> [(launch.op, len(launch)) for launch in fold.explain().launches]
[('leaf', 4), ('children', 1), ('children', 1), ('logits', 2)]
"""

from __future__ import annotations

from multifold.models.binary_tree_lstm import BinaryTreeLSTM
from multifold.models.child_sum_tree_lstm import ChildSumSimilarity, ChildSumTreeLSTM
from multifold.models.mlp import MLP
from multifold.models.model import Model, WeightsError

__all__ = [
    "MLP",
    "BinaryTreeLSTM",
    "ChildSumSimilarity",
    "ChildSumTreeLSTM",
    "Model",
    "WeightsError",
]
