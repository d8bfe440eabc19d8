"""Random plain programs (`tests/imported/plain_programs`) do what the loop does, or are refused.

`tests/imported/sweep_programs.py` runs thousands of them.
"""

from __future__ import annotations

import collections

import pytest
from plain_programs import FRAMEWORKS, Program, shrunk, verdict_of

PARTS = 4
SHARE = 20
"""One of so many programs without a kind may be refused."""
OF_A_KIND = 20
"""One of so many programs that were asked for is run for each kind."""


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


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_do_what_the_loop_does(part, backend, frameworks, request):
    count = request.config.getoption("--programs")
    refused = refusals(range(part, count, PARTS), frameworks(backend), ())
    assert refused.total() <= max(5, count / PARTS / SHARE), refused
