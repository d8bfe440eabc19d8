"""A model written once: named NumPy parameters, and ops that read them by name.

The one idea: ops are methods over `multifold.ops` that read ``self.gates.weight`` and never ask
what kind of array that is. `Model.on` makes the framework's own kind of model, of a class that
inherits the very same methods and holds the parameters as that framework trains them. `Model.save`
and `Model.load` carry the weights between any two of them.
"""

from __future__ import annotations

import inspect
import os
import zipfile
from collections.abc import Hashable, Mapping
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from multifold._engine.frameworks import registry
from multifold.backend import Array, Backend
from multifold.errors import MultifoldError
from multifold.models.layers import linear
from multifold.ops.tables import table


class WeightsError(MultifoldError, ValueError):
    """Weights do not fit a model: a name is missing or unknown, or a shape is another."""


class Model:
    """Base of the models: their parameters, and what moves them between frameworks.

    A subclass computes its parameters in ``__init__`` and hands them to this one. Its ops are
    methods that take and return batched arrays of one framework and read parameters as attributes.

    Parameters
    ----------
    parameters : dict of str to array
        The initial values by dotted names: ``{"gates.weight": ...}`` is read as
        ``self.gates.weight``. A name must not be that of an op.
    **settings
        What ops read besides; becomes an attribute each. Values are hashable.

    Examples
    --------
    >>> class Doubling(Model):
    ...     def __init__(self):
    ...         super().__init__({"factor": np.full(3, 2.0)})
    ...     def double(self, x):
    ...         return self.factor * x
    >>> Doubling().double(np.ones((1, 3)))
    array([[2., 2., 2.]])
    """

    names: tuple[str, ...]
    settings: dict[str, Hashable]

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Declare for type checkers that parameters and settings are attributes."""

    def __init__(self, parameters: Mapping[str, np.ndarray], **settings: Hashable) -> None:
        self._hold(parameters, settings)

    def _hold(self, parameters: Mapping[str, Any], settings: Mapping[str, Hashable]) -> None:
        """Set parameters and settings as attributes; a dotted name is an attribute of a group (`grouped`).

        Sets ``names``, those of the parameters, and ``settings``, too; arrays are not copied. Raises
        `WeightsError`, and sets nothing, if the class has an attribute or an op of one of the names.
        """
        attributes = grouped(parameters) | dict(settings)
        for name in attributes:
            # An attribute would hide the op of its name.
            if hasattr(type(self), name):
                raise WeightsError(
                    f"Expected parameters of a {self.kind.__name__} not to be named like what it "
                    f"has anyway. Received {name}.",
                    "give it a name that neither a method nor an attribute of the class has.",
                )
        self.names = tuple(parameters)
        self.settings = dict(settings)
        vars(self).update(attributes)

    @property
    def parameters(self) -> dict[str, np.ndarray]:
        """A new dict, dotted name -> the array that the model holds, in the order of ``names``."""
        return {name: attrgetter(name)(self) for name in self.names}

    @property
    def kind(self) -> type[Model]:
        """The subclass of `Model` that was written once.

        What `on` makes is of a class of its framework, and its ``kind`` is still this one.
        """
        return type(self)

    def on(self, backend: str | Backend, device: Any = None) -> Any:
        """Return a model of that framework with copies of the weights and the same ops.

        A `torch.nn.Module`, a `tf.Module`, a `mxnet.gluon.Block`, a pytree of JAX, or, for
        ``"numpy"``, a model that runs forward only.

        Parameters
        ----------
        backend : str or Backend
            As for `multifold.Fold`.
        device : optional
            Where the parameters live, as the framework spells it; its default if None.

        Raises
        ------
        BackendError
            If the backend is not installed, or its adapter has no module ``modules``, whose
            ``on(kind, weights, settings, device)`` makes such a model.

        Examples
        --------
        >>> from multifold.models import BinaryTreeLSTM
        >>> model = BinaryTreeLSTM(vocabulary=10, width=4, classes=2).on("numpy")
        >>> h, c = model.leaf(np.array([3, 7]))
        >>> model.logits(h).shape
        (2, 2)
        """
        backend = registry.load_backend(backend) if isinstance(backend, str) else backend
        if backend.name == "numpy":
            # `__init__` of a model draws initial values, which the copy has no use for.
            copy = object.__new__(self.kind)
            copy._hold(self.weights(), self.settings)
            return copy
        make = registry.adapter_module(backend, "modules").on
        weights = self.weights()
        made = make(self.kind, weights, self.settings, device)
        # What compiles an op then finds the functions for its arrays, and need not follow a search.
        table(backend.constant(np.zeros(1, np.float32), device))
        for name in weights:
            table(attrgetter(name)(made))
        return made

    @classmethod
    def shared_names(cls, base: type) -> list[str]:
        """Return the names of methods that ``base``, a framework's class, has as attributes, too.

        In alphabetical order, without those that begin with two underscores. Adapters decide what then.
        """
        own = [name for name, _ in inspect.getmembers(cls, inspect.isfunction)]
        return [name for name in own if not name.startswith("__") and hasattr(base, name)]

    def weights(self) -> dict[str, np.ndarray]:
        """Return a dict, dotted name -> a NumPy copy of the parameter; bfloat16 becomes float32."""
        found = {name: np.array(x) for name, x in self.parameters.items()}
        # An .npz file would keep bfloat16, which NumPy lacks, as bytes without a meaning.
        return {name: x.astype("float32") if x.dtype.kind == "V" else x for name, x in found.items()}

    def write(self, weights: Mapping[str, np.ndarray]) -> None:
        """Write new values into the arrays of all parameters, in place and in their dtypes.

        ``weights`` has an array of the parameter's shape for each dotted name; `assign` checks that before.
        """
        for name, x in self.parameters.items():
            x[...] = weights[name]

    def assign(self, weights: Mapping[str, np.ndarray]) -> Self:
        """Write new values into all parameters, in the dtypes that these have; return the model.

        ``weights`` has an array for each dotted name.

        Raises
        ------
        WeightsError
            If a name or a shape is another than the model's; nothing is changed then.
        """
        own = self.weights()
        missing = sorted(own.keys() - weights)
        unknown = sorted(weights.keys() - own)
        if missing or unknown:
            raise WeightsError(
                f"Expected weights of a {self.kind.__name__}. Received weights that lack "
                f"{', '.join(missing) or 'nothing'} and have besides "
                f"{', '.join(unknown) or 'nothing'}.",
                "they belong to a model of another class, or with other settings.",
            )
        for name, value in own.items():
            if value.shape != np.shape(weights[name]):
                raise WeightsError(
                    f"Expected weights of shape {value.shape} for the parameter {name}. "
                    f"Received {np.shape(weights[name])}.",
                    "make the model with the sizes that it was trained with.",
                )
        self.write({name: np.asarray(weights[name], x.dtype) for name, x in own.items()})
        return self

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the weights by name into an ``.npz`` file, which any of the frameworks can load.

        They are written to ``<path>.part``, which then replaces ``path``: an interrupted save leaves what
        was there before. No suffix is added to ``path``.
        """
        path = Path(path)
        unfinished = path.with_name(path.name + ".part")
        with unfinished.open("wb") as file:
            np.savez(file, **self.weights())  # type: ignore[arg-type]  # NumPy 2.4 names a keyword
        os.replace(unfinished, path)

    def load(self, path: str | os.PathLike[str]) -> Self:
        """Write the values of a file that `save` wrote, on whatever framework, into this model; return it.

        Raises
        ------
        WeightsError
            If it is no such file, or has weights of another model; nothing is changed then.

        Examples
        --------
        >>> import pathlib, tempfile
        >>> from multifold.models import BinaryTreeLSTM
        >>> path = pathlib.Path(tempfile.mkdtemp(), "weights.npz")
        >>> BinaryTreeLSTM(vocabulary=10, width=4, classes=2, seed=1).save(path)
        >>> model = BinaryTreeLSTM(vocabulary=10, width=4, classes=2).load(path)
        """
        try:
            with open(path, "rb") as opened, np.load(opened, allow_pickle=False) as file:
                weights = dict(file)
        except (ValueError, TypeError, AttributeError, EOFError, KeyError, zipfile.BadZipFile) as error:
            raise WeightsError(
                f"Expected a file of weights in {os.fspath(path)}. It cannot be read as one: "
                f"{type(error).__name__}.",
                "model.save(path) writes them.",
            ) from error
        return self.assign(weights)


class Classifier(Model):
    """A model whose layer ``output`` scores classes from a state: those of sentences, words or digits."""

    def logits(self, h: Array) -> Array:
        """Return the logits of the classes: states ``(n, width)`` give ``(n, classes)``."""
        return linear(self.output, h)


def grouped(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict of attributes in which a dotted name, ``gates.weight``, is an attribute of an object.

    Examples
    --------
    >>> found = grouped({"gates.weight": 1, "gates.bias": 2, "scale": 3})
    >>> found["gates"].bias, found["scale"]
    (2, 3)
    """
    root = SimpleNamespace()
    for path, value in parameters.items():
        *groups, name = path.split(".")
        group = root
        for part in groups:
            group = vars(group).setdefault(part, SimpleNamespace())
        vars(group)[name] = value
    return vars(root)
