"""DistributedDataParallel, or FSDP2, over minibatches of equal work.

torchrun --nproc-per-node 2 examples/scaling/torch_ranks.py [--fsdp] [--out weights.pt]
"""

import argparse

import torch
import torch.distributed as dist
from formulas import examples, record
from multifold_torch import Folded
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch_model import Logic, collate, mean_loss

import multifold
from multifold.sampling import CallBudget, mean_weight


def total(count):
    """Return the sum over all ranks."""
    counts = torch.tensor(count)
    dist.all_reduce(counts)
    return int(counts)


def main(fsdp, out, epochs=2):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    world = dist.get_world_size()
    formulas, labels = examples(200)
    traces = multifold.traces(record, formulas)
    budget = CallBudget([len(trace) for trace in traces], calls=300, shards=world, shard=rank)
    pairs = list(zip(traces, labels, strict=True))
    loader = torch.utils.data.DataLoader(pairs, batch_sampler=budget, collate_fn=collate)

    module = Folded(Logic())
    mesh = dist.init_device_mesh("cpu", (world,))
    module = fully_shard(module, mesh=mesh) if fsdp else DistributedDataParallel(module)
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    for epoch in range(epochs):
        budget.set_epoch(epoch)
        for batch, wanted in loader:
            weight = mean_weight(len(wanted), world, total)
            loss = weight * mean_loss(module(batch), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}, rank {rank}: {len(budget)} steps, loss {loss.item():.3f}")

    weights = {name: x.full_tensor() if fsdp else x for name, x in module.state_dict().items()}
    if out and rank == 0:
        torch.save(weights, out)
    dist.barrier()  # a rank that leaves closes connections that another may still use
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fsdp", action="store_true")
    parser.add_argument("--out")
    main(**vars(parser.parse_args()))
