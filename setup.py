"""What pyproject.toml can't say: the extension modules are built where a C compiler is at hand.

``optional`` lets the installation go on without them; `multifold._compiled` then takes their references in
Python and NumPy.
"""

from setuptools import Extension, setup

SOURCES = {"_native": ["_native"], "_kernels": ["_kernels", "_levels", "_merge", "_rounds"]}

setup(
    ext_modules=[
        Extension(
            f"multifold._compiled.{name}",
            [f"multifold/_compiled/{source}.c" for source in sources],
            depends=["multifold/_compiled/_columns.h"],
            optional=True,
        )
        for name, sources in SOURCES.items()
    ]
)
