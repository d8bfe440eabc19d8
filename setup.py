"""What pyproject.toml can't say: the extension modules are built where a C compiler is at hand.

``optional`` lets the installation go on without them; `multifold.native` then takes `multifold.plain`, and
`multifold.compiled` says that NumPy does what the kernels would do.
"""

from setuptools import Extension, setup

SOURCES = {"_native": ["_native"], "_kernels": ["_kernels", "_levels", "_merge", "_rounds"]}

setup(
    ext_modules=[
        Extension(
            f"multifold.{name}",
            [f"multifold/{source}.c" for source in sources],
            depends=["multifold/_columns.h"],
            optional=True,
        )
        for name, sources in SOURCES.items()
    ]
)
