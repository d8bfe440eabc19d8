"""Doors for programs written for a predecessor: change the import line, keep the program.

Each door is a `multifold.Fold` under the names of another library, and no more than that: its calls
are recorded, scheduled and run like all others, so everything else of multifold (``schedule``,
``explain``, ``check``, `multifold.ragged`) works on the same fold while a program moves over.
Nothing here imports a framework before it is used. ``docs/migration.md`` shows what behaves
differently, and why.

========================  =============================================
``torchfold``             `multifold.compat.torchfold`
``fold`` (MXNet Gluon)    `multifold.compat.mxnet_fold`
========================  =============================================
"""

from __future__ import annotations
