"""The door to the command line, where its packages are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["click", "rich"])
def test_without_its_packages_the_command_says_in_one_line_what_to_install(package):
    code = f"import sys; sys.modules[{package!r}] = None; import multifold.__main__ as m; m.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    said = f"multifold: the command line needs {package}; "
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"{said}pip install 'multifold-core[cli]'\n"
