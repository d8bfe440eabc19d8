"""NumPy as a backend: the adapter that every installation has, built like those in `backends/`.

- `backend`: `NumpyBackend`, the reference that the other adapters are compared with.
- `ops`: the functions of `multifold.ops` on arrays of NumPy.
- `program`: the interpreter of `multifold.program`, the reference of all executors.
- `lazy`: programs of NumPy as they stand.
"""
