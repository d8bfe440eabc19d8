"""MXNet Gluon as a backend of multifold: blocks, hybridized or not, and both kinds of arrays."""

from __future__ import annotations

from multifold_mxnet.backend import MxnetBackend
from multifold_mxnet.hybridize import Hybridizer
from multifold_mxnet.kit import MxnetKit

__all__ = ["Hybridizer", "MxnetBackend", "MxnetKit"]
