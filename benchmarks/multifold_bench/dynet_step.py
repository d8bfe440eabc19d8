"""A binary DyNetTree-LSTM in DyNet, one process: minibatches in as JSON lines, seconds out.

Run by the Python that has DyNet, so nothing of multifold is imported here, and DyNet not before the
program runs: ``python dynet_step.py WEIGHTS train|infer --dynet-autobatch 1``. The model is
`multifold.models.BinaryTreeLSTM`; results lie in the file that the minibatch names.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np


class DyNetTree:
    """A tree as a person would write it down."""

    __slots__ = ("left", "right", "word")

    def __init__(self, word: int | None, left: DyNetTree | None, right: DyNetTree | None) -> None:
        self.word = word
        self.left = left
        self.right = right


def tree_of(nodes: list[int]) -> DyNetTree:
    """Return the tree behind its nodes, children first; -1 joins two subtrees."""
    stack: list[DyNetTree] = []
    for node in nodes:
        if node < 0:
            right, left = stack.pop(), stack.pop()
            stack.append(DyNetTree(None, left, right))
        else:
            stack.append(DyNetTree(node, None, None))
    return stack[0]


class DyNetModel:
    """The parameters in DyNet's layout, and the program for one tree."""

    def __init__(self, dy: Any, weights: dict[str, np.ndarray]) -> None:
        self.dy = dy
        self.width = weights["output.weight"].shape[0]
        self.parameters = dy.ParameterCollection()
        self.embedding = self.parameters.lookup_parameters_from_numpy(weights["embedding"])
        self.linear = {}
        for name in ("word", "compose", "output"):
            weight, bias = weights[f"{name}.weight"].T, weights[f"{name}.bias"]
            self.linear[name] = (
                self.parameters.parameters_from_numpy(np.ascontiguousarray(weight)),
                self.parameters.parameters_from_numpy(bias),
            )

    def affine(self, name: str, x: Any) -> Any:
        """Apply one affine map."""
        weight, bias = self.linear[name]
        return self.dy.affine_transform([bias, weight, x])

    def gates(self, x: Any, count: int) -> list[Any]:
        """Cut gates apart: ``count`` between 0 and 1, and the candidate behind them."""
        dy, width = self.dy, self.width
        opened = dy.logistic(dy.pick_range(x, 0, count * width))
        cut = [dy.pick_range(opened, i * width, (i + 1) * width) for i in range(count)]
        return [*cut, dy.tanh(dy.pick_range(x, count * width, (count + 1) * width))]

    def encode(self, tree: DyNetTree) -> tuple[Any, Any]:
        """Return the state of a tree."""
        dy = self.dy
        if tree.left is None or tree.right is None:
            take_in, out, candidate = self.gates(
                self.affine("word", dy.lookup(self.embedding, tree.word)), 2
            )
            c = dy.cmult(take_in, candidate)
            return dy.cmult(out, dy.tanh(c)), c
        left_h, left_c = self.encode(tree.left)
        right_h, right_c = self.encode(tree.right)
        gates = self.affine("compose", dy.concatenate([left_h, right_h]))
        take_in, keep_left, keep_right, out, candidate = self.gates(gates, 4)
        c = dy.cmult(take_in, candidate) + dy.cmult(keep_left, left_c)
        c = c + dy.cmult(keep_right, right_c)
        return dy.cmult(out, dy.tanh(c)), c

    def logits(self, tree: DyNetTree) -> Any:
        """Return the scores of a tree."""
        return self.affine("output", self.encode(tree)[0])

    def gradients(self) -> dict[str, np.ndarray]:
        """Return the gradients by the names of the weights, and set them to zero."""
        found = {"embedding": self.embedding.grad_as_array().copy()}
        self.embedding.scale_gradient(0)
        for name, (weight, bias) in self.linear.items():
            found[f"{name}.weight"] = weight.grad_as_array().T.copy()
            found[f"{name}.bias"] = bias.grad_as_array().copy()
            weight.scale_gradient(0)
            bias.scale_gradient(0)
        return found


def step(model: DyNetModel, trees: list[DyNetTree], weights: np.ndarray, train: bool) -> Any:
    """Compute a minibatch; return the seconds and the results."""
    dy = model.dy
    start = time.perf_counter()
    dy.renew_cg()
    logits = [model.logits(tree) for tree in trees]
    if not train:
        values = dy.concatenate_to_batch(logits).npvalue()
        seconds = time.perf_counter() - start
        return seconds, {"the logits": values.T.reshape(len(trees), -1)}  # one tree has no axis
    loss = dy.esum([dy.dot_product(x, dy.inputTensor(w)) for x, w in zip(logits, weights, strict=True)])
    value = loss.scalar_value()
    loss.backward()
    seconds = time.perf_counter() - start
    named = {f"the gradient of {name}": x for name, x in model.gradients().items()}
    return seconds, {"the loss": np.float32(value), **named}


def main() -> None:
    """Answer minibatches until the input ends."""
    weights, mode = sys.argv[1:3]
    import dynet as dy  # type: ignore[import-not-found]  # reads its options from sys.argv

    with np.load(weights) as file:
        model = DyNetModel(dy, dict(file))
    answer({"version": getattr(dy, "__version__", "?")})
    for line in sys.stdin:
        told = json.loads(line)
        trees = [tree_of(nodes) for nodes in told["trees"]]
        coefficients = np.array(told["weights"], np.float32)
        seconds, results = step(model, trees, coefficients, mode == "train")
        # DyNet computes in float32 and hands out float64.
        arrays = {name: np.asarray(x, np.float32) for name, x in results.items()}
        np.savez(told["results"], **arrays)  # type: ignore[arg-type]
        answer({"seconds": seconds, "results": told["results"]})


def answer(what: dict[str, Any]) -> None:
    """Write one line."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
