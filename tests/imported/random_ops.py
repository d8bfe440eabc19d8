"""Random ops: chains of a few blocks, each of which keeps the rows of a launch apart or mixes them.

Blocks are written once, against `multifold.ops` and a kit of what that has not. A drawn op is known by its
number alone, so ``Drawn(7, kit_of("torch"))`` is the same one each time. An op without a mixing block keeps
its rows apart by construction. What one with such a block ought to return is asked of the op itself, run on
one row after the other, each time on a fresh copy without its dropout: nothing of a trial takes part.
"""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from multifold import ops
from multifold._engine.frameworks import registry

# ---- what `multifold.ops` has not -----------------------------------------------------------------


def numpy_kit() -> dict[str, Any]:
    def dropout(state, x, key):
        drawn = state.rng.random(x.shape) if key % 2 else np.random.random(x.shape)
        return x * (drawn < 0.5) * 2

    def fresh(state):
        state.rng = np.random.default_rng(0)

    return {
        "sort": np.sort,
        "flip": np.flip,
        "cumsum": np.cumsum,
        "swap": np.transpose,
        "fresh": fresh,
        "dropout": dropout,
        "seed": np.random.seed,
        "dtypes": ("float32", "float64", "float16"),
    }


def torch_kit() -> dict[str, Any]:
    torch = importlib.import_module("torch")
    return {
        "sort": lambda x, axis: torch.sort(x, dim=axis).values,
        "flip": lambda x, axis: torch.flip(x, (axis,)),
        "cumsum": lambda x, axis: torch.cumsum(x, axis, dtype=x.dtype),
        "swap": torch.t,
        "dropout": lambda state, x, key: torch.nn.functional.dropout(x, 0.5),
        "seed": torch.manual_seed,
        "dtypes": ("float32", "float64", "float16", "bfloat16"),
    }


def tensorflow_kit() -> dict[str, Any]:
    tf = importlib.import_module("tensorflow")
    keras = importlib.import_module("keras")

    def fresh(state):
        # `tf.nn.dropout` cannot draw a mask again.
        state.drop = keras.layers.Dropout(0.5, seed=1, dtype=state.drawn.dtype)

    return {
        "sort": lambda x, axis: tf.sort(x, axis=axis),
        "flip": lambda x, axis: tf.reverse(x, [axis]),
        "cumsum": lambda x, axis: tf.cumsum(x, axis=axis),
        "swap": tf.transpose,
        "fresh": fresh,
        "dropout": lambda state, x, key: state.drop(x, training=True),
        "dtypes": ("float32", "float64", "float16", "bfloat16"),
    }


def mxnet_kit() -> dict[str, Any]:
    mx = importlib.import_module("mxnet")

    def fresh(state):
        state.drop = mx.gluon.nn.Dropout(0.5)  # of a layer, since a trial cannot draw a mask again

    return {
        "sort": lambda x, axis: mx.nd.sort(x, axis=axis),
        "flip": lambda x, axis: mx.nd.flip(x, axis=axis),
        "cumsum": lambda x, axis: mx.nd.cumsum(x, axis=axis),
        "swap": mx.nd.transpose,
        "fresh": fresh,
        "dropout": lambda state, x, key: state.drop(x),
        "seed": mx.random.seed,
        "training": mx.autograd.train_mode,
        "dtypes": ("float32", "float64"),
    }


def jax_kit() -> dict[str, Any]:
    jax = importlib.import_module("jax")

    def dropout(state, x, key):
        kept = jax.random.bernoulli(jax.random.key(key), 0.5, x.shape)
        return jax.numpy.where(kept, x * 2, 0)

    return {
        "sort": jax.numpy.sort,
        "flip": jax.numpy.flip,
        "cumsum": lambda x, axis: jax.numpy.cumsum(x, axis, dtype=x.dtype),
        "swap": jax.numpy.transpose,
        "dropout": dropout,
        "dtypes": ("float32", "bfloat16"),
        "rows": (2, 3, 8),  # each shape is compiled for
    }


