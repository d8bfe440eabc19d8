"""What several files of tests say of errors: the line that one names, its text, and parts of results."""

from __future__ import annotations

import inspect

import pytest

from multifold import LaunchError


def here(back=0):
    """Return ``file:line`` of the caller, or of a line before."""
    frame = inspect.currentframe().f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno - back}"


def launch_error(fold, model, outputs):
    """Return what the error of a launch says."""
    with pytest.raises(LaunchError) as caught:
        fold.apply(model, outputs)
    return str(caught.value)


PARTS = {
    "too few": (lambda n: n.split(3)[0], r"has 2 parts, where .split\(3\) expects 3"),
    "too many": (lambda n: n.split(1)[0], r"has 2 parts, where .split\(1\) expects 1"),
    "no such index": (lambda n: n[5], r"has no part \[5\]"),
    "no such key": (lambda n: n["h"], r"has no part \['h'\]"),
    "a part of an array": (lambda n: n[0][1], r"of which \[1\] is no part"),
    "a slice of an array": (lambda n: n[0][:1], "is no part"),
    "None": (lambda n: n[1]["none"], r"is None at \[1\]\['none'\]"),
}
"""Parts that a result lacks, and what an error says of each."""
