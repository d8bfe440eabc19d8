"""Random graphs: what schedules are compared on, recorded as a user would do it.

A `RandomGraphs` draws examples (plain tuples of numbers, the same for the same seed) and records one at
a time through ``fold.add``, so it serves whatever has that method: a `Fold`, an `Unfold`, the recorder of a
trace. Lengths and shapes are drawn from distributions chosen so that a minibatch of the default size has
about as many calls, types and levels as the data it stands for.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from multifold.operands import ragged
from multifold_bench.graphs import control, sequences, trees
from multifold_bench.graphs.base import RandomGraphs

WORD_TREES = partial(trees.output_at_root, leaf=trees.word_leaf)

GRAPHS: Mapping[str, RandomGraphs] = {
    "sst-root": RandomGraphs(trees.sentence_tree, trees.output_at_root, 64, optimal=True),
    "sst-nodes": RandomGraphs(trees.sentence_tree, trees.output_at_every_node, 64, optimal=True),
    "sst-two-cells": RandomGraphs(
        partial(trees.sentence_tree, ops=("children_a", "children_b")),
        trees.output_at_every_node,
        64,
        optimal=False,
    ),
    "mv-rnn": RandomGraphs(trees.sentence_tree, trees.matrix_vector, 64, optimal=True),
    "tagger": RandomGraphs(partial(sequences.sample_tagged, rare=0.0), sequences.tag, 64, optimal=True),
    "tagger-chars": RandomGraphs(
        partial(sequences.sample_tagged, rare=0.36), sequences.tag, 64, optimal=True
    ),
    "lattice": RandomGraphs(sequences.sample_lattice, sequences.lattice, 64, optimal=False),
    "lattice-ragged": RandomGraphs(
        sequences.sample_lattice, partial(sequences.lattice, gather=ragged), 64, optimal=False
    ),
    "encoder-decoder": RandomGraphs(sequences.sample_translation, sequences.translate, 64, optimal=True),
    "nested-rnn": RandomGraphs(sequences.sample_nested, sequences.nested, 8, optimal=False),
    "shift-reduce": RandomGraphs(trees.sentence_tree, control.shift_reduce, 64, optimal=False),
    "top-down": RandomGraphs(control.sample_growth, control.grow, 64, optimal=False),
    "early-exit": RandomGraphs(control.sample_exit, control.early_exit, 64, optimal=True),
    "grid": RandomGraphs(control.sample_grid, control.grid, 16, optimal=True),
    "two-cells": RandomGraphs(control.sample_cells, control.two_cells, 128, optimal=False),
    "modules": RandomGraphs(control.sample_modules, control.ask, 64, optimal=False),
    "typed-dag": RandomGraphs(control.sample_dag, control.typed_dag, 16, optimal=False),
    "synthetic": RandomGraphs(trees.random_tree, WORD_TREES, 128, optimal=True),
    "random-trees": RandomGraphs(
        partial(trees.tree_of_128, split=trees.uniform_split), WORD_TREES, 64, optimal=True
    ),
    "balanced-trees": RandomGraphs(
        partial(trees.tree_of_128, split=trees.balanced_split), WORD_TREES, 64, optimal=True
    ),
    "comb-trees": RandomGraphs(
        partial(trees.tree_of_128, split=trees.comb_split), WORD_TREES, 64, optimal=True
    ),
    "chains": RandomGraphs(sequences.sentence, sequences.chain, 64, optimal=True),
}
"""All random graphs by name.

``synthetic`` stands for small trees of all shapes (128 of 14 to 22 leaves, cut uniformly: about
4,600 calls on 13 levels); ``random-trees`` and ``balanced-trees`` are the two cases, all different
and all alike, of TensorFlow Fold's own benchmark (128 leaves).
"""
