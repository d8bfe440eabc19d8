"""A Lightning module: its training step folds, so Lightning's strategies average the gradients.

python examples/scaling/torch_lightning.py [--devices 2] [--precision bf16-true] [--out weights.pt]
"""

import argparse

import lightning
import torch
from formulas import examples, record
from multifold_torch import Folded
from torch_model import Logic, collate, mean_loss

import multifold
from multifold.sampling import CallBudget, mean_weight


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.folded = Folded(Logic())

    def training_step(self, batch, index):
        traces, labels = batch
        weight = mean_weight(len(labels), self.trainer.world_size, self.total)
        return weight * mean_loss(self.folded(traces), labels)

    def total(self, count):
        return int(self.trainer.strategy.reduce(torch.tensor(count), reduce_op="sum"))

    def train_dataloader(self):
        formulas, labels = examples(200)
        traces = multifold.traces(record, formulas)
        costs = [len(trace) for trace in traces]
        ranks = self.trainer.world_size
        budget = CallBudget(costs, calls=300, shards=ranks, shard=self.trainer.global_rank)
        pairs = list(zip(traces, labels, strict=True))
        return torch.utils.data.DataLoader(pairs, batch_sampler=budget, collate_fn=collate)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.5)


def main(devices, precision, out, epochs=2):
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        strategy="ddp" if devices > 1 else "auto",
        precision=precision,
        max_epochs=epochs,
        use_distributed_sampler=False,  # each rank has its own shard already
        **dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar"), False),
        enable_model_summary=False,
    )
    module = Classifier()
    trainer.fit(module)
    if out and trainer.is_global_zero:
        torch.save(module.state_dict(), out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--precision", default="32-true")
    parser.add_argument("--out")
    main(**vars(parser.parse_args()))
