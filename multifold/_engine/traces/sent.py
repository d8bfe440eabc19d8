"""Traces on their way from a worker: an op that cannot be pickled is told where the traces arrive.

A loader's worker hands over what it made by a thread, and what that thread cannot pickle is lost: the
training process would wait for ever. So between processes an error takes the place of such traces.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from functools import cache
from typing import Any, NoReturn

from multifold._engine.traces.minibatch import Minibatch
from multifold._engine.traces.trace import Trace
from multifold.errors import RecordError


@cache
def watch_pickles() -> None:
    """Let multiprocessing send an error in place of traces and minibatches that cannot be pickled.

    The error is raised where it is unpickled. Plain `pickle.dumps` still raises at once. The first call
    changes `ForkingPickler` for the whole process, further calls do nothing.
    """
    from multiprocessing.reduction import ForkingPickler  # `import multifold` need not wait for it

    def reduce(sent: Minibatch | Trace) -> tuple[Callable[..., Any], tuple[Any]]:
        try:
            # This is a pickle inside of the pickle, so that an op that cannot be pickled raises here, where
            # it is caught.
            return arrive, (bytes(ForkingPickler.dumps(sent.__reduce__())),)
        except Exception as error:  # noqa: BLE001 - whatever the pickling of an op or a value raises
            return refuse, (unsendable(sent, error),)

    for kind in (Minibatch, Trace):
        ForkingPickler.register(kind, reduce)


def arrive(data: bytes) -> Any:
    """Return the trace or minibatch that was sent as the bytes ``data`` after `watch_pickles`."""
    make, parts = pickle.loads(data)
    return make(*parts)


def refuse(error: RecordError) -> NoReturn:
    """Raise ``error``, which was sent in the place of traces that cannot be pickled."""
    raise error


def unsendable(sent: Minibatch | Trace, error: Exception) -> RecordError:
    """Return the error to send in the place of ``sent``, whose pickling raised ``error``.

    It names the first op whose signature cannot be pickled, if there is one.
    """
    traces = sent.traces if isinstance(sent, Minibatch) else (sent,)
    where = ""
    for signature in [s for trace in traces for s in trace.vocabulary.signatures]:
        try:
            pickle.dumps(signature)
        except Exception:  # noqa: BLE001 - as above
            where = f" It is in a call of op '{signature.name}'."
            break
    return RecordError(
        "Expected traces that can be sent from one process to another. Received one that can't be "
        f"pickled: {error}.{where}",
        "let the op be a name of the model, or a function that stands at the top of a module; a method "
        "would take a copy of its object along.",
    )