KITS = {
    "numpy": numpy_kit,
    "torch": torch_kit,
    "tensorflow": tensorflow_kit,
    "mxnet": mxnet_kit,
    "jax": jax_kit,
}


def kit_of(backend: str) -> SimpleNamespace:
    """Return what blocks need of a framework besides `multifold.ops`."""
    seam = registry.load_backend(backend)
    kit = {
        "rows": ROWS,
        "fresh": lambda state: None,
        "seed": lambda seed: None,
        "training": contextlib.nullcontext,
    }
    return SimpleNamespace(**(kit | KITS[backend]()), seam=seam, array=lambda x: seam.constant(x, None))


# ---- blocks ----------------------------------------------------------------------------------------


def weights(kit: Any, x: Any, key: int, *shape: int) -> Any:
    """Return numbers that follow from a key, in the dtype of an array."""
    values = np.random.default_rng(key).normal(size=shape) / math.sqrt(shape[0])
    return ops.cast(kit.array(values.astype(np.float32)), x)


def table(kit: Any, key: int) -> Any:
    """Return an embedding of seven numbers."""
    return kit.array(np.random.default_rng(key).normal(size=(7, 3)).astype(np.float32))


def spread(per_row: Any, x: Any) -> Any:
    """Return one number for each row, ``(n,)``, so that it broadcasts with a matrix."""
    return ops.reshape(per_row, (1,))


def of_all(reduce: Callable[[Any, int], Any], x: Any) -> Any:
    """Return a reduction over the rows of a matrix, as a matrix of one row."""
    return ops.stack([reduce(x, 0)], 0)


def root(x: Any) -> Any:
    return (x + 0.1) ** 0.5


def scan(x: Any) -> Any:
    h = x[:, 0]
    found = [h]
    for i in range(1, x.shape[1]):
        h = ops.tanh(h * 0.5 + x[:, i])
        found.append(h)
    return ops.stack(found, 1)


def turned(x: Any, axis: int) -> Any:
    """Roll an array by one along an axis."""
    if x.shape[axis] == 1:
        return x
    return ops.concat([x[-1:], x[:-1]], 0) if axis == 0 else ops.concat([x[:, -1:], x[:, :-1]], 1)


def standard(x: Any, mean: Any, variance: Any) -> Any:
    return (x - mean) / root(variance)


def embedded(kit: Any, x: Any, key: int) -> Any:
    known = ops.where(x == x, x, ops.zeros_like(x))  # NaN finds no row
    index = ops.cast((ops.tanh(known) + 1) * 3, "int32")
    found = [ops.sum(ops.take(table(kit, key), index[:, i]), 1) for i in range(x.shape[1])]
    return ops.cast(ops.stack(found, 1), x)


APART: dict[str, Callable[[Any, Any, int], Any]] = {
    "linear": lambda kit, x, key: ops.matmul(x, weights(kit, x, key, x.shape[1], 3 + key % 2)),
    "tanh": lambda kit, x, key: ops.tanh(x),
    "sigmoid": lambda kit, x, key: ops.sigmoid(x * 2),
    "relu": lambda kit, x, key: ops.relu(x),
    "exp": lambda kit, x, key: ops.exp(ops.tanh(x)),
    "square": lambda kit, x, key: x * ops.tanh(x),
    "softmax": lambda kit, x, key: ops.softmax(x, 1),
    "log_softmax": lambda kit, x, key: ops.log_softmax(x, 1),
    "norm": lambda kit, x, key: x / spread(root(ops.sum(x * x, 1)), x),
    "standard": lambda kit, x, key: standard(x, spread(ops.mean(x, 1), x), spread(ops.mean(x * x, 1), x)),
    "largest": lambda kit, x, key: x - spread(ops.max(x, 1), x),
    "sort": lambda kit, x, key: kit.sort(x, 1),
    "flip": lambda kit, x, key: kit.flip(x, 1),
    "cumsum": lambda kit, x, key: kit.cumsum(x, 1),
    "convolve": lambda kit, x, key: x * 0.7 - turned(x, 1) * 0.4,
    "compare": lambda kit, x, key: ops.where(x > 0.1 * (key % 5), x, x * -0.5),
    "index": lambda kit, x, key: x[:, key % x.shape[1] :],
    "scan": lambda kit, x, key: scan(x),
    "mean": lambda kit, x, key: spread(ops.mean(x, 1), x),
    "embed": embedded,
}
"""Blocks that keep the rows of a matrix apart."""


