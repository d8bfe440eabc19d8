"""JAX by hand: compiled programs that read the structure as data, since JAX compiles for every shape.

A minibatch is padded to one of few sizes. Binary trees run in tiles of a fixed number of nodes, all
in one scan; of trees of any arity each height is a compiled call, since there children come in numbers
of their own. Either way a new minibatch finds everything compiled after a few steps.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from multifold.backend import Array, Ragged
from multifold.bench.hand.levels import binary_levels, child_sum_levels

TILE = 64
"""Nodes in a tile: at 64 a step takes two thirds of what it takes at 32, and half of that at 16."""


@functools.cache
def programs() -> Any:
    """Return the compiled programs."""
    import jax
    import jax.numpy as jnp

    def write(slab: Array, rows: Array, begin: Any) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(slab, rows, begin, 0)

    @jax.jit
    def binary(model: Any, words: Array, tiles: Array, roots: Array) -> Array:
        leaves, count = len(words), tiles.shape[1]
        first = model.leaf(words)
        slabs = [jnp.zeros((leaves + count * TILE, x.shape[1]), x.dtype) for x in first]

        def tile(slabs: Any, structure: Any) -> Any:
            (h, c), ((left, right), begin) = slabs, structure
            new = model.children(h[left], c[left], h[right], c[right])
            return [write(slab, x, begin) for slab, x in zip(slabs, new, strict=True)], None

        slabs = [write(slab, x, 0) for slab, x in zip(slabs, first, strict=True)]
        begins = leaves + TILE * jnp.arange(count)
        (h, _), _ = jax.lax.scan(tile, slabs, ((tiles[0], tiles[1]), begins))
        return model.logits(h[roots])

    @functools.partial(jax.jit, static_argnums=2)
    def leaves(model: Any, words: Array, rows: int) -> Any:
        first = model.leaf(words)
        return [write(jnp.zeros((rows, x.shape[1]), x.dtype), x, 0) for x in first]

    @jax.jit
    def height(model: Any, slabs: Any, structure: Any, begin: Any) -> Any:
        words, lengths, rows, ids = structure
        children = [Ragged(slab[rows], lengths, ids) for slab in slabs]
        new = model.node(words, *children)
        return [write(slab, x, begin) for slab, x in zip(slabs, new, strict=True)]

    @jax.jit
    def logits(model: Any, h: Array, roots: Array) -> Array:
        return model.logits(h[roots])

    return SimpleNamespace(binary=binary, leaves=leaves, height=height, logits=logits)


def bucket(count: int, step: int) -> int:
    """Return the size to pad to: multiples of an eighth of a power of two, and of ``step``.

    Examples
    --------
    >>> [bucket(count, 8) for count in (1, 9, 100, 1000, 1030)]
    [8, 16, 104, 1024, 1280]
    """
    size = step
    while size < count:
        size *= 2
    step = max(step, size // 8)
    return -(-count // step) * step


def padded(values: np.ndarray, size: int, filler: int = 0) -> np.ndarray:
    """Return int32 values with fillers behind them."""
    array = np.full(size, filler, np.int32)
    array[: len(values)] = values
    return array


def binary(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees."""
    levels = binary_levels(trees)
    words, *pairs, roots = np.split(levels.indices, np.cumsum(levels.sizes)[:-1])
    counts = np.diff(levels.offsets)
    leaves = bucket(counts[0], TILE)
    tiles = -(-counts[1:] // TILE)
    begins = leaves + TILE * np.cumsum([0, *tiles])  # of each height in the padded slab
    moved = np.repeat([0, *begins[:-1]] - np.array(levels.offsets[:-1]), counts)
    row = np.arange(levels.offsets[-1]) + moved
    structure = np.zeros((2, bucket(int(tiles.sum()), 8) * TILE), np.int32)
    for begin, pair in zip(begins - leaves, pairs, strict=False):
        count = len(pair) // 2
        structure[:, begin : begin + count] = row[pair].reshape(2, count)
    shape = (2, -1, TILE)
    return programs().binary(model, padded(words, leaves), structure.reshape(shape), row[roots])


def child_sum(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of trees of any arity."""
    levels = child_sum_levels(trees)
    words, *pieces, roots = np.split(levels.indices, np.cumsum(levels.sizes)[:-1])
    run = programs()
    heights = list(zip(*(iter(pieces),) * 4, strict=True))
    leaves = bucket(len(words), TILE)
    # One node more than there are: the padding of the children belongs to it.
    sizes = [bucket(len(words) + 1, 8) for words, *_ in heights]
    begins = leaves + np.cumsum([0, *sizes])
    moved = np.repeat([0, *begins[:-1]] - np.array(levels.offsets[:-1]), np.diff(levels.offsets))
    row = np.arange(levels.offsets[-1]) + moved
    slabs = run.leaves(model, padded(words, leaves), bucket(int(begins[-1]), 1024))
    for begin, size, (words, lengths, rows, ids) in zip(begins, sizes, heights, strict=False):
        count = bucket(len(rows), 16)
        lengths = padded(lengths, size)
        lengths[-1] = count - len(rows)
        structure = padded(words, size), lengths, padded(row[rows], count), padded(ids, count, size - 1)
        slabs = run.height(model, slabs, structure, begin)
    return run.logits(model, slabs[0], row[roots])
