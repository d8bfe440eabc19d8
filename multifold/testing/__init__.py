"""The conformance suite that any adapter runs, ours or a stranger's.

In a test file of the adapter::

    from multifold.testing import Conformance

    class TestConformance(Conformance):
        backend = "torch"
"""

from __future__ import annotations

from multifold.testing.conformance import Conformance, failures
from multifold.testing.counting import Counting

__all__ = ["Conformance", "Counting", "failures"]
