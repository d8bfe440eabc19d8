"""Random plain programs (`tests/imported/lazy_programs.py`) do what the loop does.

``pytest tests/lazy/test_programs.py --backend torch --programs 10000`` runs more of them.
"""

from __future__ import annotations

import collections

import pytest
from lazy_programs import FRAMEWORKS, Program, compared, shrunk

PARTS = 4
SHARE = 20
"""One of so many programs may be refused."""


@pytest.mark.parametrize("part", range(PARTS))
def test_random_programs_do_what_the_loop_does(part, backend, request):
    if backend not in FRAMEWORKS:
        pytest.skip("the generator has no programs of this framework")
    framework = FRAMEWORKS[backend]()
    refused: collections.Counter[str] = collections.Counter()
    count = request.config.getoption("--programs")
    for seed in range(part, count, PARTS):
        program = Program(seed, framework)
        try:
            why = compared(program)
        except Exception as error:
            found = shrunk(program)
            raise AssertionError(f"Program {seed} differs. It needs:\n{found.text}") from error
        refused.update([why] if why else [])
    assert refused.total() <= max(5, count / PARTS / SHARE), refused
