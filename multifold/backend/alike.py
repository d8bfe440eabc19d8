"""Modules alike: what an adapter says of a module that computes as others do, but for its parameters."""

from __future__ import annotations

import abc
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class ModuleForm(abc.ABC):
    """All of a module but the values of its parameters: modules of equal forms compute alike.

    Attributes
    ----------
    key : Hashable
        Equal for equal forms: the class, its options, and the shapes and dtypes of parameters.
    crowd : float
        Where modules have more rows each in a launch than this, launches of their own cost less.
    """

    key: Hashable
    crowd: float = math.inf

    @abc.abstractmethod
    def holds(self) -> bool:
        """Return whether the module still has this form."""


class Groups(NamedTuple):
    """Which rows of a launch belong to which module.

    Attributes
    ----------
    sizes : list of int
        How many rows each module has, at least one.
    order : int64 array, or None
        The rows of the first module, then those of the second, and so on; None if that is their order.
    """

    sizes: list[int]
    order: np.ndarray | None


class Together(abc.ABC):
    """Calls modules of equal forms as one, each with rows of its own: what `Backend.together` makes."""

    @abc.abstractmethod
    def holds(self) -> bool:
        """Return whether all modules still have their forms; asked in each launch, so it must be quick."""

    @abc.abstractmethod
    def __call__(self, operands: Sequence[Any], static: Mapping[str, Any]) -> Any | None:
        """Return what the modules return, a row for each row of the operands; None if that won't do.

        With None, each module is called with its rows.
        """
