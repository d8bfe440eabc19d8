"""Draws: calls that draw random numbers, each from the stream of its own example.

Which calls draw is seen in their dry run: PyTorch tags the functions that take numbers from a generator.
With ``batched(fn, seed=0)`` such a call gets one operand more, the state of the generators as it is at the
call, and the example's stream moves on at once, as in the loop. The launch sets that state for each row, so
it draws what the loop draws, whatever runs beside it and whenever it runs.

How many numbers a function takes depends on its shapes, and for a few on values. So the operand ends in a
digest of the state that the call was to leave, which the launch compares.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from multifold.errors import RecordError
from multifold_torch.hooks import DispatchMode

DRAWS = torch.Tag.nondeterministic_seeded
"""What PyTorch says of functions that draw."""

BY_VALUES = {
    *(torch.ops.aten.poisson, torch.ops.aten.binomial, torch.ops.aten._standard_gamma),
    *(torch.ops.aten._sample_dirichlet, torch.ops.aten.rrelu_with_noise, torch.ops.aten.rrelu_with_noise_),
}
"""Functions that draw as many numbers as the values of their arguments say."""

DIGEST = 8
"""Bytes that stand for a state where two are only compared."""


class Draws(DispatchMode):
    """A context that notes what is drawn inside of it, and in the end puts generators back that were given.

    Attributes
    ----------
    any : bool
        Whether a function has drawn.
    by_values : bool
        Whether one of them draws as many numbers as values say.
    given : dict of int to (torch.Generator, Tensor)
        The generators that functions were given, with their states of before; without one they draw from
        PyTorch's own. PyTorch makes a new object for a generator each time, so they are told by address.
    ran : list of function
        The functions of PyTorch's dispatcher that ran inside of it, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.any = self.by_values = False
        self.given: dict[int, tuple[torch.Generator, Tensor]] = {}
        self.ran: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.ran.append(func)
        if DRAWS in func.tags:
            self.any = True
            self.by_values |= func.overloadpacket in BY_VALUES
            given = [x for x in (*args, *kwargs.values()) if isinstance(x, torch.Generator)]
            self.given |= {x._cdata: (x, x.get_state()) for x in given if x._cdata not in self.given}
        return func(*args, **kwargs)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for generator, state in self.given.values():
            generator.set_state(state)


class Streams:
    """The generators that a kind of call draws from.

    Parameters
    ----------
    draws : Draws
        What its dry run has shown.
    device : torch.device
        The device that it computes on.
    """

    def __init__(self, draws: Draws, device: torch.device) -> None:
        self.by_values = draws.by_values
        found = [torch.default_generator, *[generator for generator, _ in draws.given.values()]]
        if device.type == "cuda":
            index = torch.cuda.current_device() if device.index is None else device.index
            found.append(torch.cuda.default_generators[index])
        self.generators = [*{x._cdata: x for x in found}.values()]
        self.sizes = [len(x) for x in self.read()]

    def read(self) -> list[Tensor]:
        """Return the state of each generator, bytes ``(m,)`` on the CPU."""
        return [x.get_state() for x in self.generators]

    def write(self, states: Sequence[Tensor]) -> None:
        """Set the state of each generator."""
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)

    def operand(self, before: Sequence[Tensor]) -> Tensor:
        """Return the operand of a call: the states ``before`` it, and a digest of those now, after it."""
        return torch.cat((*before, digest(self.read())))

    def begin(self, operand: Tensor) -> None:
        """Set the states that an operand begins with."""
        self.write([x.clone() for x in operand[:-DIGEST].split(self.sizes)])

    def refuse_other(self, operand: Tensor, name: str) -> None:
        """Raise `RecordError` unless the states now are those that the call was to leave.

        ``name`` is that of the call.
        """
        if not torch.equal(operand[-DIGEST:], digest(self.read())):
            raise RecordError(
                f"{name} draws as many random numbers as its values say. With seed= how many must be known "
                "when it is recorded.",
                "read what decides before the call, as by x.item(); or leave out seed=.",
            )


def digest(states: Sequence[Tensor]) -> Tensor:
    """Return eight bytes that differ if the states do."""
    found = hashlib.blake2b(torch.cat(list(states)).numpy().tobytes(), digest_size=DIGEST)
    return torch.frombuffer(bytearray(found.digest()), dtype=torch.uint8)
