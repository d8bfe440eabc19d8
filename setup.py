"""What pyproject.toml can't say: the extension modules are built where a C compiler is at hand.

``optional`` lets the installation go on without them; `multifold.native` then takes `multifold.plain`, and
`multifold.compiled` says that NumPy does what the kernels would do.
"""

from setuptools import Extension, setup

NAMES = ("_native", "_kernels")

setup(ext_modules=[Extension(f"multifold.{n}", [f"multifold/{n}.c"], optional=True) for n in NAMES])
