"""Forms: what is known of a pending array without its values, and by which calls are told apart.

All pending arrays of one shape and dtype have one form, so calls compare their operands by identity:

>>> import numpy as np
>>> from functools import partial
>>> forms = PendingForms(partial(PendingForm, object))
>>> forms.of(np.ones((2, 3))) is forms.of(np.zeros((2, 3))), forms.get((2, 3), np.dtype(int)).dtype
(True, dtype('int64'))
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class PendingForm:
    """What is known of a pending array (one that is not computed yet): shape, dtype, how to make one.

    ``new()`` returns an empty pending array.

    A framework whose arrays have more to tell, as a device, has a subclass.
    """

    __slots__ = ("__weakref__", "dtype", "new", "shape")

    def __init__(self, new: Callable[[], Any], shape: Any, dtype: Any) -> None:
        self.new = new
        self.shape = shape
        self.dtype = dtype


class PendingForms:
    """A table with one form for each shape and dtype; a form that nothing refers to is dropped.

    Parameters
    ----------
    make : callable
        ``make(*key)`` returns a new form for a key, as a shape and a dtype.
    """

    def __init__(self, make: Callable[..., Any]) -> None:
        self.make = make
        self.known: weakref.WeakValueDictionary[Any, Any] = weakref.WeakValueDictionary()

    def of(self, x: Any) -> Any:
        """Return the form for the shape and dtype of an array; make and store it if it is new."""
        return self.get(tuple(x.shape), x.dtype)

    def entry(self, form: Any) -> Any:
        """Return the form of an entry along axis 0 of arrays of a form."""
        return self.get(form.shape[1:], form.dtype)

    def number(self, dtype: Any) -> Any:
        """Return the form of an array that stands for a number of Python."""
        return self.get((), dtype)

    def get(self, *key: Any) -> Any:
        """Return the form for a key, as ``shape, dtype``; make it by ``make(*key)`` if it is new."""
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = self.make(*key)
        return found
