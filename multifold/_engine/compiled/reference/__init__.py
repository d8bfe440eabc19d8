"""The references: what the modules in Cython do, in Python.

They run wherever the compiled modules are missing, and the tests compare the two by name. All other
compiled modules have one source in Python, which `multifold._engine.compiled.sources` loads where nothing
is compiled.
"""
