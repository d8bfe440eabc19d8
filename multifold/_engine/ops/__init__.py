"""Ops: what an op is, what it receives and reaches, and what it leaves behind.

An op is what the user's model does with the rows of many examples. This room knows everything about one op,
and nothing about plans: `multifold._engine.run` asks it before and after each launch.

>>> import multifold, numpy as np
>>> from multifold._engine.ops.lookup import resolve
>>> from multifold._engine.ops.reach import owners_of
>>> class Model:
...     def double(self, x): return 2 * x
>>> model, backend = {"encoder": Model()}, multifold.load_backend("numpy")
>>> double = resolve(backend, model, "encoder.double", "line 3 of train.py")
>>> double(np.ones((2, 1)))
array([[2.],
       [2.]])
>>> owners_of(backend, None, double)[-1] is model["encoder"]
True

- `values`: what ops receive and return: an array, or a tuple, list or dict of arrays.
- `lookup`: the name of an op becomes a callable, looked up on the model.
- `reach`: the objects that an op consists of, and those that its functions find around them.
- `state`: what an op may change besides its result, read before a launch and put back for each trial.
- `trial`: the first launches of an op show that it keeps rows apart; `verdicts` remembers which did.
- `closeness`: what is equal up to rounding.
- `writes`: ops that write to their operands, which is refused.
- `messages` and `hints`: what errors of an op say, and what to do about them.
"""
