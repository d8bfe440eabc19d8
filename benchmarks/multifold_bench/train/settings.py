"""What a run is made of, with optimizers and schedules defined as formulas that hold everywhere.

Frameworks give the same name to different updates: they divide by the root of a sum or of a sum and
epsilon, and begin Adagrad's sums at 0 or at 0.1. The formulas here are those that all four agree on;
each adapter sets its framework's own optimizer so that it computes them.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from multifold.errors import MultifoldError

OPTIMIZERS = ("adagrad", "adam", "sgd")
SCHEDULES = ("constant", "exponential", "cosine")


class SettingsError(MultifoldError, ValueError):
    """Settings that no run can have, or that are not those of the run that is to be continued."""


@dataclass(frozen=True)
class Settings:
    """How a model is trained.

    Attributes
    ----------
    model : str
        One of the task's models; its first one if empty.
    width : int
        The width of the model's states; the model's usual one if 0.
    epochs, batch : int
        How often all examples are seen, and how many of them make a step.
    seed : int
        Of the initial weights and of the order of the examples.
    optimizer : str
        With ``g`` the gradient and ``r`` the rate of the step:

        - ``"adagrad"``: ``s += g * g; w -= r * g / sqrt(s)``, and ``s`` begins at `accumulator`.
        - ``"adam"``: ``m += 0.1 * (g - m); v += 0.001 * (g * g - v)``, and with ``m`` and ``v``
          divided by ``1 - 0.9 ** t`` and ``1 - 0.999 ** t``, ``w -= r * m / (sqrt(v) + 1e-8)``.
          TensorFlow and MXNet add their epsilon before that division of ``v``: gradients below about
          1e-6 are the only ones that see it.
        - ``"sgd"``: ``w -= r * g``.
    rate : float
        The learning rate of the first step.
    schedule : str
        ``"constant"``; ``"exponential"``: times `decay` after each epoch; ``"cosine"``: down to 0 over
        all steps, along half a wave.
    decay : float
        Of the schedule ``"exponential"``.
    accumulator : float
        Where Adagrad's sums of squares begin; more than 0, so that no epsilon is needed.
    l2 : float
        Half of this times the sum of all squared weights is added to the loss, whatever the optimizer.

    Raises
    ------
    SettingsError
        If a value is none of those that it may have.

    Examples
    --------
    >>> Settings(rate=0.1, schedule="exponential", decay=0.5).rate_at(25, epoch_steps=10)
    0.025
    """

    model: str = ""
    width: int = 0
    epochs: int = 5
    batch: int = 25
    seed: int = 0
    optimizer: str = "adagrad"
    rate: float = 0.05
    schedule: str = "constant"
    decay: float = 0.9
    accumulator: float = 1e-4
    l2: float = 0.0

    def __post_init__(self) -> None:
        for name, known in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
            if getattr(self, name) not in known:
                raise SettingsError(
                    f"Expected {name} out of {', '.join(known)}. Received {getattr(self, name)!r}."
                )
        limits = {"epochs": 1, "batch": 1, "width": 0, "seed": 0, "l2": 0}
        for name, least in limits.items():
            if not getattr(self, name) >= least:
                raise SettingsError(f"Expected {name} from {least} on. Received {getattr(self, name)}.")
        for name in ("rate", "accumulator"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"Expected {name} above 0. Received {getattr(self, name)}.")
        if not 0 < self.decay <= 1:
            raise SettingsError(f"Expected decay above 0 and up to 1. Received {self.decay}.")

    def rate_at(self, step: int, epoch_steps: int) -> float:
        """Return the learning rate of a step, counted from 0: the definition of the schedules."""
        if self.schedule == "exponential":
            return self.rate * self.decay ** (step // epoch_steps)
        if self.schedule == "cosine":
            return self.rate * (1 + math.cos(math.pi * step / (epoch_steps * self.epochs))) / 2
        return self.rate

    def record(self) -> dict[str, Any]:
        """Return the settings as JSON has them."""
        return dataclasses.asdict(self)


def refuse_unknown(names: Iterable[str]) -> None:
    """Refuse a name that is none of the settings.

    Raises
    ------
    SettingsError
        With the name that may have been meant.
    """
    known = [field.name for field in dataclasses.fields(Settings)]
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise SettingsError(
                f"Expected settings of a training: {', '.join(known)}. Received {name}.",
                f"did you mean '{near[0]}'?" if near else "the learning rate is 'rate', for instance.",
            )


def refuse_others(given: Mapping[str, Any], kept: Mapping[str, Any], where: str) -> None:
    """Refuse settings that differ from those of the run in a folder.

    More epochs or fewer are no difference, unless the schedule depends on their number.

    Raises
    ------
    SettingsError
        With all names that differ.
    """
    free = set() if "cosine" in (given.get("schedule"), kept.get("schedule")) else {"epochs"}
    names = [name for name in {**given, **kept} if name not in free]
    other = [name for name in names if given.get(name) != kept.get(name)]
    if other:
        expected = ", ".join(f"{name}={kept.get(name)!r}" for name in other)
        received = ", ".join(f"{name}={given.get(name)!r}" for name in other)
        raise SettingsError(
            f"Expected the settings of the run in {where}: {expected}. Received {received}.",
            "give these, or another folder; to begin anew here, remove the folder first."
            + " With the schedule 'cosine' the rates depend on the number of epochs." * ("epochs" in other),
        )
