"""One process of DyNet: minibatches in as JSON lines, seconds out.

Run by the Python that has DyNet, so nothing of multifold is imported here, and DyNet not before the program
runs: ``python step.py WEIGHTS FAMILY train|infer --dynet-autobatch 1``. Results lie in the file that the
minibatch names. A script's own folder comes first where Python looks for modules, so `net` and the programs
are found by their bare names.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

MODULES = {
    "binary": "trees",
    "deep_tagger": "taggers",
    "lattice_lstm": "lattices",
    "mv_rnn": "trees",
}
"""Where the program for a family of models is."""

Program = Callable[[Any, Any], Sequence[Any]]


def step(net: Any, program: Program, examples: Sequence[Any], weights: np.ndarray, train: bool) -> Any:
    """Compute a minibatch; return the seconds and the results."""
    dy = net.dy
    start = time.perf_counter()
    dy.renew_cg()
    logits = [row for example in examples for row in program(net, example)]
    if not train:
        values = dy.concatenate_to_batch(logits).npvalue()
        seconds = time.perf_counter() - start
        return seconds, {"the logits": values.T.reshape(len(logits), -1)}  # one row has no axis
    loss = dy.esum([dy.dot_product(x, dy.inputTensor(w)) for x, w in zip(logits, weights, strict=True)])
    value = loss.scalar_value()
    loss.backward()
    seconds = time.perf_counter() - start
    named = {f"the gradient of {name}": x for name, x in net.gradients().items()}
    return seconds, {"the loss": np.float32(value), **named}


def main() -> None:
    """Answer minibatches until the input ends."""
    weights, family, mode = sys.argv[1:4]
    import dynet as dy  # type: ignore[import-not-found]  # reads its options from sys.argv

    program: Program = getattr(importlib.import_module(MODULES[family]), family)
    with np.load(weights) as file:
        net = importlib.import_module("net").Net(dy, dict(file))
    answer({"version": getattr(dy, "__version__", "?")})
    for line in sys.stdin:
        told = json.loads(line)
        coefficients = np.array(told["weights"], np.float32)
        seconds, results = step(net, program, told["examples"], coefficients, mode == "train")
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
