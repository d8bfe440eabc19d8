"""What PyTorch's profiler saw of a step: the kernels, their time, and what they were for.

Kernels belong to the op of PyTorch that launched them, so matrix products, gathers and all else are told
apart by the names of ops and not by those of kernels, which each library chooses. On a CPU the shares are
those of the ops' own time, and there are no kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from multifold._measure.results import Row

PRODUCTS = frozenset({"addmm", "mm", "bmm", "baddbmm", "convolution", "_scaled_mm"})
"""PyTorch's ops that are matrix products."""

GATHERS = frozenset(
    {
        *("index_select", "index_add_", "index_add", "index", "index_put_", "_index_put_impl_", "gather"),
        *("cat", "copy_", "zero_", "fill_", "embedding", "embedding_dense_backward", "scatter_add_"),
    }
)
"""PyTorch's ops that put rows somewhere else, or make room for them."""

WAITS = ("aten::_local_scalar_dense", "aten::nonzero", "cudaStreamSynchronize", "cudaDeviceSynchronize")
"""What the profiler calls the moments at which the host waits for a device, or would wait for one."""


@dataclass(frozen=True)
class Profiled:
    """What was seen of some steps, for one of them.

    Attributes
    ----------
    kernels : float or None
        How many kernels ran; None on a CPU, as the next three.
    seconds : float or None
        In how many seconds a kernel or a copy ran.
    up, down : float or None
        Copies from the host, and to it.
    waits : float
        How often the host waited for the device, or would have.
    shares : dict of str to float
        Of the time of all kernels, or on a CPU of all ops: ``products``, ``gathers``, ``rest``.
    """

    kernels: float | None
    seconds: float | None
    up: float | None
    down: float | None
    waits: float
    shares: dict[str, float]

    def row(self, wall: float) -> Row:
        """Return this for a row of steps that took ``wall`` seconds each without the profiler."""
        busy = None if self.seconds is None else self.seconds / wall
        return {"kernels": self.kernels, "busy": busy, "copies_up": self.up, "copies_down": self.down} | {
            f"share_{name}": share for name, share in self.shares.items()
        }


def seen(step: Callable[[], object], steps: int = 1) -> Profiled:
    """Run some steps under the profiler, and say what one of them was; the first of all is not counted."""
    import torch

    wait = torch.cuda.synchronize if torch.cuda.is_initialized() else lambda: None
    step()
    wait()
    with torch.profiler.profile() as profile:
        for _ in range(steps):
            step()
        wait()
    return summed(profile.events(), steps)


def summed(events: Iterable[Any], steps: int) -> Profiled:
    """Return what the events of a profiler say of one of so many steps."""
    on_device = []
    by_class: Counter[str] = Counter()
    own: Counter[str] = Counter()
    names: Counter[str] = Counter()
    for event in events:
        if event.device_type.name == "CPU":
            names[event.name] += 1
            found = class_of(event.name)
            by_class[found] += sum(kernel.duration for kernel in event.kernels)
            own[found] += event.self_cpu_time_total if event.name.startswith("aten::") else 0
        elif not getattr(event, "is_user_annotation", False):
            on_device.append(event)
    moved = [event for event in on_device if event.name.startswith(("Memcpy", "Memset"))]
    copies = Counter(event.name.split()[1] for event in moved if event.name.startswith("Memcpy"))
    shares = by_class if on_device else own
    total = sum(shares.values()) or 1
    gpu = bool(on_device)
    return Profiled(
        kernels=(len(on_device) - len(moved)) / steps if gpu else None,
        seconds=1e-6 * covered(on_device) / steps if gpu else None,
        up=copies["HtoD"] / steps if gpu else None,
        down=copies["DtoH"] / steps if gpu else None,
        waits=sum(names[name] for name in WAITS) / steps,
        shares={name: shares[name] / total for name in ("products", "gathers", "rest")},
    )


def class_of(name: str) -> str:
    """Return what an op of PyTorch is for.

    Examples
    --------
    >>> class_of("aten::addmm"), class_of("aten::cat"), class_of("aten::tanh")
    ('products', 'gathers', 'rest')
    """
    op = name.removeprefix("aten::")
    return "products" if op in PRODUCTS else "gathers" if op in GATHERS else "rest"


def covered(events: Iterable[Any]) -> float:
    """Return in how many microseconds at least one of some events ran."""
    total = 0.0
    reached = float("-inf")
    for begin, end in sorted((event.time_range.start, event.time_range.end) for event in events):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
