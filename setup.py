"""What pyproject.toml can't say: the extension modules are built where a C compiler is at hand.

``optional`` lets the installation go on without them; `multifold._compiled` then takes their references in
Python and NumPy.
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

MODULES = ("_recording.pyx", "_calls.py", "_covers.pyx", "_rows.py", "_merging.pyx", "_rounds.pyx")

# gcc takes 35 s for the modules of generated C, one after the other and with debugging symbols, and 16 s
# for all of them on two cores and without symbols. Python builds itself with -fwrapv, and the modules rely
# on it: a damaged integer may be any, so that a sum of it wraps, and is compared with bounds afterwards.
# CFLAGS in the environment take the place of Python's own flags, so the option stands here.
FLAGS = ["-g0", "-fwrapv"] if os.name == "posix" else []

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"multifold._compiled.{name.partition('.')[0]}",
                [f"multifold/_compiled/{name}"],
                optional=True,
                extra_compile_args=FLAGS,
            )
            for name in MODULES
        ],
        quiet=True,
        build_dir="build/generated",  # generated C is built, not committed
    ),
    options={"build_ext": {"parallel": os.cpu_count()}},
)
