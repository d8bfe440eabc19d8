"""What every executor of programs asks of a model and of the results of its ops, and the errors if not.

An error of a program can't show the launch that failed: inside of a compiled function there is none. So
it names the op and the line that recorded its first call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from multifold._engine.ops import hints, messages, values
from multifold._engine.ops.lookup import refuse_mixing, resolve
from multifold._engine.ops.trial import BELIEVED, ENOUGH, Trial, Untried
from multifold._engine.ops.values import Steps
from multifold._engine.ops.verdicts import VERDICTS, ranks_of, static_key
from multifold._engine.ops.writes import all_arrays, refuse_changed
from multifold._engine.record.graph import Part
from multifold._engine.record.lines import warn_user
from multifold.backend import Backend, Ragged
from multifold.errors import LaunchError, RecordError, type_of
from multifold.marks import MIXING, mark_of
from multifold.program.layout import Form, Kernel, Program


class Named(NamedTuple):
    """What errors say of a kernel."""

    name: str
    site: str


def resolve_ops(backend: Backend, model: Any, form: Form) -> list[Callable[..., Any]]:
    """Look up the op of each kernel on the model; return the callables in the order of ``form.kernels``.

    An op that is a callable itself stands for itself. Raises `LaunchError` for an op that the model lacks,
    or that is marked `multifold.mixing`.
    """
    try:
        ops = [resolve(backend, model, kernel.op, kernel.site) for kernel in form.kernels]
    except LaunchError as error:
        kept = "A fold keeps the ops of all its programs: take another fold for another model."
        raise LaunchError(error.message, f"{error.hint} {kept}") from None
    for kernel, op in zip(form.kernels, ops, strict=True):
        if mark_of(op) == MIXING:
            refuse_mixing(kernel.name, "a program has rows in its launches that fill tiles")
    return ops


def received(backend: Backend, kernel: Kernel, leaves: Sequence[Any]) -> Sequence[Any]:
    """Return the positional operands that an op receives, from one value for each of `Kernel.operands`.

    Operands of the role ``"float"`` are cast to the dtype of the arrays that come with them, and then the
    leaves are nested. Where there are none of that role, values stay as they are.
    """
    if kernel.beside:
        leaves = values.Values(backend, None).narrowed(leaves, kernel.beside)
    return kernel.nest(leaves)


def naming(kernel: Kernel | Named) -> str:
    """Return the beginning of an error, as ``The op 'f', first recorded at model.py:3``."""
    return f"The op '{kernel.name}', first recorded at {kernel.site}"


def raised(kernel: Kernel | Named, error: Exception, hint: str | None = None) -> LaunchError:
    """Return, and don't raise, the error of an op that raised ``error``.

    Without ``hint``, `hint_of` gives it.
    """
    return LaunchError(
        f"{naming(kernel)}, raised {messages.error_text(error)}.", hint or hint_of(kernel, error)
    )


def hint_of(kernel: Kernel | Named, error: Exception, otherwise: str | None = None) -> str | None:
    """Return the hint for what an op has raised: on shapes if these do not meet, else ``otherwise``.

    Without ``otherwise`` it advises a breakpoint inside of the op.
    """
    numbers = any(o.role in ("int", "float", "bool", "ragged") for o in getattr(kernel, "operands", ()))
    return hints.shapes_hint(error, numbers) or otherwise or hints.BREAKPOINT


def refuse_no_program(program: Any) -> None:
    """Raise an error for anything but a `Program`, such as traces of which none was made.

    Raises
    ------
    RecordError
        For anything but a `Program`.
    """
    if not isinstance(program, Program):
        raise RecordError(
            f"Expected a program to run. Received {type_of(program)}.",
            "fold.program(traces) makes one of traces; fold.run(model, traces) runs them without.",
        )


def has_passed(backend: Backend, op: Callable[..., Any], key: Hashable) -> bool:
    """Return whether an op needs no trial: it is marked (`multifold.marks`), or has passed enough of them.

    These are trials of `ENOUGH` rows in all, with values, of this ``key``, which says what they were like,
    as `begin_trial` and `verify_rows` make it.
    """
    return mark_of(op) is not None or VERDICTS.has(backend, op, (key, True), ENOUGH)


def begin_trial(
    backend: Backend,
    kernel: Kernel,
    op: Callable[..., Any],
    leaves: Sequence[Any],
    rows: int,
    lengths: Mapping[int, np.ndarray],
) -> Callable[[Any], None] | None:
    """Return what a launch calls with its result, to refuse an op that mixes its rows.

    None without a trial. No trial is needed for an op that has passed or is marked (`has_passed`), nor for
    a launch of one row, nor for a solo kernel, which makes one row. Call this before the launch, which may
    change the state of the op. What it returns raises `LaunchError` if the op mixes rows, and else
    remembers that it has passed.

    Parameters
    ----------
    backend : Backend
        What runs the op.
    kernel : Kernel
        The kernel of the launch.
    op : callable
        The op as the model has it.
    leaves : sequence
        What the op receives, a value for each of ``kernel.operands``.
    rows : int
        How many rows the launch has.
    lengths : mapping of int to array
        The position of each ragged operand -> how many members each row has.
    """
    own = [operand.role not in ("whole", "shared", "static") for operand in kernel.operands]
    batched = [leaf for leaf, rows_of_it in zip(leaves, own, strict=True) if rows_of_it]
    # An op that takes another axis for the rows shows it only if both have different sizes. So a trial of a
    # launch where they are equal counts for such launches only. One row has none to be mixed with.
    key = kernel_key(kernel), ranks_of(batched), rows in values.sizes_of(batched)
    if rows == 1 or kernel.solo or has_passed(backend, op, key):
        return None
    pairs = zip(kernel.operands, leaves, strict=True)
    given = [operand.value if operand.role == "static" else leaf for operand, leaf in pairs]
    known = values.Values(backend, None)
    trial = Trial(known, op, given, rows, own, lengths, kernel.nest, kernel.static)
    return lambda result: refuse_mixed(kernel, trial, key, result)


def refuse_mixed(
    kernel: Kernel | Named,
    trial: Trial,
    key: Hashable,
    result: Any,
    maker: Callable[..., Any] | None = None,
) -> None:
    """Raise `LaunchError` if ``result`` shows that an op mixes its rows; else remember that it has passed.

    ``result`` is what the op returned for the rows of ``trial``, or what it raised. ``key`` is what the
    verdict holds for, and ``maker`` the callable it is kept for, the op of the trial if None. An op that
    cannot be tried is believed, with a warning.
    """
    op = trial.op if maker is None else maker
    key = key, trial.has_values
    try:
        if isinstance(result, Exception):
            line = messages.error_text(result).partition("\n")[0]
            raise Untried(f"on drawn numbers it raised {line}")
        what = trial.deviation(result)
    except Untried as reason:
        VERDICTS.add(trial.values.backend, op, key, ENOUGH)
        warn_user(f"{naming(kernel)}, {BELIEVED}: {reason}.")
        return
    if what is not None:
        text = f"{naming(kernel)}, mixes its rows, and would return wrong values: {what.text}."
        raise LaunchError(text, trial.hint(what)) from what.error
    VERDICTS.add(trial.values.backend, op, key, trial.worth)


def watch_operands(backend: Backend, kernel: Kernel, leaves: Sequence[Any]) -> Callable[[], None]:
    """Note the versions of the operands; return a function that raises if the op has written to one since.

    A launch calls that after its op; it raises the `OperandChanged` of the first operand that has changed.
    Not watched are operands of the roles ``"shared"`` and ``"static"`` (`KernelOperand`): shared arrays are
    the user's own, as the running mean of a batch norm is, and an op may change them.
    """
    numbers = [i for i, operand in enumerate(kernel.operands) if operand.role not in ("shared", "static")]
    own = [leaves[i] for i in numbers]
    before = backend.versions(all_arrays(own))
    return lambda: refuse_changed(backend, numbers, own, before, backend.versions(all_arrays(own)))


Spec = tuple[tuple[int, ...], np.dtype]
"""Shape and dtype of an array."""


class RowsSpec(NamedTuple):
    """An operand that a kernel takes for some rows, as shapes and dtypes.

    Attributes
    ----------
    arrays : sequence of (shape, dtype)
        What it consists of; of a ragged operand, the rows of all nodes.
    batched : bool
        Whether axis 0 is rows.
    members : int or None
        How many rows the nodes of a ragged operand have in all.
    integers : dtype
        Of the lengths and segments of a ragged operand.
    """

    arrays: Sequence[Spec]
    batched: bool = True
    members: int | None = None
    integers: np.dtype = np.dtype(np.int64)

    @property
    def key(self) -> Hashable:
        """A hashable key, equal for operands that differ in their numbers of rows and members only.

        It is ``(arrays, rows, one)``: a pair (shape, name of the dtype) for each array; whether axis 0
        counts rows or members, and so is left out of the shapes; and whether the operand is not ragged.
        """
        own = self.batched or self.members is not None
        return tuple([(shape[own:], str(dtype)) for shape, dtype in self.arrays]), own, self.members is None

    def drawn(self, backend: Backend, rng: np.random.Generator, rows: int) -> tuple[Any, np.ndarray]:
        """Draw random values of the operand for ``rows`` rows.

        Return them, and how many members each row has. The values are a tuple of arrays of the backend, or
        a `Ragged` with such a tuple for its values. The numbers of members are an int64 array: all 1 where
        the operand is not ragged, else equal shares, and what is left over goes to the last row.
        """
        arrays = tuple([backend.constant(drawn(rng, shape, dtype), None) for shape, dtype in self.arrays])
        if self.members is None:
            return arrays, np.ones(rows, np.int64)
        # Each node has an equal share and the last one what is left over: 7 members on 3 rows are 2, 2 and
        # 3.
        lengths = np.full(rows, self.members // rows)
        lengths[-1] += self.members - lengths.sum()
        segments = np.repeat(np.arange(rows), lengths)
        pair = [backend.constant(x.astype(self.integers), None) for x in (lengths, segments)]
        return Ragged(arrays, *pair), lengths


def verify_rows(
    backend: Backend,
    kernel: Kernel,
    op: Callable[..., Any],
    operands: Sequence[RowsSpec],
    rows: int,
    maker: Callable[..., Any],
) -> None:
    """Refuse an op that mixes its rows, before a program runs it on rows that have no values yet.

    The op runs on drawn operands, the same ones at each call. It does not run for one row, nor if it is
    marked or has passed (`has_passed`). An op that passes is remembered.

    Parameters
    ----------
    backend : Backend
        What runs the op, on drawn numbers.
    kernel : Kernel
        What errors name.
    op : callable
        Takes for each operand a tuple of its arrays, or a `Ragged` with such a tuple for its values.
    operands : sequence of RowsSpec
        What it takes.
    rows : int
        For how many rows. The verdict holds for other numbers of them as well, but not where an array has
        as many entries along another dimension.
    maker : callable
        The op as the model has it, by which its verdict is remembered.

    Raises
    ------
    LaunchError
        If a row of the result depends on the operands of another row.
    """
    square = any(rows in shape[1:] for x in operands if x.batched for shape, _ in x.arrays)
    key = tuple([x.key for x in operands]), square, kernel_key(kernel)
    if rows == 1 or has_passed(backend, maker, key):
        return
    # With one seed no op is refused in one run of a program and believed in the next.
    rng = np.random.default_rng(0)
    found = [operand.drawn(backend, rng, rows) for operand in operands]
    trial = Trial(
        values.Values(backend, None),
        op,
        [leaf for leaf, _ in found],
        rows,
        [operand.batched for operand in operands],
        {i: lengths for i, (leaf, lengths) in enumerate(found) if type(leaf) is Ragged},
        maker=maker,
        any_size=False,  # what depends on it shows while the program is traced
    )
    refuse_mixed(kernel, trial, key, trial.launch(), maker)
    # If the op draws no random numbers, another trial would repeat this one, so this one is enough.
    if not trial.draws:
        VERDICTS.add(backend, maker, (key, True), ENOUGH)


def kernel_key(kernel: Kernel) -> Hashable:
    """Return the part of a trial's key that tells kernels apart; callers add what tells operands apart.

    It is hashable, and holds the role of each operand (`KernelOperand`), how operands nest, as text, and
    the values of static operands and keyword arguments. It does not hold the op, whose verdicts are kept by
    the op itself, nor shapes and dtypes (`RowsSpec.key`).
    """
    static = [operand.value for operand in kernel.operands if operand.role == "static"]
    roles = tuple(operand.role for operand in kernel.operands)
    return roles, str(kernel.structure), static_key([static, kernel.static])


def drawn(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Draw an array for a trial: floats from 0.5 to 1.5, where ``log`` and ``1 / x`` are finite.

    Integers and booleans are 0 and 1, since integers are often indices, and hardly a table has fewer rows.
    The first of each row is 0 in even rows and 1 in odd ones, so that rows differ.
    """
    if np.dtype(dtype).kind in "iub":
        whole = rng.integers(0, 2, shape)
        if shape and shape[0]:
            whole.reshape(shape[0], -1)[:, :1] = np.arange(shape[0])[:, None] % 2  # rows differ
        return whole.astype(dtype)
    return rng.uniform(0.5, 1.5, shape).astype(dtype)


