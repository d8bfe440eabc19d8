"""Many small networks, each with weights of its own, trained at once: modules of one form share launches.

python examples/population.py [--networks 240]

Networks of different depths and widths learn a function each, an ensemble votes, and four tasks with
adapters of their own share a minibatch. Each module keeps its parameters, optimizer and state_dict.
"""

import argparse
import itertools
import time

import torch
from torch import nn

import multifold


class Network(nn.Module):
    """Layers of one width, as many as its depth says."""

    def __init__(self, width, depth):
        super().__init__()
        sizes = [1, *[width] * depth]
        pairs = itertools.pairwise(sizes)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in pairs)
        self.last = nn.Linear(width, 1)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.last(x)


class Adapter(nn.Module):
    """A low-rank addition to a layer: two thin matrices."""

    def __init__(self, width, rank=4):
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width, bias=False)

    def forward(self, x):
        return self.up(self.down(x))


def record(fold, network, x):
    """The loop of `Network.forward`, with `fold.add` in the place of calls."""
    for layer in network.layers:
        x = fold.add(layer, x)
    return fold.add(network.last, x)


def population(number, steps):
    """Train networks of depths 1 to 8 and three widths, each on a sine of its own."""
    networks = [Network((8, 16, 24)[i % 3], 1 + i % 8) for i in range(number)]
    optimizer = torch.optim.SGD([{"params": x.parameters(), "lr": 0.01 / len(x.layers)} for x in networks])
    fold = multifold.Fold(backend="torch")
    losses, seconds, found = [], {"loop": 0.0, "fold": 0.0}, {}
    for step in range(steps):
        xs = torch.rand(number, 1, 1) * 6 - 3
        wanted = torch.sin(xs[:, 0] * torch.linspace(0.5, 1.5, number)[:, None])

        def loop(xs=xs):
            return torch.cat([network(x) for network, x in zip(networks, xs, strict=True)])

        def folded(xs=xs):
            fold.reset()
            return fold([[record(fold, network, x) for network, x in zip(networks, xs, strict=True)]])[0]

        for name, run in (("loop", loop), ("fold", folded)):
            began = time.perf_counter()
            optimizer.zero_grad()
            found[name] = run()
            loss = (found[name] - wanted).square().mean()
            (number * loss).backward()
            if step >= steps // 2:  # the first launches of an op are tried
                seconds[name] += time.perf_counter() - began
        torch.testing.assert_close(found["fold"], found["loop"])
        optimizer.step()
        losses.append(loss.item())
    calls = f"{len(fold)} calls in {len(fold.schedule().launches)} launches"
    print(f"{number} networks, {calls}: loss {losses[0]:.2f} to {losses[-1]:.2f}")
    print(f"training is {seconds['loop'] / seconds['fold']:.1f} times as fast as by the loop")


def ensemble(members):
    """Let members of one form, trained or not, answer the same question."""
    networks = [Network(16, 2) for _ in range(members)]
    fold = multifold.Fold(backend="torch")
    with torch.no_grad():
        for _ in range(2):
            fold.reset()
            votes = fold([[record(fold, network, torch.ones(1, 1)) for network in networks]])[0]
    launches = len(fold.schedule().launches)
    print(f"an ensemble of {members}: {votes.mean():.2f} +- {votes.std():.2f}, {launches} launches")


def adapters(rows, width=64):
    """Run a shared layer and, for each row, the adapter of its task."""
    shared, own = nn.Linear(width, width), [Adapter(width) for _ in range(4)]
    xs, tasks = torch.randn(rows, 1, width), torch.randint(4, (rows,)).tolist()
    fold = multifold.Fold(backend="torch")
    for _ in range(2):
        fold.reset()
        layers = [(fold.add(shared, x), fold.add(own[i], x)) for x, i in zip(xs, tasks, strict=True)]
        found = fold([[fold.add(torch.add, *pair) for pair in layers]])[0]
    expected = [shared(x) + own[i](x) for x, i in zip(xs, tasks, strict=True)]
    torch.testing.assert_close(found, torch.cat(expected))
    print(f"{rows} rows of four tasks: {len(fold.schedule().launches)} launches")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=240)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    population(options.networks, options.steps)
    ensemble(32)
    adapters(64)


if __name__ == "__main__":
    main()
