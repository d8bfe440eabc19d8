"""Ray Train runs the loop on two workers; one that dies is started again from the last epoch's weights.

python examples/scaling/ray_train.py [--storage folder] [--workers 2]
"""

import argparse
import tempfile
from pathlib import Path

import ray.train
import torch
import torch.distributed as dist
from formulas import examples, record
from multifold_torch import Folded
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch_model import Logic, collate, mean_loss

import multifold
from multifold.sampling import CallBudget, mean_weight


def total(count):
    """Return the sum over all workers."""
    counts = torch.tensor(count)
    dist.all_reduce(counts)
    return int(counts)


def loop(config):
    """Train on one worker; Ray has joined the workers to a process group."""
    rank = ray.train.get_context().get_world_rank()
    world = ray.train.get_context().get_world_size()
    torch.set_num_threads(1)
    formulas, labels = examples(200)
    traces = multifold.traces(record, formulas)
    budget = CallBudget([len(trace) for trace in traces], calls=300, shards=world, shard=rank)
    pairs = list(zip(traces, labels, strict=True))
    loader = torch.utils.data.DataLoader(pairs, batch_sampler=budget, collate_fn=collate)
    model = Logic()
    first = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            kept = torch.load(Path(folder) / "kept.pt")
        first = kept["epoch"] + 1
        model.load_state_dict(kept["model"])
    module = prepare_model(Folded(model))
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    for epoch in range(first, config["epochs"]):
        budget.set_epoch(epoch)
        if epoch == 1:
            config.get("in_second_epoch", lambda rank: None)(rank)
        for batch, wanted in loader:
            weight = mean_weight(len(wanted), world, total)
            loss = weight * mean_loss(module(batch), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:
            torch.save({"epoch": epoch, "model": model.state_dict()}, Path(folder) / "kept.pt")
            kept = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
            ray.train.report({"epoch": epoch, "loss": loss.item()}, checkpoint=kept)


def trained(storage, workers, **config):
    """Return what Ray Train returns: the last metrics, and the last checkpoint."""
    return TorchTrainer(
        loop,
        train_loop_config={"epochs": 2, **config},
        torch_config=TorchConfig(backend="gloo", timeout_s=60),
        scaling_config=ray.train.ScalingConfig(num_workers=workers),
        run_config=ray.train.RunConfig(
            storage_path=str(storage),
            # Where others hold the CPUs of the cluster, Ray Train asks for them again each 60 seconds
            # (RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S). Without a limit it does so for ever, without a word.
            failure_config=ray.train.FailureConfig(max_failures=1, controller_failure_limit=2),
        ),
    ).fit()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--storage", default=Path("ray_results").resolve())
    parser.add_argument("--workers", type=int, default=2)
    print(trained(**vars(parser.parse_args())).metrics)
