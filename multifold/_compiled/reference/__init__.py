"""The references: what each compiled function does, in Python and NumPy.

They run wherever the compiled modules are missing, and the tests compare the two by name.
"""
