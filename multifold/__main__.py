"""``multifold`` and ``python -m multifold``: the command line, or one line on what it lacks.

The one idea: the library installs without the packages that only its command line needs, so the
door to the command line stands here, outside `multifold.cli`, and imports nothing of theirs.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line.

    Raises
    ------
    SystemExit
        As every command does when it ends; with a line that says what to install if click or rich
        is missing.
    """
    try:
        from multifold.cli import main as command_line
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in {"click", "rich"}:
            raise
        raise SystemExit(
            f"multifold: the command line needs {missing}; pip install 'multifold-core[cli]'"
        ) from None
    command_line()


if __name__ == "__main__":
    main()
