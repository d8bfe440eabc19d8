"""JAX by hand: compiled programs that read the structure as data, since JAX compiles for every shape.

A height is cut into tiles of a fixed number of nodes (and of children), and the number of tiles is padded
to one of few sizes; all tiles run in one scan. A new minibatch then finds everything compiled
after a few steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from multifold.backend import Array, Ragged
from multifold_bench.hand.levels import binary_levels, child_sum_levels

TILE = 64
"""Nodes in a tile: with fewer, a step has more tiles and takes longer."""
EDGES = 2 * TILE
"""Children in a tile, where they come in any number."""


Program = Callable[..., Any]


@functools.cache
def programs() -> Mapping[str, Program]:
    """Return the compiled programs by the name of their family."""
    import jax

    def children(model: Any, slabs: Any, structure: Any) -> Any:
        h, c = slabs
        left, right = structure
        return model.children(h[left], c[left], h[right], c[right])

    def node(model: Any, slabs: Any, structure: Any) -> Any:
        embedded, lengths, rows, ids = structure
        return model.node(embedded, *[Ragged(slab[rows], lengths, ids) for slab in slabs])

    def child_sum(model: Any, words: Array, tiles: Any, roots: Array) -> Array:
        inner, *structure = tiles
        embedded = model.embed(words), model.embed(inner.ravel()).reshape(*inner.shape, -1)
        return scan_tiles(model, embedded[0], [embedded[1], *structure], roots, node)

    found = {"binary": functools.partial(scan_tiles, launch=children), "child_sum": child_sum}
    return {name: jax.jit(program) for name, program in found.items()}


def scan_tiles(model: Any, words: Array, tiles: Any, roots: Array, launch: Program) -> Array:
    """Compute the states of the leaves, then tile by tile those above them; return the roots' logits.

    ``words`` are what `leaf` of the model takes.
    """
    import jax
    import jax.numpy as jnp

    def write(slab: Array, rows: Array, begin: Any) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(slab, rows, begin, 0)

    first = model.leaf(words)
    leaves = len(words)
    count = len(tiles[0])
    slabs = [jnp.zeros((leaves + count * TILE, x.shape[1]), x.dtype) for x in first]

    def step(slabs: Any, tile: Any) -> Any:
        begin, *structure = tile
        new = launch(model, slabs, structure)
        return [write(slab, x, begin) for slab, x in zip(slabs, new, strict=True)], None

    slabs = [write(slab, x, 0) for slab, x in zip(slabs, first, strict=True)]
    slabs, _ = jax.lax.scan(step, slabs, (leaves + TILE * jnp.arange(count), *tiles))
    return model.logits(slabs[0][roots])


def bucket(count: int, step: int) -> int:
    """Return the size to pad to: multiples of an eighth of a power of two, and of ``step``.

    Examples
    --------
    >>> [bucket(count, 8) for count in (1, 9, 100, 1000, 1030)]
    [8, 16, 112, 1024, 1280]
    """
    size = step
    while size < count:
        size *= 2
    step = max(step, size // 8)
    return -(-count // step) * step


def padded(values: np.ndarray, size: int) -> np.ndarray:
    """Return int32 values with zeros behind them."""
    array = np.zeros(size, np.int32)
    array[: len(values)] = values
    return array


def binary(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of binary trees."""
    levels = binary_levels(trees)
    words, *pairs, roots = np.split(levels.indices, np.cumsum(levels.sizes)[:-1])
    counts = np.diff(levels.offsets)
    leaves = bucket(counts[0], TILE)
    begins = TILE * np.cumsum([0, *-(-counts[1:] // TILE)])  # of each height, among the tiles
    moved = np.repeat([0, *leaves + begins[:-1]] - np.array(levels.offsets[:-1]), counts)
    row = np.arange(levels.offsets[-1]) + moved
    structure = np.zeros((2, TILE * bucket(begins[-1] // TILE, 8)), np.int32)
    for begin, pair in zip(begins, pairs, strict=False):
        count = len(pair) // 2
        structure[:, begin : begin + count] = row[pair].reshape(2, count)
    tiles = list(structure.reshape(2, -1, TILE))
    return programs()["binary"](model, padded(words, leaves), tiles, row[roots])


def child_sum(model: Any, trees: Sequence[Any], width: int) -> Array:
    """Return the logits of trees of any arity."""
    levels = child_sum_levels(trees)
    words, *pieces, roots = np.split(levels.indices, np.cumsum(levels.sizes)[:-1])
    heights = list(zip(*(iter(pieces),) * 3, strict=True))
    edges = max([EDGES, *(bucket(int(lengths.max()), EDGES) for lengths, *_ in heights)])
    places, firsts, tile = pack([lengths.tolist() for lengths, *_ in heights], edges)
    words, inner = np.split(words, [levels.offsets[1]])
    leaves = bucket(len(words), TILE)
    count = bucket(tile, 8)
    row = np.concatenate([np.arange(len(words)), leaves + places])
    lengths, rows, _ = (np.concatenate(column) for column in zip(*heights, strict=True))
    tile_words, tile_lengths = np.zeros((2, count * TILE), np.int32)
    tile_rows = np.zeros(count * edges, np.int32)
    tile_ids = np.full(count * edges, TILE - 1, np.int32)
    tile_words[places] = inner
    tile_lengths[places] = lengths
    child = np.arange(len(rows)) + np.repeat(firsts - np.cumsum(lengths) + lengths, lengths)
    tile_rows[child] = row[rows]
    tile_ids[child] = np.repeat(places % TILE, lengths)
    tile_lengths = tile_lengths.reshape(count, TILE)
    tile_lengths[:, -1] = edges - tile_lengths.sum(axis=1)
    tiles = [
        tile_words.reshape(count, TILE),
        tile_lengths,
        tile_rows.reshape(count, edges),
        tile_ids.reshape(count, edges),
    ]
    return programs()["child_sum"](model, padded(words, leaves), tiles, row[roots])


def pack(heights: Sequence[Sequence[int]], edges: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Pack nodes into tiles; the last place of a tile stays free, for the children that pad it.

    Parameters
    ----------
    heights : sequence of sequences of int
        How many children the nodes of each height have.
    edges : int
        How many children fit into a tile.

    Returns
    -------
    The place of each node, where its children begin, and the number of tiles.

    Examples
    --------
    >>> pack([[100, 20], [60, 80]], edges=128)
    (array([  0,   1,  64, 128]), array([  0, 100, 128, 256]), 3)
    """
    places = []
    firsts = []
    tile = -1
    for lengths in heights:
        # a height begins with a tile of its own
        place = TILE
        used = 0
        for length in lengths:
            if place >= TILE - 1 or used + length > edges:
                place = 0
                used = 0
                tile = tile + 1
            places.append(tile * TILE + place)
            firsts.append(tile * edges + used)
            place = place + 1
            used = used + length
    return np.array(places), np.array(firsts), tile + 1
