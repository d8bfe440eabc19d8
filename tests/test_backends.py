"""Which backends there are: the one test that fails where a backend that was asked for is missing."""

from __future__ import annotations

from multifold._frameworks import registry


def test_the_backend_that_was_asked_for_can_be_imported(asked_backend):
    assert registry.load_backend(asked_backend).name == asked_backend
