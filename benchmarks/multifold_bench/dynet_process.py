"""DyNet as a contender: another Python, in a process of its own, that is told examples and says times.

DyNet's wheels want a Python and a NumPy of their own, and its autobatching is a switch of the whole
process. So `in_dynet.step` runs there, and both sides talk in JSON lines: a minibatch in, seconds out,
results in a file. Making DyNet's graph is inside its time, as recording is inside a fold's; reading
JSON is not.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from multifold._measure.benchmark import Batch
from multifold._measure.contenders import Subject
from multifold._measure.timing import Step
from multifold._measure.workloads import BinaryTree
from multifold.errors import BackendError
from multifold.models.layers import parts, postorder
from multifold_bench.harness import Contender
from multifold_bench.in_dynet import step

SCRIPT = Path(step.__file__)


def contender(python: Path, autobatch: int) -> Callable[[Subject], Contender]:
    """Return what makes the contender, for a Python that has DyNet."""

    def make(subject: Subject) -> Contender:
        family = subject.benchmark.family
        if family not in step.MODULES:
            raise BackendError(
                f"Expected a family of models that has a program in DyNet: {', '.join(step.MODULES)}. "
                f"Received '{family}'.",
                "leave the contender out, or write one in multifold_bench/in_dynet.",
            )
        return Dynet(python, autobatch, subject)

    return make


class Dynet(Contender):
    """A model in DyNet, with the weights of the subject's.

    Parameters
    ----------
    python : Path
        The interpreter that has DyNet.
    autobatch : int
        DyNet's option ``--dynet-autobatch``.
    subject : Subject
        What is measured.

    Raises
    ------
    BackendError
        If the process does not come up, or ends early; with the last line that it wrote.
    """

    name = "dynet"

    def __init__(self, python: Path, autobatch: int, subject: Subject) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.errors = Path(self.folder.name, "stderr")
        weights = Path(self.folder.name, "weights.npz")
        model = subject.benchmark.model()
        model.save(weights)
        mode = "train" if subject.train else "infer"
        # Its pool of memory does not grow where it batches automatically.
        options = ["--dynet-autobatch", str(autobatch), "--dynet-mem", "3072"]
        arguments = [str(weights), subject.benchmark.family, mode, *options]
        command = [str(python), str(SCRIPT), *arguments]
        pipe = subprocess.PIPE
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        self.versions = {"dynet": self.receive()["version"]}

    def prepare(self, minibatch: Batch) -> str:
        """Write the minibatch as a line of JSON."""
        examples = [flat(x) if isinstance(x, BinaryTree) else x for x in minibatch.examples]
        results = str(Path(self.folder.name, "results.npz"))
        return json.dumps({"examples": examples, "weights": minibatch.weights.tolist(), "results": results})

    def step(self, prepared: Any) -> Step:
        """Let the process compute, and return what it says."""
        try:
            self.process.stdin.write(prepared + "\n")  # type: ignore[union-attr]
            self.process.stdin.flush()  # type: ignore[union-attr]
        except BrokenPipeError:
            raise self.ended() from None
        answer = self.receive()
        return Step(answer["seconds"], lambda: read(answer["results"]))

    def receive(self) -> dict[str, Any]:
        """Return the next answer of the process."""
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        if not line:
            raise self.ended()
        return json.loads(line)

    def ended(self) -> BackendError:
        """Return the error that says why the process has ended."""
        self.process.wait()
        said = self.errors.read_text().splitlines()
        last = next((line for line in reversed(said) if line.strip()), "nothing")
        return BackendError(
            f"Expected DyNet to compute a step. Its process ended with {self.process.returncode}, "
            f"saying: {last}.",
            "pip install dynet38 into the environment of --dynet-python.",
        )

    def close(self) -> None:
        """End the process."""
        self.process.stdin.close()  # type: ignore[union-attr]
        self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]
        self.folder.cleanup()


def flat(tree: BinaryTree) -> list[int | str]:
    """Return a tree as its nodes, children first: word ids, and a name where two subtrees meet.

    Examples
    --------
    >>> leaf = BinaryTree(7)
    >>> flat(BinaryTree(None, leaf, leaf))
    [7, 7, 'children']
    """
    return ["children" if node.word is None else int(node.word) for node in postorder(tree, parts)]


def read(path: str) -> Mapping[str, np.ndarray]:
    """Return the results in a file."""
    with np.load(path) as file:
        return dict(file)
