"""Running: a wired schedule through a backend; the room where arrays are touched.

A launch goes from sections to operands, from operands to a result, from the result to sections again. Here
are two launches, with NumPy and the wiring of three calls:

>>> import numpy as np
>>> import multifold
>>> fold = multifold.Fold(backend="numpy")
>>> x, y = (fold.add("leaf", number) for number in (1.0, 2.0))
>>> total = fold.add("add", y, x)
>>> plan = fold._plan(total).wired()
>>> wiring = plan.wiring
>>> leaf, add = wiring.launches

A launcher runs a launch, a run holds results and where they are, and sections wait for their reader.
Numbers go to the device first, all of one type in one transfer. Then the leaves run: their operand is one
array of both numbers. The wiring put call 1, which is ``y``, into row 0, because ``add(y, x)`` reads ``y``
first.

>>> from multifold._numpy.backend import NumpyBackend
>>> from multifold._engine.run.launcher import Launcher
>>> from multifold._engine.run.report import Notes
>>> from multifold._engine.run.run import Run, Sections
>>> from multifold._engine.ops.values import Values
>>> signatures = plan.columns.signatures
>>> launcher = Launcher(Values(NumpyBackend(), None))
>>> launcher.ops.update({signatures[0]: lambda x: x * 10, signatures[1]: lambda x, y: x + y})
>>> run = Run(launcher, plan, Notes(), wiring.place)
>>> sections = Sections(run, wiring)
>>> leaf.calls.tolist(), sections.operands(leaf, signatures[0])
([1, 0], [array([2., 1.])])
>>> sections.launch(leaf)
>>> run.results[0]
array([20., 10.])

The result was split into two sections, one for each operand of ``add``. Its launch takes them away,
calls the op once, and keeps the result as the section that the output reads:

>>> sections.waiting
{0: array([20.]), 1: array([10.])}
>>> sections.launch(add)
>>> sections.waiting
{2: array([30.])}
>>> sections.outputs()
[array([30.])]

The modules: `launch` is a launch as data. `launcher` runs one, and compares its result with those of
launches like it; `trial_book` decides which launches are tried, and `settling` tries them in advance. `run`
is the state of one run and the sections that wait, and `padded` those of launches that are padded, for
frameworks that compile for each size. `loop` runs a plan to its end, with `divide` for launches whose rows
turn out to differ. `blame` finds who fails if a launch fails, and `outliers` whose calls an error is about.
`report` keeps what `Fold.explain` tells. All that is known of one op is in `multifold._engine.ops`.
"""
