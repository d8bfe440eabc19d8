"""What pyproject.toml can't say: the extension modules are built where a C compiler is at hand.

``optional`` lets the installation go on without them; `multifold._engine.compiled` then runs their sources,
or references of those in Cython.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

# `_shared.c` is written by Cython, too: what the views of arrays in all the others need, which each would
# else have for itself. It takes a compiler longer than most, so it is the first.
MODULES = (
    "_shared.c",
    "_recording.pyx",
    "_calls.py",
    "_covers.pyx",
    "_foot.pyx",
    "_rows.py",
    "_merging.py",
    "_table.py",
    "_tasks.py",
    "_lazy.py",
)

# Without debugging symbols a compiler is much quicker. Python builds itself with -fwrapv, and the modules
# rely on it: a damaged integer may be any, so that a sum of it wraps, and is compared with bounds
# afterwards. CFLAGS in the environment take the place of Python's own flags, so the option stands here.
FLAGS = ["-g0", "-fwrapv"] if os.name == "posix" else []

# Cython 3.3 does not look whether what a .py cimports by its .pxd has changed since, as it does for a .pyx.
PACKAGE = "multifold/_engine/compiled"
newest = max(path.stat().st_mtime for path in Path(PACKAGE).glob("*.pxd"))
for generated in Path("build/generated", PACKAGE).glob("*.c"):
    if generated.stat().st_mtime < newest:
        generated.unlink()

extensions = cythonize(
    [
        Extension(
            f"multifold._engine.compiled.{name.partition('.')[0]}",
            [f"{PACKAGE}/{name}"],
            extra_compile_args=FLAGS,
        )
        for name in MODULES
    ],
    build_dir="build/generated",  # generated C is built, not committed
    shared_utility_qualified_name="multifold._engine.compiled._shared",
)
for extension in extensions:
    extension.optional = True  # Cython 3.3 forgets what an Extension is told of it

setup(ext_modules=extensions, options={"build_ext": {"parallel": os.cpu_count()}})
