"""Trees whose phrases have a vector and a matrix each; the model is one of `multifold.models`."""

# ruff: noqa: D102 - what a benchmark overrides is documented once, at Benchmark

from __future__ import annotations

from typing import Any, final

from multifold._measure.benchmark import Workload
from multifold._measure.workloads import BinaryTree
from multifold.models import Model
from multifold_bench.examples import read_phrases
from multifold_bench.models import MVRNN
from multifold_bench.recorded import ModelBenchmark


@final
class MatrixVectorBenchmark(ModelBenchmark):
    """An MV-RNN that classifies the root (Socher et al., EMNLP 2012)."""

    family = "mv_rnn"

    def model(self) -> Model:
        return MVRNN(**self.sizes)

    def record(self, fold: Any, tree: BinaryTree) -> Any:
        return fold.add("logits", self.program.encode(fold, tree)[0])


WORKLOADS = {"mv-rnn": Workload(read_phrases, MatrixVectorBenchmark)}
"""By name."""