def attend(x: Any, y: Any) -> Any:
    """Let each position of a row of matrices, ``(n, t, d)``, see those of its own row."""
    t, d = y.shape[1:]
    products = ops.reshape(x, (t, 1, d)) * ops.reshape(y, (1, t, d))
    scores = ops.softmax(ops.sum(products, 3), 2)
    return ops.sum(ops.reshape(scores, (t, t, 1)) * ops.reshape(y, (1, t, d)), 2)


CUBES: dict[str, Callable[[Any, Any, int], Any]] = {
    "attention": lambda kit, x, key: attend(x, x),
    "softmax": lambda kit, x, key: ops.softmax(x, 1 + key % 2),
    "sort": lambda kit, x, key: kit.sort(x, 1 + key % 2),
    "cumsum": lambda kit, x, key: kit.cumsum(x, 1 + key % 2),
    "mean": lambda kit, x, key: ops.mean(x, 1 + key % 2),
    "slice": lambda kit, x, key: x[:, key % x.shape[1]],
    "linear": lambda kit, x, key: ops.matmul(x, weights(kit, x, key, x.shape[2], 3)),
}
"""The same for rows that are matrices, where axis 1 may be taken for that of the rows."""


def attention(kit: Any, x: Any, key: int) -> Any:
    """Let each row see all others."""
    return ops.matmul(ops.softmax(ops.matmul(x, kit.swap(x)), 1), x)


def beyond(kit: Any, x: Any, key: int) -> Any:
    """Change all rows if one of them has a large number."""
    return ops.where(of_all(ops.max, spread(ops.max(x, 1), x)) + x * 0 > 1.0 + key % 2, x * 0.5, x)


def laid(kit: Any, x: Any, key: int) -> Any:
    """Lay one number of each row along the columns, where there are as many."""
    return x * (kit.swap(x[:, :1]) if x.shape[0] == x.shape[1] else x[:, :1])


