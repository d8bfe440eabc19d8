"""A backend that counts what is asked of another one: launches, gathers, concatenations, copied rows."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import numpy as np

from multifold._engine.frameworks import registry
from multifold.backend import Backend, TrainingKit


def handed_on(method: str, counted: bool = False) -> Callable[..., Any]:
    """Return a method for `Counting` that calls the method of this name of the inner backend.

    It returns what that returns, and adds 1 to ``counts[method]`` if ``counted`` is true.
    """

    def ask(self: Counting, *operands: Any) -> Any:
        if counted:
            self.counts[method] += 1
        return getattr(self.inner, method)(*operands)

    return ask


@final
class Counting(Backend):
    """Hands everything on to a backend and counts it in ``counts``.

    Attributes
    ----------
    counts : Counter
        ``"call"``, ``"gather"``, ``"concat"``, ``"split"``, ``"constant"`` and ``"to_numpy"`` count
        calls of those methods; ``"rows"`` counts the rows that gathers and concatenations copied.

    Examples
    --------
    >>> import multifold
    >>> counting = Counting("numpy")
    >>> fold = multifold.Fold(backend=counting)
    >>> fold.apply({"f": lambda x: x + 1}, [[fold.add("f", i) for i in range(3)]])
    [array([1, 2, 3])]
    >>> counting.counts["call"], counting.counts["gather"]
    (1, 0)
    """

    name = "counting"

    def __init__(self, backend: str | Backend) -> None:
        self.inner = backend if isinstance(backend, Backend) else registry.load_backend(backend)
        self.counts: Counter[str] = Counter()
        # By these declarations, as `pads` and `puts`, the core decides what it asks of a backend.
        flags = [name for name, default in vars(Backend).items() if isinstance(default, bool)]
        for declared in ("name", "passes", *flags):
            setattr(self, declared, getattr(self.inner, declared))

    @property
    def kit(self) -> TrainingKit:  # type: ignore[override]
        """The training kit of the inner backend, as it is: what the kit does is not counted."""
        return self.inner.kit

    def constants(self, arrays: Sequence[np.ndarray], device: Any) -> Sequence[Any]:
        # One upload, however many arrays travel in it.
        self.counts["constant"] += 1
        return self.inner.constants(arrays, device)

    def concat(self, xs: Sequence[Any]) -> Any:
        self.counts["concat"] += 1
        self.counts["rows"] += sum(map(self.inner.rows, xs))
        return self.inner.concat(xs)

    def gather(self, x: Any, rows: Any) -> Any:
        self.counts["gather"] += 1
        self.counts["rows"] += self.inner.rows(rows)
        return self.inner.gather(x, rows)

    def from_host(self, values: np.ndarray) -> Any:
        self.counts["gather"] += 1
        # The core has gathered these rows itself, in the host's view of an array.
        self.counts["rows"] += len(values)
        return self.inner.from_host(values)

    @contextlib.contextmanager
    def apart(self, owners: Sequence[Any]) -> Iterator[None]:
        """Return the context manager of the inner backend's `apart`.

        As it is left, ``counts`` becomes what it was as it was entered: what is asked inside is not
        counted.
        """
        counts = self.counts.copy()
        try:
            with self.inner.apart(owners):
                yield
        finally:
            self.counts.clear()
            self.counts.update(counts)

    abstract = handed_on("abstract")
    advice = handed_on("advice")
    arrays_of = handed_on("arrays_of")
    call = handed_on("call", counted=True)
    constant = handed_on("constant", counted=True)
    split = handed_on("split", counted=True)
    to_numpy = handed_on("to_numpy", counted=True)
    cast = handed_on("cast")
    cell = handed_on("cell")
    compilations = handed_on("compilations")
    copy = handed_on("copy")
    context = handed_on("context")
    device = handed_on("device")
    draws = handed_on("draws")
    gaps = handed_on("gaps")
    are_like = handed_on("are_like")
    host_view = handed_on("host_view")
    hosts = handed_on("hosts")
    inference = handed_on("inference")
    is_built = handed_on("is_built")
    is_inference = handed_on("is_inference")
    is_traced = handed_on("is_traced")
    like = handed_on("like")
    bound_form = handed_on("bound_form")
    form_of = handed_on("form_of")
    modes = handed_on("modes")
    plain_module = handed_on("plain_module")
    lazy_recorder = handed_on("lazy_recorder")
    reserved = handed_on("reserved")
    slots = handed_on("slots")
    stateful = handed_on("stateful")
    untried = handed_on("untried")
    number_dtype = handed_on("number_dtype")
    owns = handed_on("owns")
    placed = handed_on("placed")
    padded_rows = handed_on("padded_rows")
    pieces = handed_on("pieces")
    profile = handed_on("profile")
    promoted = handed_on("promoted")
    protected = handed_on("protected")
    put = handed_on("put")
    rows = handed_on("rows")
    rows_and_signature = handed_on("rows_and_signature")
    signature = handed_on("signature")
    synchronize = handed_on("synchronize")
    together = handed_on("together")
    unprotected = handed_on("unprotected")
    unwrap = handed_on("unwrap")
    version = handed_on("version")
    versions = handed_on("versions")
