"""Monte-Carlo tree search: the leaves of many searches are evaluated together.

python examples/tree_search.py [--games 64] [--simulations 50]

Connect four. A value network learns from random games, then searches with it play against random moves.
Each game is a coroutine: its search awaits the value of a leaf, and all games go on together. Compares
the moves with those of one game after the other.
"""

import argparse
import math
import random
import time

import numpy as np
import torch

import multifold

# A position is two integers, a bit for each field (seven a column, the uppermost stays empty): the
# stones of the player whose turn it is, and all stones.
START = (0, 0)
FULL = sum(0b111111 << 7 * column for column in range(7))


def moves(position):
    return [column for column in range(7) if not position[1] >> (7 * column + 5) & 1]


def play(position, column):
    own, stones = position
    return own ^ stones, stones | (stones + (1 << 7 * column))


def outcome(position):
    """Return the value for the player whose turn it is, None while the game goes on."""
    own, stones = position
    others = own ^ stones
    for step in (1, 6, 7, 8):
        pairs = others & others >> step
        if pairs & pairs >> 2 * step:
            return -1.0
    return 0.0 if stones == FULL else None


def picture(position):
    """Return what the network sees: the stones of both players, (1, 2, 7, 6)."""
    own, stones = position
    sides = np.array([own, own ^ stones], "<u8").view(np.uint8).reshape(2, 8)
    bits = np.unpackbits(sides, axis=1, bitorder="little")[:, :49]
    return torch.from_numpy(bits.reshape(1, 2, 7, 7)[..., :6].astype(np.float32))


class Network(torch.nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.body = torch.nn.Sequential(
            *(torch.nn.Conv2d(2, width, 4, padding=2), torch.nn.ReLU()),
            *(torch.nn.Conv2d(width, width, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten()),
            *(torch.nn.Linear(width * 8 * 7, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)),
        )

    def value(self, pictures):  # (n, 2, 7, 6) -> (n,)
        return torch.tanh(self.body(pictures))[:, 0]


class Tree:
    """A search: how often each position was met, and the sum of what it was worth to its player."""

    def __init__(self, root):
        self.root = root
        self.met = {}

    def descend(self):
        """Return the positions from the root to one that was not met before, or that ends the game."""
        path = [self.root]
        while path[-1] in self.met and outcome(path[-1]) is None:
            tried = math.log(self.met[path[-1]][0])
            path.append(
                max((play(path[-1], m) for m in moves(path[-1])), key=lambda p: self.hope(p, tried))
            )
        return path

    def hope(self, position, tried):
        count, total = self.met.get(position, (0, 0.0))
        return math.inf if not count else -total / count + math.sqrt(tried / count)

    def learn(self, path, value):
        for position in reversed(path):
            count, total = self.met.get(position, (0, 0.0))
            self.met[position] = count + 1, total + value
            value = -value

    def best(self):
        return max(moves(self.root), key=lambda m: self.met.get(play(self.root, m), (0, 0.0))[0])


async def choose(fold, position, simulations):
    tree = Tree(position)
    for _ in range(simulations):
        path = tree.descend()
        value = outcome(path[-1])
        if value is None:
            value = await fold.value(fold.add("value", picture(path[-1])))
        tree.learn(path, value)
    return tree.best()


def game(simulations):
    """Return what plays a game, the search first and then chance; its moves, and who won."""

    async def game(fold, seed):
        chance = random.Random(seed)
        position = START
        made = []
        while outcome(position) is None:
            searches = len(made) % 2 == 0
            move = await choose(fold, position, simulations) if searches else chance.choice(moves(position))
            made.append(move)
            position = play(position, move)
        return {"moves": made, "won": int(outcome(position) and len(made) % 2)}

    return game


def choose_alone(model, position, simulations):
    """The same search without multifold."""
    tree = Tree(position)
    for _ in range(simulations):
        path = tree.descend()
        value = outcome(path[-1])
        tree.learn(path, model.value(picture(path[-1])).item() if value is None else value)
    return tree.best()


def game_alone(model, seed, simulations):
    chance = random.Random(seed)
    position = START
    made = []
    while outcome(position) is None:
        if len(made) % 2 == 0:
            made.append(choose_alone(model, position, simulations))
        else:
            made.append(chance.choice(moves(position)))
        position = play(position, made[-1])
    return made


def learn(model, games, rng):
    """Learn who wins, from positions of random games."""
    seen = []
    values = []
    for _ in range(games):
        line = [START]
        while outcome(line[-1]) is None:
            line.append(play(line[-1], rng.choice(moves(line[-1]))))
        last = outcome(line[-1])
        seen += line
        values += [last * (-1) ** (len(line) - 1 - i) for i in range(len(line))]
    pictures = torch.cat([picture(position) for position in seen])
    values = torch.tensor(values)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.002)
    for rows in torch.randperm(len(pictures)).split(128):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model.value(pictures[rows]), values[rows]).backward()
        optimizer.step()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--games", type=int, default=64)
    parser.add_argument("--simulations", type=int, default=50)
    parser.add_argument("--lessons", type=int, default=1000, help="random games to learn from")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = Network()
    learn(model, arguments.lessons, random.Random(0))

    fold = multifold.Fold(backend="torch")
    with torch.no_grad():
        start = time.perf_counter()
        found = fold.run(model, range(arguments.games), game(arguments.simulations))
        folded = time.perf_counter() - start
        rounds = fold.explain()
        start = time.perf_counter()
        alone = [game_alone(model, seed, arguments.simulations) for seed in range(arguments.games)]
        looped = time.perf_counter() - start
    assert found["moves"].tolist() == [move for made in alone for move in made]
    print(f"{arguments.games} games, {int(found['won'].sum())} won against random moves")
    print(f"{len(rounds.calls):,} positions evaluated in {len(rounds):,} launches")
    print(f"the same moves as one game after the other, {looped / folded:.1f} times as fast")


if __name__ == "__main__":
    main()
