"""The errors of multifold: one sentence of what, where and why, a blank line, then a hint.

Every error that the library raises on purpose is a `MultifoldError`, and each class is also the
built-in exception that a caller would look for (`ValueError`, `ImportError`, ...).
"""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

Call = TypeVar("Call", bound=Callable[..., Any])


def naming_keywords(fn: Call) -> Call:
    """Make a function say which keyword was meant, in the `TypeError` for one that it does not take.

    >>> @naming_keywords
    ... def batched(fn, *, cells=None): ...
    >>> batched(len, cell=[max])
    Traceback (most recent call last):
    TypeError: batched() got an unexpected keyword argument 'cell'. Did you mean 'cells'?
    """
    known = [*inspect.signature(fn).parameters]

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        for name in kwargs:
            near = [] if name in known else difflib.get_close_matches(name, known, n=1)
            if near:
                what = fn.__qualname__.removesuffix(".__init__")
                raise TypeError(
                    f"{what}() got an unexpected keyword argument {name!r}. Did you mean {near[0]!r}?"
                )
        return fn(*args, **kwargs)

    return cast("Call", call)


def type_of(x: object) -> str:
    """Return the name of the type of ``x`` with its article, for a message.

    >>> type_of(3), type_of("word"), type_of(object())
    ('an int', 'a str', 'an object')
    """
    name = type(x).__qualname__
    return f"a{'n' * name.startswith((*'AEIOaeio', 'nd'))} {name}"  # an ndarray


class MultifoldError(Exception):
    """Base class of all errors of multifold.

    Parameters
    ----------
    message : str
        One sentence that says what was expected, what was received and where.
    hint : str, optional
        What to do about it; the text of the error has it after a blank line as ``Hint: ...``.

    Examples
    --------
    >>> print(MultifoldError("The group is empty.", hint="leave it out of the outputs."))
    The group is empty.
    <BLANKLINE>
    Hint: leave it out of the outputs.
    """

    ag_pass_through = True  # else TensorFlow's AutoGraph makes an error of its own of it

    def __init__(self, message: str, hint: str | None = None) -> None:
        self.message = message
        self.hint = hint
        super().__init__(message if hint is None else f"{message}\n\nHint: {hint}")


class RecordError(MultifoldError, ValueError):
    """A call cannot be recorded, outputs cannot be asked for, or a trace is damaged."""


class BackendError(MultifoldError):
    """A backend is unknown, is mixed with another one, or lacks what was asked of it."""


class BackendMissing(BackendError, ImportError):
    """A backend that multifold knows is not installed here."""


class ExtraMissing(MultifoldError, ImportError):
    """A package is missing that an extra of multifold installs: pyarrow, say, for files of traces."""


class LaunchError(MultifoldError, RuntimeError):
    """A launch failed, or its result breaks the rule "one node is one row"."""


class Overloaded(MultifoldError, RuntimeError):
    """A server has as many requests waiting as it may have.

    Parameters
    ----------
    message, hint
        As of a `MultifoldError`.
    retry_after : float
        In how many seconds to try again: the time that the waiting requests will take, as the server
        estimates it from earlier ones.
    """

    def __init__(self, message: str, hint: str | None = None, retry_after: float = 0.0) -> None:
        super().__init__(message, hint)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[Overloaded], tuple[str, str | None, float]]:
        return Overloaded, (self.message, self.hint, self.retry_after)


class DeadlineExceeded(MultifoldError, TimeoutError):
    """A request of a server was not done by its deadline."""


class MismatchError(MultifoldError, AssertionError):
    """`Fold.check` found that the batched run and the eager twin differ."""
