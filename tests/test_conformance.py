"""The conformance suite: every backend passes it, and a broken one does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from multifold import Backend, BackendError, Fold
from multifold._numpy.backend import NumpyBackend
from multifold.testing import Conformance, Counting, conformance, failures


class Loose(NumpyBackend):  # type: ignore[misc]
    """NumPy with one method broken; a subclass only here, to break it."""


def broken(method: str, replacement: Any) -> type[NumpyBackend]:
    return type("Broken", (Loose,), {method: replacement})


BREAKS = {
    "version is not declared": ("version", lambda self, x: 0),
    "padded_rows is not declared": ("padded_rows", lambda self, rows: 2 * rows),
    "pads without a method": ("pads", True),
    "concat reverses": ("concat", lambda self, xs: np.concatenate(xs[::-1])),
    "concat promotes": ("concat", lambda self, xs: np.concatenate(xs).astype(np.float16)),
    "promoted forgets the wider dtype": ("promoted", lambda self, signatures: signatures[0]),
    "split shifts": ("split", lambda self, x, sizes: np.split(np.roll(x, 1, 0), np.cumsum(sizes)[:-1])),
    "gather sorts": ("gather", lambda self, x, rows: x[np.sort(rows)]),
    "gather drops repeats": ("gather", lambda self, x, rows: x[np.unique(rows)]),
    "rows counts the last axis": ("rows", lambda self, x: x.shape[-1]),
    "owns everything": ("owns", lambda self, x: True),
    "signature forgets the shape": ("signature", lambda self, x: x.dtype),
    "signature forgets the dtype": ("signature", lambda self, x: x.shape[1:]),
    "signature counts rows": ("signature", lambda self, x: (x.shape, x.dtype)),
    "constant turns all to float": ("constant", lambda self, x, device: x.astype(np.float32)),
    "concat widens": (
        "concat",
        lambda self, xs: np.concatenate(xs).astype(np.result_type(xs[0], np.float32)),
    ),
    "concat reverses many": ("concat", lambda self, xs: np.concatenate(xs[::-1] if len(xs) > 4 else xs)),
    "gather sorts many": ("gather", lambda self, x, rows: x[np.sort(rows) if len(rows) > 8 else rows]),
    "gather flattens": ("gather", lambda self, x, rows: x.reshape(len(x), -1)[rows]),
    "put writes to other rows": ("put", lambda self, x, rows, values: x.__setitem__(rows[::-1], values)),
    "to_numpy is a view": ("to_numpy", lambda self, x: x),
    "call runs twice": ("call", lambda self, fn, xs, static: (fn(*xs, **static), fn(*xs, **static))[1]),
    "numbers are half": (
        "number_dtype",
        lambda self, kind: np.dtype(np.float16 if kind is float else kind),
    ),
    "call drops static arguments": ("call", lambda self, fn, operands, static: fn(*operands)),
}


@pytest.mark.parametrize("name", [name for name, _ in conformance.tests(Conformance())])
def test_backend_conforms(backend: str, name: str) -> None:
    suite = type("Suite", (Conformance,), {"backend": backend})()
    getattr(suite, name)()


@pytest.mark.parametrize("what", list(BREAKS))
def test_broken_adapter_is_rejected(what: str) -> None:
    assert failures(broken(*BREAKS[what]))


def test_unbroken_subclass_is_accepted() -> None:
    assert failures(Loose) == {}


def test_a_counting_backend_can_be_checked(backend: str) -> None:
    fold = Fold(backend=Counting(backend))
    fold.check({"double": lambda x: x + x}, [[fold.add("double", float(i)) for i in range(3)]])


def test_a_counting_backend_declares_what_its_own_does(seam) -> None:
    flags = [name for name, default in vars(Backend).items() if isinstance(default, bool)]
    assert len(flags) == 8 and all(getattr(Counting(seam), x) == getattr(seam, x) for x in flags)


class Widening(np.ndarray):
    """An array whose product with a Python number is of float64."""

    def __mul__(self, other: Any) -> Any:
        return np.asarray(self, np.float64) * other


def test_arrays_that_a_python_number_widens_are_named() -> None:
    found = failures(broken("constant", lambda self, values, device: np.array(values).view(Widening)))
    assert "made float64" in str(found["test_a_python_number_changes_no_dtype"])


def test_a_class_that_numpy_knows_nothing_of_is_no_array() -> None:
    with pytest.raises(BackendError, match=r"(?s)Expected NumPy to read an .*override Nump"):
        Backend.to_numpy(NumpyBackend(), object())
