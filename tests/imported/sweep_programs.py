"""Thousands of random plain programs, compared with the loop, and a table of what came of each kind.

``python tests/imported/sweep_programs.py --backend torch --programs 5000`` runs them, in a process that is
started again if a program ends it, and shrinks those that fail. ``--kinds scopes,shared`` runs programs of
these kinds alone, and ``--seed 7`` one, whose code it shows. It ends with status 1 if a program was wrong,
and reports what there is when it is interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import plain_programs

WORDS = ("right", "refused", "skipped", "wrong", "error", "hang", "crash")
FAILURES = ("wrong", "error", "hang", "crash")
PATIENCE = 300.0
"""How many seconds a process may take for a program, with its shrinking, before it is ended."""


# ---- the process that runs programs ------------------------------------------------------------------


def work(arguments: argparse.Namespace) -> None:
    """Run programs, and write a line of JSON when one begins and when it is done."""
    out = os.fdopen(os.dup(1), "w")
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for good
    os.dup2(sys.stdout.fileno(), 1)
    framework = plain_programs.FRAMEWORKS[arguments.backend]()
    shrunk: Counter[str] = Counter()
    for seed in range(arguments.first, arguments.last, arguments.step):
        print(json.dumps({"begins": seed}), file=out, flush=True)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        program = plain_programs.Program(seed, framework, arguments.kinds)
        found = tried(program, shrunk, arguments.shrink)
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(found), file=out, flush=True)


def tried(program: Any, shrunk: Counter[str], most: int) -> dict[str, Any]:
    """Return what came of a program; shrink it if it fails as few of these kinds have before."""
    verdict = plain_programs.verdict_of(program)
    found = {"seed": program.seed, "kinds": program.kinds, "what": verdict.what, "why": verdict.why}
    if not verdict.is_failure:
        return found
    found["text"], found["error"] = program.text, repr(verdict.error)
    mark = f"{program.kinds} {verdict.what} {verdict.why}"
    if shrunk[mark] < most:
        shrunk[mark] += 1
        small = plain_programs.shrunk(program, verdict.what, 30 if verdict.what != "hang" else 60)
        again = plain_programs.verdict_of(small)
        found |= {"text": small.text, "error": repr(again.error)}
        found |= {"needs": plain_programs.kinds_needed(small), "why": again.why or verdict.why}
    return found


# ---- the process that counts --------------------------------------------------------------------------


class Sweep:
    """Programs that run in other processes, and what has come of them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.found: list[dict[str, Any]] = []
        self.begun = time.monotonic()
        self.lock = threading.Lock()

    def run(self) -> None:
        """Run all programs, in as many processes as were asked for."""
        count = self.arguments.processes
        first = self.arguments.first
        last = first + self.arguments.programs
        threads = [
            threading.Thread(target=self.some, args=(first + i, last, count), daemon=True)
            for i in range(count)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def some(self, first: int, last: int, step: int) -> None:
        """Run programs in one process, and go on in another one behind a program that ends it."""
        while first < last:
            for found in self.lines(first, last, step):
                if "begins" in found:
                    seed, ended = found["begins"], False
                else:
                    ended = True
                    self.add(found)
                first = seed + step
            if not ended:
                self.add({"seed": seed, "what": "crash", "why": "the process ended", **self.drawn(seed)})

    def lines(self, first: int, last: int, step: int) -> Iterator[dict[str, Any]]:
        """Yield what a process writes."""
        options = ["--first", first, "--last", last, "--step", step, "--shrink", self.arguments.shrink]
        if self.arguments.kinds is not None:
            options += ["--kinds", ",".join(self.arguments.kinds)]
        command = [sys.executable, __file__, "--work", "--backend", self.arguments.backend, *options]
        errors = subprocess.DEVNULL if self.arguments.quiet else None
        with subprocess.Popen(
            [*map(str, command)], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process:
            assert process.stdout is not None
            any_line = False
            for line in process.stdout:
                any_line = True
                yield json.loads(line)
        if not any_line:
            raise SystemExit(f"The process that runs programs has not begun: {' '.join(map(str, command))}")

    def drawn(self, seed: int) -> dict[str, Any]:
        """Return the kinds and the code of a program, without running it."""
        framework = plain_programs.FRAMEWORKS[self.arguments.backend]
        program = plain_programs.Program(seed, framework(), self.arguments.kinds)
        return {"kinds": program.kinds, "text": program.text}

    def add(self, found: dict[str, Any]) -> None:
        """Add what came of a program, and move the bar."""
        with self.lock:
            self.found.append(found)
            counts = Counter(x["what"] for x in self.found)
            done, count = len(self.found), self.arguments.programs
            passed = time.monotonic() - self.begun
            left = passed / done * (count - done)
            bar = "#" * (done * 20 // count)
            told = "  ".join(f"{word} {counts[word]}" for word in WORDS if counts[word])
            end = "" if sys.stderr.isatty() else "\n"
            if end and done % max(1, count // 50) and done != count:
                return
            print(
                f"\r[{bar:20}] {done}/{count}  {told}  {left / 60:.0f} min left ",
                end=end,
                file=sys.stderr,
                flush=True,
            )

    def report(self) -> str:
        """Return a table of kinds, the reasons of refusals, and the programs that failed."""
        self.found.sort(key=lambda x: x["seed"])
        return "\n\n".join([self.table(), self.reasons(), *self.failed()])

    def table(self) -> str:
        """Return how many programs of each kind came out how.

        A program that failed is counted where its shrunk form is; one that was not shrunk, for each kind
        that it has.
        """
        rows: dict[str, Counter[str]] = {}
        for x in self.found:
            for kind in x.get("needs") or x["kinds"] or [""]:
                rows.setdefault(kind, Counter())[x["what"]] += 1
        lines = ["kind        programs" + "".join(f"{word:>9}" for word in WORDS)]
        for kind, counts in sorted(rows.items()):
            numbers = "".join(f"{counts[word]:9}" for word in WORDS)
            lines.append(f"{kind or 'none':12}{counts.total():8}{numbers}")
        counts = Counter(x["what"] for x in self.found)
        lines.append(f"{'all':12}{counts.total():8}" + "".join(f"{counts[word]:9}" for word in WORDS))
        return "\n".join(lines)

    def reasons(self) -> str:
        """Return how often programs were refused, and failed, for each reason."""
        counts = Counter(f"{x['what']}: {x['why'][:110]}" for x in self.found if x["what"] != "right")
        return "\n".join([f"{number:6} {why}" for why, number in counts.most_common(40)])

    def failed(self) -> Iterator[str]:
        """Yield the shrunk programs that failed, a few for each kind and reason."""
        shown: Counter[str] = Counter()
        for x in self.found:
            mark = f"{x.get('needs') or x['kinds']} {x['what']} {x['why']}"
            if x["what"] in FAILURES and shown[mark] < self.arguments.show:
                shown[mark] += 1
                title = f"seed {x['seed']}: {x['what']} ({x['why']}), kinds {x.get('needs') or x['kinds']}"
                yield f"---- {title}\n{x['text']}{x.get('error', '')[:400]}"


def one(arguments: argparse.Namespace) -> int:
    """Run one program here, with its code and error shown; return the status."""
    framework = plain_programs.FRAMEWORKS[arguments.backend]()
    program = plain_programs.Program(arguments.seed, framework, arguments.kinds)
    verdict = plain_programs.verdict_of(program)
    if verdict.is_failure:
        program = plain_programs.shrunk(program, verdict.what, 60)
        verdict = plain_programs.verdict_of(program)
    print(program.text)
    print(f"{verdict.what}: {verdict.why}, kinds {program.kinds}, collects {program.collects}")
    if verdict.error is not None:
        raise verdict.error
    return 0


def main() -> int:
    """Run what the command line asks for; return the status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--backend", choices=plain_programs.FRAMEWORKS, default="torch")
    parser.add_argument("--programs", type=int, default=1000, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the seed of the first one")
    parser.add_argument("--kinds", type=lambda x: [*filter(None, x.split(","))], help="as a,b; '' for none")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--processes", type=int, default=1, metavar="N")
    parser.add_argument("--shrink", type=int, default=2, help="of the failures of each sort (default: 2)")
    parser.add_argument("--show", type=int, default=1, help="of the failures of each sort (default: 1)")
    parser.add_argument("--quiet", action="store_true", help="leave out what the processes say of errors")
    for name in ("--last", "--step"):
        parser.add_argument(name, type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(arguments)
        return 0
    if arguments.seed is not None:
        return one(arguments)
    sweep = Sweep(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with contextlib.suppress(KeyboardInterrupt):
        sweep.run()
    print(f"\n{sweep.report()}")
    return int(any(x["what"] in FAILURES for x in sweep.found))


if __name__ == "__main__":
    sys.exit(main())
