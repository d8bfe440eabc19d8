"""The experiments of the sources: which questions are put to every framework, with which sizes.

An `Experiment` is a list of cells: a workload at one width and batch, with or without gradients, in which
all contenders take turns. `runner` runs the cells and keeps their rows.
"""

from __future__ import annotations

from dataclasses import dataclass

SIZES = (1, 4, 16, 64, 256, 1024)
FOLDED = ("fold", "fold-traced", "fold-program")
ALL = ("loop", "hand", *FOLDED)


@dataclass(frozen=True)
class Experiment:
    """One question to all frameworks.

    Attributes
    ----------
    name, title, about : str
        A letter, a heading, and a paragraph for the report.
    workload : str
        What is computed; the examples come from files where a path is given.
    contenders : tuple of str
        Who takes part.
    widths, batches : tuple of int
        The sizes of states and minibatches, and ``quick_widths``, ``quick_batches`` when in a hurry.
    modes : tuple of str
        ``"infer"`` and ``"train"``.
    against : str
        The contender beside which the fastest way to fold is put in the sentence that sums up.
    alone : int
        The largest minibatch that runs one example at a time: the time of an example is the same in
        a larger one.
    """

    name: str
    title: str
    about: str
    workload: str
    contenders: tuple[str, ...]
    widths: tuple[int, ...]
    batches: tuple[int, ...]
    quick_widths: tuple[int, ...]
    quick_batches: tuple[int, ...]
    modes: tuple[str, ...] = ("infer", "train")
    against: str = "hand"
    alone: int = 16


EXPERIMENTS = {
    "a": Experiment(
        "a",
        "Sentiment by minibatch size",
        "A binary Tree-LSTM over sentences, 5 classes, output at the root: one example at a time, batched "
        "by hand level by level, and folded.",
        "sst",
        ("loop", "hand", "hand-frontier", *FOLDED, "dynet"),
        widths=(150,),
        batches=SIZES,
        quick_widths=(64,),
        quick_batches=(1, 16, 128),
        alone=64,
    ),
    "b": Experiment(
        "b",
        "With and without the framework's compiler",
        "The same model, with its ops compiled one by one (`-jit`: torch.compile, tf.function, jax.jit, "
        "hybridize), and without.",
        "sst",
        ("loop", "loop-jit", "hand", "fold", "fold-jit", "fold-traced", "fold-program"),
        widths=(150,),
        batches=(16,),
        quick_widths=(64,),
        quick_batches=(8,),
        against="loop-jit",
    ),
    "c": Experiment(
        "c",
        "Relatedness of sentence pairs",
        "Two child-sum Tree-LSTMs over dependency trees of any arity.",
        "sick",
        ALL,
        widths=(150,),
        batches=(16, 256),
        quick_widths=(64,),
        quick_batches=(8, 64),
    ),
    "d": Experiment(
        "d",
        "Shift-reduce entailment",
        "SPINN along known parses: a tracker LSTM and a stack, for pairs of sentences. By hand means "
        "what PyTorch's SNLI example does: rows are bundled at each step.",
        "spinn",
        ALL,
        widths=(100, 500),
        batches=(8, 128),
        quick_widths=(64,),
        quick_batches=(4, 32),
        alone=8,
    ),
    "e": Experiment(
        "e",
        "Digits, one image at a time",
        "An MLP with two hidden layers: all examples have one structure, so `stacked` (the plain program "
        "on all images at once) is simpler and as fast or faster. This is where not to fold.",
        "mnist",
        ("loop", "loop-jit", "stacked", *FOLDED),
        widths=(100,),
        batches=(64, 512),
        quick_widths=(64,),
        quick_batches=(64,),
        against="stacked",
        alone=64,
    ),
}
"""By name, in the order in which they run."""
