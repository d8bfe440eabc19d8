"""An accelerate script: the module and its optimizer are prepared, the loader is a shard already.

torchrun --nproc-per-node 2 examples/scaling/torch_accelerate.py [--out weights.pt]
"""

import argparse

import torch
from accelerate import Accelerator
from formulas import examples, record
from multifold_torch import Folded
from torch_model import Logic, collate, mean_loss

import multifold
from multifold.sampling import CallBudget, mean_weight


def main(out, epochs=2):
    accelerator = Accelerator(cpu=True)
    ranks = accelerator.num_processes
    rank = accelerator.process_index
    formulas, labels = examples(200)
    traces = multifold.traces(record, formulas)
    budget = CallBudget([len(trace) for trace in traces], calls=300, shards=ranks, shard=rank)
    pairs = list(zip(traces, labels, strict=True))
    loader = torch.utils.data.DataLoader(pairs, batch_sampler=budget, collate_fn=collate)

    def total(count):
        """Return the sum over all ranks."""
        return int(accelerator.reduce(torch.tensor(count), "sum"))

    module = Folded(Logic())
    module, optimizer = accelerator.prepare(module, torch.optim.SGD(module.parameters(), 0.5))
    for epoch in range(epochs):
        budget.set_epoch(epoch)
        for batch, wanted in loader:
            weight = mean_weight(len(wanted), ranks, total)
            loss = weight * mean_loss(module(batch), wanted)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    if out and accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(module).state_dict(), out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out")
    main(**vars(parser.parse_args()))
