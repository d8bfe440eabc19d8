"""The thread of a server: takes requests, runs rounds, and hands out what has ended."""

from __future__ import annotations

import contextlib
import inspect
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any

from multifold._engine.record.lines import warn_user
from multifold._engine.run.report import Report
from multifold._engine.run.settling import Settling
from multifold.backend import Backend
from multifold.errors import BackendError
from multifold.fold import Fold
from multifold.serve.admission import Admission
from multifold.serve.engine import LONG, Ended, Engine, HandedOn
from multifold.serve.requests import Request, in_the_thread, outcome_of, tell_loops
from multifold.serve.statistics import Tally
from multifold.serve.streamed import is_generator

EXPLAINED = 64
"""Rounds whose reports are kept."""

TURNS = 8
PASSING = 0.1
"""For 0.1 s after an engine was made it runs in one turn of eight only, where an older one has requests.

If both engines ran in every turn, each request under way would take twice as long, also those that are
nearly done. The requests of the next engine have just come, so they lose least by waiting.
"""

PART = 4
ROUNDS = 8
SECONDS = 0.01
"""Where others are under way, requests begin together: a quarter as many at a time as are under way.

A request that begins has to take steps that the others took long ago. If each began by itself, these steps
would be launches of one or two rows, for which all others wait. No request waits for more than 8 rounds or
10 ms to begin.
"""

Mode = Callable[[], contextlib.AbstractContextManager[Any]]
"""Returns the context in which a server runs everything."""


