"""Random plain programs (`tests/imported/plain_programs`) do what the loop does, or are refused.

`tests/imported/sweep_programs.py` runs thousands of them.
"""

from __future__ import annotations

import collections

import plain_programs.comparing
import pytest
from plain_programs import FRAMEWORKS, Program, shrunk, verdict_of
from plain_programs.kinds import KINDS
from plain_programs.programs import Statement

PARTS = 4
SHARE = 20
"""One of so many programs without a kind may be refused."""
OF_A_KIND = 25
"""One of so many programs that were asked for is run for each kind, and half of them without a kind."""
COMPILED = {"jax": 10, "tensorflow": 10}
"""How many programs of other frameworks take as long as one of these."""
KINDS_OF_ALL = sorted({kind for tables in KINDS.values() for kind in tables})

pytestmark = pytest.mark.nightly(but=["numpy", "torch"])  # what compiles each call takes minutes


@pytest.fixture(scope="module")
def frameworks():
    """A framework by its name; each is made once."""
    made = {}

    def framework(backend):
        if backend not in FRAMEWORKS:
            pytest.skip("the generator has no programs of this framework")
        if backend not in made:
            made[backend] = FRAMEWORKS[backend]()
        return made[backend]

    return framework


def refusals(seeds, framework, kinds):
    """Run programs; return how many were refused, by reasons."""
    refused: collections.Counter[str] = collections.Counter()
    for seed in seeds:
        program = Program(seed, framework, kinds)
        verdict = verdict_of(program)
        if verdict.is_failure:
            text = shrunk(program, verdict.what).text
            raise AssertionError(f"Program {seed} is {verdict.what}. It needs:\n{text}") from verdict.error
        refused.update([verdict.why] if verdict.what == "refused" else [])
    return refused


def count_of(backend, request):
    """Return how many programs were asked for."""
    return max(1, request.config.getoption("--programs") // COMPILED.get(backend, 1))


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_do_what_the_loop_does(part, backend, frameworks, request):
    count = count_of(backend, request) // 2
    refused = refusals(range(part, count, PARTS), frameworks(backend), ())
    assert refused.total() <= max(5, count / PARTS / SHARE), refused


@pytest.mark.parametrize("kind", KINDS_OF_ALL)
def test_random_programs_of_a_kind_do_what_the_loop_does_or_are_refused(kind, backend, frameworks, request):
    framework = frameworks(backend)
    if kind not in framework.kinds:
        pytest.skip("the framework has no programs of this kind")
    refusals(range(1 + count_of(backend, request) // OF_A_KIND), framework, [kind])


def test_a_program_that_differs_is_found_and_shrunk(backend, frameworks, monkeypatch):
    framework = frameworks(backend)
    monkeypatch.setattr(plain_programs.comparing.Side, "batched", as_the_loop_but_for_one)
    program = Program(3, framework, ["scopes"])
    verdict = verdict_of(program)
    assert (verdict.what, verdict.why) == ("wrong", "values")
    assert not shrunk(program, "wrong").statements
    program = Program(3, framework, [], [Statement("while True: pass")])
    monkeypatch.setattr(framework, "patience", 0.2)
    assert verdict_of(program).what == "hang"


def as_the_loop_but_for_one(side, which, wanted):
    """Return what the loop returns, with another note for the first example."""
    found = side.looped(which)
    found.results[0]["notes"] = [*found.results[0]["notes"], "another"]
    return found
