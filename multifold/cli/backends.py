"""``multifold backends``: what is installed, what it lacks, and how to install the rest."""

from __future__ import annotations

from typing import NamedTuple

import click

from multifold import registry
from multifold.cli.output import load, show_table
from multifold.errors import BackendError


class Row(NamedTuple):
    """A line of the table."""

    backend: str
    framework: str
    adapter: str
    device: str
    remarks: str


@click.command()
def backends() -> None:
    """List the backends: installed or not, version, device, gaps.

    A gap is what an adapter declares that its framework cannot do. Backends that others wrote are listed
    as soon as they are installed.
    """
    names = list(dict.fromkeys([*registry.DISTRIBUTIONS, *registry.installed()]))
    columns = ["<backend", "<framework", "<adapter", "<device", "<gaps, or how to install it"]
    show_table(columns, [row_of(name) for name in names])


def row_of(name: str) -> Row:
    """Return what there is to say about one backend."""
    from multifold.bench import machine

    try:
        backend = load(name)
    except BackendError as error:
        hint = f" {error.hint}" if error.hint else ""
        if name in registry.installed():
            return Row(name, "not usable", machine.adapter(name), "", f"{error.message}{hint}")
        return Row(name, "not installed", "", "", registry.install_line(name))
    gaps = [f"no {attribute}: {reason}" for attribute, reason in backend.gaps().items()]
    return Row(
        name,
        machine.framework_version(backend),
        machine.adapter(name),
        machine.default_device(backend),
        "\n".join(gaps) or "none",
    )
