"""``multifold backends``: what is installed and compiled, what it lacks, and how to install the rest."""

from __future__ import annotations

import click

from multifold._engine import compiled
from multifold._engine.frameworks import registry
from multifold.cli.output import load, show_table
from multifold.errors import BackendError

WORDS = {"kit": "gradients", "cell": "recurrent cells", "abstract": "dry runs", "device": "devices"}
"""The attribute that an adapter declares as a gap -> what a user lacks without it."""


def words(attribute: str) -> str:
    """Return what a user lacks if an adapter lacks an attribute: ``"kit"`` -> ``"gradients"``.

    An attribute that is not in `WORDS` is its name with spaces for underscores.
    """
    return WORDS.get(attribute, attribute.replace("_", " "))


@click.command()
def backends() -> None:
    """List the backends: installed or not, version, device, gaps.

    A gap is what an adapter declares that its framework cannot do; the lines below say why. Backends
    that others wrote are listed as soon as they are installed.
    """
    names = list(dict.fromkeys([*registry.BACKENDS, *registry.installed_backends()]))
    found = [look(name) for name in names]
    columns = ["<backend", "<framework", "<adapter", "<device", "<gaps"]
    lines = [f"{name}: {line}" for name, (_, remarks) in zip(names, found, strict=True) for line in remarks]
    below = "\n".join([*lines, *another_core(), compiled.state()])
    show_table(columns, [cells for cells, _ in found], below)


def another_core() -> list[str]:
    """Return a line of warning if another distribution has the same package; else no lines.

    That is a distribution called ``multifold``: its files may have replaced those of multifold-core.
    """
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = f"multifold {version('multifold')}"
    except PackageNotFoundError:
        return []
    return [
        f"{found} is installed, too, and its files may have taken the place of those of multifold-core: "
        "pip uninstall multifold multifold-core, then install multifold-core again"
    ]


def look(name: str) -> tuple[tuple[str, ...], list[str]]:
    """Import a backend; return the cells of its row, and a list of lines for below the table.

    The cells are name, version, adapter, device and gaps; one that is not installed or not usable has
    fewer.
    """
    from multifold._measure import machine

    try:
        backend = load(name)
    except BackendError as error:
        if name not in registry.installed_backends():
            return (name, "not installed"), [registry.install_line(name)]
        return (name, "not usable", machine.adapter(name)), [" ".join(str(error).split())]
    version = machine.framework_version(backend)
    device = machine.default_device(backend)
    gaps = backend.gaps()
    cells = (name, version, machine.adapter(name), device, ", ".join(map(words, gaps)) or "none")
    return cells, [f"no {words(attribute)}: {reason}" for attribute, reason in gaps.items()]
