"""Doors for programs written for a predecessor: change the import line, keep the program.

Each door is a `multifold.Fold` under the names of another library. Its calls
are recorded, scheduled and run like all others, so everything else of multifold (``schedule``,
``explain``, ``check``, `multifold.ragged`) works on the same fold while a program moves over.
Nothing here imports a framework before it is used. ``docs/migration.md`` shows what behaves
differently, and why.

========================  =============================================
``torchfold``             `multifold_compat.torchfold`
``fold`` (MXNet Gluon)    `multifold_compat.mxnet_fold`
========================  =============================================

Examples
--------
A TorchFold program, but for the import and the backend (NumPy instead of PyTorch). Its three calls are
recorded like any others, and two of them share a launch:

>>> from multifold_compat import torchfold
>>> class Model:
...     def leaf(self, x): return 2 * x
...     def join(self, a, b): return a + b
>>> fold = torchfold.Fold(backend="numpy")
>>> root = fold.add("join", fold.add("leaf", 3), fold.add("leaf", 4))
>>> fold.apply(Model(), [[root]])
[array([14])]
>>> [(launch.op, len(launch)) for launch in fold.explain().launches]
[('leaf', 2), ('join', 1)]
"""

from __future__ import annotations
