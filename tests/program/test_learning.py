"""`Fold.program(outputs, model)` learns what calls return by running a few of them: nothing of it stays."""

from __future__ import annotations

import numpy as np

import multifold


class Centred:
    """A model with a running mean, which moves with each call, and with a generator."""

    def __init__(self):
        self.mean = np.zeros(2)
        self.generator = np.random.default_rng(0)

    def centre(self, x):
        self.mean += 0.1 * x.mean(0)
        return x

    def noisy(self, x):
        return x + self.generator.normal(size=x.shape)


def test_running_means_do_not_move_while_a_program_learns():
    model = Centred()
    fold = multifold.Fold(backend="numpy")
    fold.program([[fold.add("centre", np.full((1, 2), i)) for i in (1.0, 2.0, 3.0)]], model)
    assert model.mean.tolist() == [0, 0]


def test_random_numbers_are_those_of_before_after_a_program_has_learnt():
    model = Centred()
    fold = multifold.Fold(backend="numpy")
    fold.program([[fold.add("noisy", np.ones((1, 2)))]], model)
    assert model.generator.normal() == np.random.default_rng(0).normal()
