"""What a step needs of CUDA graphs: a stream beside for its first runs, and the capture of one run.

This is the only module that a CPU never enters. It follows PyTorch's rules for the capture of a whole step
(https://docs.pytorch.org/docs/stable/notes/cuda.html#whole-network-capture).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch


def can_capture(device: torch.device) -> bool:
    """Return whether PyTorch can capture graphs on a device: whether it is a CUDA device."""
    return device.type == "cuda"


@contextlib.contextmanager
def beside(device: torch.device) -> Iterator[list[str]]:
    """Return a context that runs on another stream, as PyTorch wants the runs before a capture.

    What it gives becomes a list of what made the host wait for the device, which no graph can hold. To find
    that out by a capture would not do: one that fails leaves PyTorch's generators of random numbers
    unusable for the steps that then run without a graph.
    """
    waits: list[str] = []
    own = torch.cuda.current_stream(device)
    stream = torch.cuda.Stream(device)
    stream.wait_stream(own)
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen, torch.cuda.stream(stream):
            # Python shows a warning of one line once, and a wait that was shown before counts as well.
            warnings.simplefilter("always")
            yield waits
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    for warning in seen:
        if "synchronizing CUDA operation" in str(warning.message):
            waits.append(f"an op waits for the device, at {warning.filename}:{warning.lineno}")
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    own.wait_stream(stream)


def capture(
    compute: Callable[[], Any], device: torch.device, generators: Iterable[torch.Generator]
) -> tuple[Callable[[], None], Any]:
    """Capture ``compute()`` as a graph; return its replay, and the results that each replay overwrites.

    Raises
    ------
    RuntimeError
        If an op does what no graph can hold, as to read a value.
    """
    graph = torch.cuda.CUDAGraph()
    for generator in generators:
        # A graph can draw only from generators that it knows.
        graph.register_generator_state(generator)
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # what a graph has cast lies in its own memory
    try:
        with torch.cuda.device(device), torch.cuda.graph(graph):
            results = compute()
    finally:
        torch.set_autocast_cache_enabled(cached)
    return graph.replay, results
