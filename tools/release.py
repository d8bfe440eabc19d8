"""One number for all distributions, and their files: what a release is made of.

    python tools/release.py version 0.2.0         writes the number wherever it stands
    python tools/release.py build dist            builds all distributions, and looks into them
    python tools/release.py build dist v0.2.0     the same, if this is the tag of the number

A release is one tag, `v0.2.0`, on one number. An adapter uses what is private in the core, so each adapter
asks for the core of just its own number. What is built is looked into before anybody installs it: a wheel
holds its package and nothing else, and each file of a package that the repository has is in the wheel.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

CORE = "multifold-core"

DISTRIBUTIONS = {
    CORE: ROOT,
    **{f"multifold-{path.name}": path for path in sorted(ROOT.glob("backends/*")) if path.is_dir()},
    "multifold-compat": ROOT / "compat",
    "multifold-bench": ROOT / "benchmarks",
}
"""The folder of each distribution."""

SOURCES = (".pyx", ".pxd")
"""What the source distribution of the core has, and its wheel leaves out."""


def numbers(number: str = r"[^\s\"',;\]]+") -> Iterator[tuple[Path, re.Pattern[str]]]:
    """Yield each file in which the number stands, with a pattern whose group is the number.

    Examples
    --------
    >>> sorted({path.name for path, _ in numbers()})
    ['CITATION.cff', '__init__.py', 'pyproject.toml']
    """
    yield ROOT / "multifold" / "__init__.py", re.compile(rf'(?<=^__version__ = ")({number})', re.MULTILINE)
    yield ROOT / "CITATION.cff", re.compile(rf"(?<=^version: )({number})", re.MULTILINE)
    for folder in DISTRIBUTIONS.values():
        for before in ('^version = "', f'"{CORE}==', rf'"{CORE}\[cli\]=='):
            yield folder / "pyproject.toml", re.compile(f"(?<={before})({number})", re.MULTILINE)


def written() -> dict[str, list[str]]:
    """Return each number that stands somewhere, with the files where it does."""
    found: dict[str, list[str]] = {}
    for path, pattern in numbers():
        for number in pattern.findall(path.read_text()):
            found.setdefault(number, []).append(path.relative_to(ROOT).as_posix())
    return found


def write(number: str) -> None:
    """Write a number wherever one stands."""
    for path, pattern in numbers():
        path.write_text(pattern.sub(number, path.read_text()))


def build(to: Path) -> list[Path]:
    """Build the source distribution and the wheel of everything into a folder; return the wheels."""
    for folder in DISTRIBUTIONS.values():
        subprocess.run([sys.executable, "-m", "build", "--outdir", str(to), str(folder)], check=True)
    return sorted(to.glob("*.whl"))


def missing_and_foreign(wheel: Path) -> tuple[set[str], set[str]]:
    """Return the files of a package that its wheel lacks, and those of the wheel that are of no package."""
    name = wheel.name.partition("-")[0].replace("_", "-")
    package = "multifold" if name == CORE else name.replace("-", "_")
    tracked = subprocess.run(
        ["git", "ls-files", package], cwd=DISTRIBUTIONS[name], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    wanted = {name for name in tracked if not name.endswith(SOURCES)}
    names = {name for name in zipfile.ZipFile(wheel).namelist() if not name.endswith("/")}
    compiled = {name for name in names if name.endswith((".so", ".pyd"))}
    described = {name for name in names if name.split("/")[0].endswith(".dist-info")}
    return wanted - names, names - wanted - compiled - described


def main() -> None:
    """Read the command line, and do what it asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("version", help="write a number everywhere").add_argument("number")
    builder = commands.add_parser("build", help="build all distributions")
    builder.add_argument("folder", type=Path)
    builder.add_argument("tag", nargs="?")
    asked = parser.parse_args()
    if asked.command == "version":
        write(asked.number)
        return
    found = [f"v{number}" for number in written()]
    if asked.tag and found != [asked.tag]:
        raise SystemExit(f"Expected the number of the tag {asked.tag} wherever one stands. Found {found}.")
    for wheel in build(asked.folder):
        missing, foreign = missing_and_foreign(wheel)
        if missing or foreign:
            raise SystemExit(f"{wheel.name} lacks {sorted(missing)} and has {sorted(foreign)}.")


if __name__ == "__main__":
    main()
