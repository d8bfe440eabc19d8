"""Random plain programs, compared with the loop: see `plain_programs.programs` for what they are.

`tests/imported/sweep_programs.py` runs thousands of them, and tests/lazy/test_programs.py some.
"""

from plain_programs.comparing import Verdict, kinds_needed, shrunk, verdict_of
from plain_programs.frameworks import Numpy
from plain_programs.of_others import Jax, Tensorflow
from plain_programs.of_torch import Torch
from plain_programs.programs import Program

FRAMEWORKS = {"numpy": Numpy, "torch": Torch, "jax": Jax, "tensorflow": Tensorflow}

__all__ = ["FRAMEWORKS", "Program", "Verdict", "kinds_needed", "shrunk", "verdict_of"]