MIXING: dict[str, Callable[[Any, Any, int], Any]] = {
    "mean": lambda kit, x, key: x - of_all(ops.mean, x),
    "sum": lambda kit, x, key: x + of_all(ops.sum, x) * 0.1,
    "largest": lambda kit, x, key: x - of_all(ops.max, x),
    "least": lambda kit, x, key: x + of_all(ops.max, x * -1),
    "scale": lambda kit, x, key: x / (of_all(ops.max, spread(ops.max(abs(x), 1), x)) + 0.5),
    "norm": lambda kit, x, key: x / root(of_all(ops.sum, spread(ops.sum(x * x, 1), x))),
    "softmax": lambda kit, x, key: ops.softmax(x, 0),
    "log_softmax": lambda kit, x, key: ops.log_softmax(x, 0),
    "flip": lambda kit, x, key: kit.flip(x, 0),
    "turn": lambda kit, x, key: turned(x, 0),
    "previous": lambda kit, x, key: x - turned(x, 0) * 0.5,
    "sort": lambda kit, x, key: kit.sort(x, 0),
    "cumsum": lambda kit, x, key: kit.cumsum(x, 0),
    "attention": attention,
    "standard": lambda kit, x, key: standard(x, of_all(ops.mean, x), of_all(ops.mean, x * x)),
    "place": lambda kit, x, key: x + kit.cumsum(ops.zeros_like(x) + 0.25, 0),
    "first": lambda kit, x, key: x - x[:1],
    "last": lambda kit, x, key: x - x[-1:],
    "middle": lambda kit, x, key: x - kit.sort(x, 0)[len(x) // 2 : len(x) // 2 + 1],
    "beyond": beyond,
    "laid": laid,
}
"""Blocks that mix the rows of a matrix."""

STATEFUL = {"count": False, "log": False, "running": True}
"""Blocks that keep something on the op -> whether the results of later launches follow the rows of it."""


def kept(name: str, state: Any, x: Any) -> Any:
    """Run a block that keeps something on the op."""
    if name == "count":
        state.calls += 1
        return x
    if name == "log":
        state.seen = x
        return x
    found = x - state.mean
    state.mean = of_all(ops.mean, x) * 0.5 + state.mean * 0.5
    return found


# ---- drawn ops -------------------------------------------------------------------------------------

TRAILING = ((), (3,), (4,), (1,), (2, 3), (3, 4))
ROWS = (2, 3, 4, 5, 8, 17, 33)
VALUES = ("normal", "normal", "normal", "large", "few", "sparse", "alike", "pairs", "positive")


class Op:
    """A drawn op. It keeps its state, so each launch of a loop has another one."""

    def __init__(self, drawn: Drawn, drops: bool = True) -> None:
        self.drawn = drawn
        self.drops = drops
        self.calls = 0
        self.mean = 0.0
        self.seen: Any = None
        drawn.kit.fresh(self)

    def __call__(self, *operands: Any) -> Any:
        return self.drawn.play(self, operands)


class Drawn:
    """The op of a number: blocks, and the rows of two launches.

    Attributes
    ----------
    blocks : list of (str, str, int)
        A kind, a name in the table of that kind, and a key.
    mixes : list of str
        The blocks among them that mix rows.
    draws : bool
        Whether there is dropout among them.
    launches : list of list of array
        The operands of each launch.
    """

    def __init__(self, number: int, kit: Any) -> None:
        self.number = number
        self.kit = kit
        rng = np.random.default_rng([number, 20])
        self.dtype = str(rng.choice(kit.dtypes)) if rng.random() < 0.3 else "float32"
        operands = int(rng.integers(1, 3))
        shapes = [TRAILING[rng.integers(len(TRAILING))] for _ in range(operands)]
        integers = [rng.random() < 0.2 for _ in range(operands)]
        self.blocks = [self.block(rng) for _ in range(rng.integers(1, 5))]
        if operands == 2:
            self.insert(rng, ("meet", str(rng.choice(["add", "times", "where", "beside"])), 0))
        if rng.random() < 0.3:
            self.insert(rng, ("dropout", "dropout", int(rng.integers(100))))
        if rng.random() < 0.1:
            self.insert(rng, ("kept", str(rng.choice(list(STATEFUL))), 0))
        for _ in range(rng.integers(0, 3)) if rng.random() < 0.8 else ():
            self.insert(rng, ("mixing", str(rng.choice(list(MIXING))), int(rng.integers(100))))
        self.pair = rng.random() < 0.1
        values = [str(rng.choice(VALUES)) for _ in range(operands)]
        self.launches = []
        for _ in range(2):
            rows = int(rng.choice(kit.rows))
            own = zip(shapes, integers, values, strict=True)
            self.launches.append([self.operand(rng, (rows, *s), whole, how) for s, whole, how in own])
        self.mixes = [
            name for kind, name, _ in self.blocks if kind == "mixing" or (kind == "kept" and STATEFUL[name])
        ]
        self.draws = any(kind == "dropout" for kind, _, _ in self.blocks)

    def __repr__(self) -> str:
        shapes = [[f"{x.dtype}{list(x.shape)}" for x in operands] for operands in self.launches]
        names = " ".join(f"{kind}.{name}" for kind, name, _ in self.blocks)
        return f"<{self.number} {self.dtype}: {names}; {shapes}>"

    def block(self, rng: Any) -> tuple[str, str, int]:
        kind, names = (("cube", CUBES), ("apart", APART))[int(rng.random() < 0.8)]
        return kind, str(rng.choice(list(names))), int(rng.integers(100))

    def insert(self, rng: Any, block: tuple[str, str, int]) -> None:
        self.blocks.insert(int(rng.integers(len(self.blocks) + 1)), block)

    def operand(self, rng: Any, shape: tuple[int, ...], whole: bool, how: str) -> Any:
        """Return rows, which may be alike, or differ little or much."""
        x = rng.normal(size=shape)
        if how == "large":
            x = x * 10.0 ** rng.integers(-1, 3, (len(x), *[1] * (x.ndim - 1)))
        elif how == "few":
            x = rng.integers(-2, 3, shape) / 2
        elif how == "sparse":
            x = x * (rng.random(shape) < 0.2)
        elif how == "alike":
            x = np.broadcast_to(x[:1], shape)
        elif how == "pairs":
            x = np.repeat(x, 2, axis=0)[: len(x)]
        elif how == "positive":
            x = abs(x) + 1
        if whole:
            return self.kit.array(np.clip(np.round(x * 2), -9, 9).astype(np.int32))
        return ops.cast(self.kit.array(x.astype(np.float32)), self.dtype)

    def play(self, state: Op, operands: Sequence[Any]) -> Any:
        """Run the blocks on the operands of a launch."""
        first, *others = [self.floating(x) for x in operands]
        x = first
        for kind, name, key in self.blocks:
            shape = x.shape[1:]
            if kind == "cube" and len(shape) == 2:
                x = CUBES[name](self.kit, x, key)
                continue
            if kind == "meet":
                x = self.meet(name, x, others[0])
                continue
            x = ops.reshape(x, (math.prod(shape),))
            if kind == "dropout":
                x = self.kit.dropout(state, x, key) if state.drops else x
            elif kind == "kept":
                x = kept(name, state, x)
            elif kind == "mixing":
                x = MIXING[name](self.kit, x, key)
            else:
                x = APART.get(name, APART["tanh"])(self.kit, x, key)
            if math.prod(x.shape[1:]) == math.prod(shape):
                x = ops.reshape(x, tuple(shape))
        return (x, ops.tanh(first)) if self.pair else x

    def floating(self, x: Any) -> Any:
        return ops.cast(x, self.dtype) if "int" in str(x.dtype) else x

    def meet(self, name: str, x: Any, y: Any) -> Any:
        """Combine two arrays; of one that has another shape, each row is a number."""
        if tuple(y.shape[1:]) != tuple(x.shape[1:]):
            own = ops.mean(ops.reshape(y, (math.prod(y.shape[1:]),)), 1)
            y = x * 0 + ops.reshape(own, (1,) * (len(x.shape) - 1))
        if name == "add":
            return x + y * 0.5
        if name == "times":
            return x * ops.tanh(y)
        if name == "where":
            return ops.where(y > 0.0, x, y)
        size = (math.prod(x.shape[1:]),)
        return ops.concat([ops.reshape(x, size), ops.reshape(y, size)], 1)

    # ---- what it ought to return -----------------------------------------------------------------

    def hosts(self, result: Any) -> list[np.ndarray]:
        """Return the arrays of a result on the host, in float64."""
        arrays = result if isinstance(result, tuple) else (result,)
        return [np.asarray(self.kit.seam.to_numpy(x)).astype(np.float64) for x in arrays]

    def alone(self, operands: Sequence[Any]) -> list[np.ndarray]:
        """Return the results of a launch, where each row runs by itself on a fresh op."""
        rows = range(operands[0].shape[0])
        found = [self.hosts(Op(self, drops=False)(*[x[i : i + 1] for x in operands])) for i in rows]
        return [np.concatenate(parts) for parts in zip(*found, strict=True)]

    def together(self) -> list[list[np.ndarray]]:
        """Return the results of both launches on one op without dropout."""
        op = Op(self, drops=False)
        return [self.hosts(op(*operands)) for operands in self.launches]

    def run(self, op: Op, operands: Sequence[Any]) -> list[np.ndarray]:
        """Return the results of a launch, whose dropout has the same masks each time."""
        self.kit.seed(self.number)
        with self.kit.training():
            return self.hosts(op(*operands))

    def rearranged(self, which: int) -> float:
        """Return how much rows of a launch change beside others of its rows, in multiples of rounding.

        Where there is dropout, only rows that stay in their places are compared, since these have masks.
        """
        rng = np.random.default_rng(self.number)
        before, operands = self.launches[:which], self.launches[which]
        places = np.arange(operands[0].shape[0])
        worst = 0.0
        expected: list[np.ndarray] = []
        for source in (places, *[np.full_like(places, i) for i in places], *self.drawn_rows(rng, places)):
            op = Op(self)
            for others in before:
                self.run(op, others)
            found = self.run(op, [self.kit.seam.gather(x, self.kit.array(source)) for x in operands])
            expected = expected or found
            if [x.shape for x in found] != [x.shape for x in expected]:
                return math.inf
            kept = source == places if self.draws else source >= 0
            pairs = [(x[kept], y[source][kept]) for x, y in zip(found, expected, strict=True)]
            if kept.any():
                worst = max(worst, excess(*map(list, zip(*pairs, strict=True)), self.dtype))
        return worst

    def drawn_rows(self, rng: Any, places: np.ndarray) -> list[np.ndarray]:
        """Return other rows for all places, and for half of them."""
        drawn = rng.integers(len(places), size=(10, len(places)))
        return [*drawn, *np.where(rng.random(drawn.shape) < 0.5, places, drawn)]

    def follows(self) -> float:
        """Return how much the second launch changes where the first one has one row in all places."""
        first, second = self.launches
        index = self.kit.array(np.zeros(first[0].shape[0], np.int64))
        results = []
        for operands in (first, [self.kit.seam.gather(x, index) for x in first]):
            op = Op(self)
            self.run(op, operands)
            results.append(self.run(op, second))
        return excess(*results, self.dtype)

    def wrong(self) -> bool:
        """Return whether batching changes a result beyond rounding, and what changes it are other rows.

        An op that looks at nothing but the number of rows is left out; and one whose mask, in this launch,
        hides that it mixes rows, since then the result is that of a loop.
        """
        if not self.mixes:
            return False
        pairs = enumerate(zip(self.together(), self.launches, strict=True))
        far = [i for i, (found, x) in pairs if excess(found, self.alone(x), self.dtype) > 1]
        return any(self.rearranged(i) > 1 for i in far) or (1 in far and self.follows() > 1)


TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "float16": 3e-2, "bfloat16": 3e-2}
"""What counts as rounding, beside the largest number of a row, as docs/explain.md has it."""


def excess(found: list[np.ndarray], expected: list[np.ndarray], dtype: str) -> float:
    """Return the largest difference of two results, in multiples of what is rounding."""
    worst = 0.0
    for x, y in zip(found, expected, strict=True):
        if x.shape != y.shape:
            return math.inf
        sizes = np.nan_to_num(abs(y), posinf=0.0).reshape(len(y), -1).max(axis=1)
        limits = TOLERANCE[dtype] * np.maximum(sizes, 1e-3 * sizes.max())
        with np.errstate(invalid="ignore", divide="ignore"):
            same = (x == y) | (np.isnan(x) & np.isnan(y))
            apart = (
                np.where(same, 0.0, np.nan_to_num(abs(x - y), nan=np.inf)).reshape(len(y), -1).max(axis=1)
            )
            worst = max(worst, float(np.where(apart > 0, apart / limits, 0.0).max()))
    return worst