class SliceKey(NamedTuple):
    """A slice as a key of a form: before Python 3.12 a `slice` has no hash."""

    start: int | None
    stop: int | None
    step: int | None


def hashable_steps(parts: Sequence[Part], number: int) -> Steps:
    """Return the steps to part ``number`` of a result: pairs (key, length), from the outside in.

    They are those of `steps_to`, a key into each container and how many entries it must have. A slice
    becomes a `SliceKey`, which has a hash.
    """
    return tuple(
        (SliceKey(key.start, key.stop, key.step) if isinstance(key, slice) else key, length)
        for key, length in values.steps_to(parts, number)
    )


def follow(value: Any, steps: Steps, kernel: Kernel | Named) -> Any:
    """Return the part of a result that ``steps`` lead to; raise `LaunchError` if it has no such part.

    ``steps`` are those of `hashable_steps`, and ``kernel`` is what the error names.
    """

    def refuse(what: str) -> LaunchError:
        return LaunchError(f"{naming(kernel)}, returned a result that {what}.", values.PARTS_HINT)

    # `hashable_steps` has made keys of the slices, for the form.
    opened = [(slice(*key) if isinstance(key, SliceKey) else key, length) for key, length in steps]
    return values.follow(value, opened, refuse)


def check_rows(kernel: Kernel, shape: tuple[Any, ...], rows: int) -> None:
    """Raise `LaunchError` if an op that ran on ``rows`` rows returned an array of another number of rows.

    ``shape`` is that of the array.
    """
    instead = values.miscount(shape[0] if shape else None, rows)
    if instead:
        why = f"for {values.counted(rows, 'row')}" + (" (no operand is batched)" if kernel.solo else "")
        raise LaunchError(
            f"{naming(kernel)}, returned {instead} {why}.",
            values.Mismatch(instead, array=True).hint + values.READ_WHOLE,
        )
