"""A keyword that is mistyped: the error says which one was meant."""

from __future__ import annotations

import inspect

import pytest

import multifold


@pytest.mark.parametrize(
    ("call", "wrong", "meant"),
    [
        (lambda **options: multifold.batched(len, **options), "cell", "cells"),
        (lambda **options: multifold.plain(len, **options), "backends", "backend"),
        (multifold.Fold, "schedules", "schedule"),
        (lambda **options: multifold.Server(None, len, **options), "timeouts", "timeout"),
    ],
    ids=["batched", "plain", "Fold", "Server"],
)
def test_a_mistyped_keyword_is_told_which_one_was_meant(call, wrong, meant):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{wrong}'. Did you mean '{meant}'"):
        call(**{wrong: None})


def test_signatures_are_those_of_the_functions():
    assert "on_error" in inspect.signature(multifold.batched).parameters
    assert "schedule" in inspect.signature(multifold.Fold).parameters
