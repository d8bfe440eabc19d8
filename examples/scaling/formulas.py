"""Which formulas are true? What the programs in this folder train on, and how one formula is recorded.

A formula is 0, 1 or (name, formula, formula). Each name is an op of its own, so two minibatches often
differ in the ops that they call.
"""

import numpy as np

MEANING = {"and": lambda x, y: x and y, "or": lambda x, y: x or y, "implies": lambda x, y: y or not x}


def draw(rng, size):
    """Return a random formula with that many constants."""
    if size == 1:
        return int(rng.integers(2))
    left = rng.integers(1, size)
    return list(MEANING)[rng.integers(len(MEANING))], draw(rng, left), draw(rng, size - left)


def truth(formula):
    """Return the value of a formula, 0 or 1."""
    return formula if isinstance(formula, int) else int(MEANING[formula[0]](*map(truth, formula[1:])))


def examples(count, seed=0):
    """Return random formulas, of 1 to 24 constants, and their values."""
    rng = np.random.default_rng(seed)
    formulas = [draw(rng, int(size)) for size in rng.integers(1, 25, count)]
    return formulas, [truth(formula) for formula in formulas]


def record(fold, formula):
    """Record the logits of a formula."""
    return fold.add("logits", encode(fold, formula))


def encode(fold, formula):
    if isinstance(formula, int):
        return fold.add("value", formula)
    name, left, right = formula
    return fold.add(f"gates.{name}", encode(fold, left), encode(fold, right))