class Worker:
    """The work of a server's thread: it takes requests, lets engines run rounds, and hands out results.

    Only that thread calls it, except for `swap`, `resize`, `divide`, `settle` and `warmed`.

    Parameters
    ----------
    admission, tally : Admission, Tally
        The queue in which requests come in, and the counts that the server shows.
    model, fn, backend, calls, host, mode, join
        As of `Server`.
    """

    def __init__(
        self,
        admission: Admission,
        tally: Tally,
        model: Any,
        fn: Callable[..., Any],
        backend: str | Backend | type[Backend],
        calls: int,
        host: bool,
        mode: Mode | None,
        join: str,
    ) -> None:
        self.admission = admission
        self.tally = tally
        self.model = model
        self.fn = fn
        self.calls = calls
        self.host = host
        self.named = backend
        self.folds = [Fold(backend=backend)]  # without calls, for engines to come
        self.backend = self.folds[0]._backend_of(model)
        # JAX compiles for each number of rows, and a plan puts rows together in numbers of its own.
        compiles = self.backend.pads and self.backend.puts
        self.streams = is_generator(fn)
        looks = self.streams or inspect.iscoroutinefunction(fn)
        self.steps = compiles or (join == "launches" and looks)
        self.mode = self.backend.inference if mode is None else mode
        self.in_pieces = False
        self.settling = Settling(calls)
        self.warm = False
        self.recent: deque[tuple[float, Report]] = deque(maxlen=EXPLAINED)  # and when each began
        self.engines: list[Engine] = []
        # What the last engine that has ended leaves to the next one of its model, and that model.
        self.learned: tuple[Any, HandedOn | None] = model, None
        self.under_way: dict[int, tuple[Engine, int]] = {}
        self.first_deadline = float("inf")
        self.moved = False  # whether a request has begun or ended since the last `rest`
        # when requests began last, and how many rounds there were since
        self.began = 0.0
        self.rounds = 0
        # when the newest engine was made, and how many turns there were
        self.renewed = 0.0
        self.turns = 0

    def swap(self, model: Any) -> None:
        """Let requests that have not begun be served by another model; any thread may call this.

        Raise a `BackendError` if the model is of another framework.
        """
        found = Fold(backend=self.named)._backend_of(model)
        if found.name != self.backend.name:
            raise BackendError(
                f"Expected a model of backend '{self.backend.name}', as the server's. Received one of "
                f"'{found.name}'.",
                "make a server for each framework.",
            )
        self.model = model
        self.learned = model, None

    def resize(self, calls: int) -> None:
        """Let rounds have room for so many calls, from the next engine on; any thread may call this."""
        self.calls = calls
        self.settling.resize(calls)

    def divide(self, in_pieces: bool) -> None:
        """Set whether launches run in pieces from now on, with 1, 2, 4, ... rows.

        See `multifold.Server.warm`.
        """
        self.in_pieces = in_pieces

    def settle(self, on: bool) -> None:
        """Set whether launches are followed by all trials that their ops have still to pass."""
        self.settling.switch(on)

    def warmed(self, warm: bool) -> None:
        """Set whether all is compiled: if so, the first round that compiles after all gives a warning."""
        self.warm = warm

    def serve(self) -> None:
        """Take requests and run rounds until the server is stopped; then end the requests that are left.

        Whatever else is raised ends all requests with a `LaunchError`, and the server with them.
        """
        try:
            with self.mode():
                while self.admission.work(bool(self.under_way)):
                    self.turn()
        except BaseException as error:  # noqa: BLE001 - callers wait for futures, and not for this thread
            self.finish(error)
        else:
            self.finish(None)

    def turn(self) -> None:
        """Do one turn: end late and cancelled requests, take new ones, and run a round of each engine.

        For 0.1 s after the last engine was made, it sits out seven turns of eight if there is an older one.
        What a round raises ends its engine; see `lose`.
        """
        now = monotonic()
        if self.presses(now):
            # Those that have ended leave room for the ones that are taken next.
            self.drop_ended(now)
        self.take(now)
        self.turns += 1
        passes = len(self.engines) > 1 and self.turns % TURNS and now - self.renewed < PASSING
        served = 0
        # The newest engine is the last one, and sits this turn out.
        for engine in self.engines[: -1 if passes else None]:
            try:
                served += self.run_round(engine, now)
            except BaseException as error:  # noqa: BLE001 - as a SystemExit of one request
                self.lose(engine, error)
        if self.moved:
            self.rest()
        self.tally.worked(served, monotonic() - now)

    def run_round(self, engine: Engine, now: float) -> int:
        """Run one round of an engine, and answer the requests that it has ended; return how many these are.

        ``now`` is the time at which the turn began. Warn once if the framework compiled after `warmed`.
        """
        before = self.backend.compilations()
        ended, report = engine.step(self.interrupts, self.in_pieces)
        waited = self.warm and self.backend.compilations() > before
        if report is not None:
            self.recent.append((now, report))
            self.tally.ran([len(calls) for calls in report.notes.calls])
        for request, _, _ in ended:
            del self.under_way[request.number]
        self.answer_all(ended)
        if not engine.tasks.requests:
            engine.rest()
        if waited:
            # Warn once: the remedy is the same for every compilation that was missed.
            self.warm = False
            warn_user(
                f"Requests have waited for '{self.backend.name}' to compile, though multifold.Server.warm "
                "has ended.\n\nHint: warm with as many examples as may be under way at once, of all sizes."
            )
        return len(ended)

    def presses(self, now: float) -> bool:
        """Return whether a request may be cancelled, or late at ``now``, or all are to be given up."""
        return self.admission.presses(now) or now >= self.first_deadline

    def interrupts(self) -> bool:
        """Return whether a round has to end before its next launch; give up cancelled and late requests.

        It has to if one of these was under way, or if the server was stopped without draining.
        """
        now = monotonic()
        return self.presses(now) and (self.drop_ended(now) or not self.admission.serves)

    def room(self) -> int:
        """Return for how many more calls there is room besides those of requests under way.

        It is ``calls`` less the load of all engines: a request counts for its recorded calls, but for an
        eighth of ``calls`` at most.
        """
        return self.calls - sum(engine.tasks.owners.load for engine in self.engines)

    def take(self, now: float) -> None:
        """Take requests from the queue and begin them, as long as those under way leave room.

        While `gathers` says so, none is taken. Several are taken at a time, since asking for one takes as
        long as beginning it: as many as there is room for if each of them has an eighth of ``calls``.
        """
        self.rounds += 1
        if not len(self.admission) or self.gathers(now):
            return
        self.began = now
        self.rounds = 0
        busy = bool(self.under_way)
        count = 0
        # A request without calls counts as one, too, or a whole queue of them would be taken at once.
        while len(self.admission) and (room := self.room() - count) > 0:
            taken = self.admission.take(max(1, room // self.engine().tasks.owners.share), now)
            self.tally.taken(taken, busy)
            for request in taken:
                self.begin(request)
            count += len(taken)

    def begin(self, request: Request) -> None:
        """Begin a request on the last engine: its function records calls up to where it first waits.

        What the function raises ends the request alone. Anything else that goes wrong here ends the engine
        and all its requests; see `lose`.
        """
        engine = self.engine()
        self.moved = True
        # `started` is the number that the example will have. The request is registered before it records,
        # so that `lose` finds it if its function ends the engine.
        self.under_way[request.number] = engine, engine.tasks.started
        self.first_deadline = min(self.first_deadline, request.deadline)
        try:
            engine.tasks.begin(request, self.fn, self.streams)
        except BaseException as error:  # noqa: BLE001 - as a SystemExit of one request
            self.lose(engine, error)

    def gathers(self, now: float) -> bool:
        """Return whether requests in the queue go on waiting, to join those under way together with others.

        They do while they are fewer than a quarter of these, until 8 rounds or 10 ms have passed since some
        began last.
        """
        few = len(self.admission) * PART < len(self.under_way)
        late = self.rounds >= ROUNDS or now - self.began >= SECONDS
        return few and not late

    def engine(self) -> Engine:
        """Return the engine that takes new requests: the last one, or a new one on an empty fold.

        It makes a new one if there is none, if another model or number of calls was set since, or if the
        last one has had 32 times ``calls`` calls.
        """
        last = self.engines[-1] if self.engines else None
        model, calls = self.model, self.calls
        serves = last is not None and last.model is model and last.calls == calls
        if last is not None and serves and len(last.recorder) < LONG * calls:
            return last
        fold = self.folds.pop() if self.folds else Fold(backend=self.named)
        known, learned = self.learned
        self.learned = model, None
        # It is of one model, and `swap` may have set another one since.
        before = learned if known is model else None
        self.renewed = monotonic()
        self.engines.append(Engine(fold, model, calls, self.host, self.steps, before, self.settling))
        return self.engines[-1]

    def rest(self) -> None:
        """Remove the engines without requests; their folds forget all calls, and serve the next engines.

        The last engine stays if a request is in the queue, until it has had as many calls as a round has
        room for: to make another engine takes a while.
        """
        self.moved = False
        calls = results = unfinished = 0
        for engine in [*self.engines]:
            tasks = engine.tasks
            goes_on = engine is self.engines[-1] and len(self.admission) > 0
            if tasks.requests or (goes_on and len(engine.recorder) < self.calls):
                calls = calls + tasks.owners.total
                results = results + engine.store.used
                unfinished += tasks.unfinished
                continue
            self.engines.remove(engine)
            learned = engine.end()
            if engine.model is self.model:
                self.learned = engine.model, learned  # `swap` may set another model at any time
            self.folds.append(engine.recorder)
        self.tally.holds(len(self.under_way), calls, results, unfinished)

    def drop_ended(self, now: float) -> bool:
        """Give up requests that were cancelled or are late at ``now``, those in the queue as well.

        Late ones get a `DeadlineExceeded`. Those that were cancelled have their outcome, and are only
        counted. Return whether any of them was under way, and not only in the queue.
        """
        before = len(self.under_way)
        waited, cancelled = self.admission.take_ended(now)
        for request in waited:
            self.answer(request, None, request.late(now))
        for request in cancelled:
            if self.drop(request):
                self.answer(request, None, None)
        if now >= self.first_deadline:
            for request in self.requests():
                if request.deadline <= now:
                    self.drop(request)
                    self.answer(request, None, request.late(now))
            self.first_deadline = min((x.deadline for x in self.requests()), default=float("inf"))
        return len(self.under_way) < before

    def requests(self) -> list[Request]:
        """Return the requests under way of all engines, those of older engines first."""
        return [request for engine in self.engines for request in engine.tasks.requests.values()]

    def drop(self, request: Request) -> bool:
        """Take a request out of the rounds to come, and forget what its function has returned.

        Return whether it was under way; else nothing is done. It gets no outcome here.
        """
        engine, example = self.under_way.pop(request.number, (None, 0))
        if engine is not None:
            engine.drop(example)
        return engine is not None

    def lose(self, engine: Engine, error: BaseException) -> None:
        """Remove an engine that has raised ``error``, and end all its requests with a `LaunchError`.

        Its fold is not used again.
        """
        self.engines.remove(engine)
        # A list, since `drop` takes each of them out of the mapping.
        for request in list(engine.tasks.requests.values()):
            self.drop(request)
            self.answer(request, None, in_the_thread(request, error))
        engine.end()

    def finish(self, error: BaseException | None) -> None:
        """Close the queue, and end all requests in it and under way, and all engines.

        They are cancelled if ``error`` is None, and else get a `LaunchError` with it as its cause.
        """
        for request in [*self.admission.close(), *self.requests()]:
            self.drop(request)
            if error is None:
                request.cancel()
            self.answer(request, None, None if error is None else in_the_thread(request, error))
        self.rest()

    def answer(self, request: Request, result: Any, error: Exception | None) -> None:
        """Give a request its result, or its error if that is not None.

        Only count it if it was cancelled.
        """
        self.answer_all([(request, result, error)])

    def answer_all(self, ended: Sequence[Ended]) -> None:
        """Give requests their outcomes, and count them; ``ended`` has tuples of request, result and error.

        One that its caller has cancelled is only counted. Callers in event loops are woken.
        """
        if not ended:
            return
        self.moved = True
        requests = [request for request, _, _ in ended]
        words = ["cancelled" if x.cancelled() else outcome_of(error) for x, _, error in ended]
        self.tally.ended(requests, words)  # first, so that whoever has a result finds it counted
        for (request, result, error), word in zip(ended, words, strict=True):
            # A caller may have cancelled it after it was counted.
            if not request.settle(result, error) and word != "cancelled":
                self.tally.cancelled_after_all(word)
        tell_loops([request for request in requests if request.waiter is not None])
