"""Replaced methods: they are there while a program records, and put back whatever happens."""

from __future__ import annotations

import pytest

from multifold.lazy.patches import Replacements


class Layer:
    def call(self):
        return "called"

    def name(self):
        return "named"


class Deep(Layer):
    """Inherits both."""


def seen(method):
    return lambda self: f"seen and {method(self)}"


def test_the_last_to_leave_puts_methods_back():
    places = Replacements((Layer, "call", seen), (Deep, "name", seen))
    before = dict(vars(Layer)), dict(vars(Deep))
    with places.applied():
        with places.applied():
            assert (Layer().call(), Deep().name()) == ("seen and called", "seen and named")
        assert Layer().call() == "seen and called"
    assert (dict(vars(Layer)), dict(vars(Deep))) == before


@pytest.mark.parametrize("method", ["replace", "put_back"])
def test_a_key_press_may_come_while_methods_are_replaced(method, monkeypatch):
    """Then some are, and some are not; the next run replaces all, and puts all back."""
    pressed = []

    def seen_unless_pressed(own):
        if method == "replace" and not pressed:
            pressed.append(True)
            raise KeyboardInterrupt
        return seen(own)

    places = Replacements((Layer, "call", seen), (Deep, "name", seen_unless_pressed))
    before = dict(vars(Layer)), dict(vars(Deep))
    if method == "put_back":
        monkeypatch.setattr(places, "put_back", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), places.applied():
        pass
    monkeypatch.undo()
    with places.applied():
        assert (Layer().call(), Deep().name()) == ("seen and called", "seen and named")
    assert (dict(vars(Layer)), dict(vars(Deep))) == before
