"""Code as it stands in PyTorch: what a person's own code does with tensors of one example, recorded.

A pending tensor (`pending`) stands for what a recorded call computes. A function of PyTorch that meets one
is answered from what is known of it, waits for its value, or is recorded (`answers`). A tensor that was
computed stands for a pending one once that is written into it (`written`). A recorded function is a call
whose operands are the rows of all examples (`calls`); how it runs on rows, `rules` say, and `mapped` what
vmap has no rule for. `recorder` keeps what is known of each kind of call, `forms` what is known of a tensor
without values, `changes` what must stay as it is between recording and launch, and `patches` lets calls of
layers and cells be seen. What a call returns is found out by running it on the meta device, once for each
kind of call, so an error of shapes is raised at the line that makes it.
"""

from multifold_torch.lazy.module import BatchedModule
from multifold_torch.lazy.recorder import TorchRecorder

__all__ = ["BatchedModule", "TorchRecorder"]
