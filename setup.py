"""What pyproject.toml can't say: the extension modules are built where a C compiler is at hand.

``optional`` lets the installation go on without them; `multifold._compiled` then takes their references in
Python and NumPy.
"""

from Cython.Build import cythonize
from setuptools import Extension, setup

WRITTEN_IN = {"_recording": "c", "_calls": "pyx", "_rows": "pyx", "_merging": "pyx"}

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"multifold._compiled.{name}", [f"multifold/_compiled/{name}.{language}"], optional=True
            )
            for name, language in WRITTEN_IN.items()
        ],
        quiet=True,
        build_dir="build/cython",  # generated C is built, not committed
    )
)
