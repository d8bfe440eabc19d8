"""Frameworks: which backend an array or a model belongs to, and recording for one of them.

A backend is an adapter between multifold and one framework. Adapters are packages of their own, found by
their entry points; NumPy's is one of the core. A fold of ``backend="auto"`` belongs to no framework until
it meets one: an operand, an op or a model decides. Only frameworks that the program has imported already
are asked, so a fold that meets NumPy arrays alone runs on NumPy and imports nothing.

>>> import numpy as np
>>> from multifold import Fold
>>> from multifold._engine.frameworks import registry
>>> fold = Fold()
>>> node = fold.add("double", np.ones((1, 2)))
>>> fold._backend is None and registry.owner(np.ones(2)) is None
True
>>> fold.apply({"double": lambda x: 2 * x}, node)
array([[2., 2.]])
>>> fold._backend_of(None).name
'numpy'

Modules: ``registry`` finds and loads backends, ``framework_recorder`` has the base class of
`multifold.Fold` and `multifold.Unfold`.
"""
