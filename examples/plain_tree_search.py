"""Tree search as it is published for AlphaZero, recursive and with `.item()`, played in many games at once.

python examples/plain_tree_search.py [--games 32] [--moves 4] [--simulations 25]

Othello on 6 x 6 fields. `Network`, `MCTS` and `play_game` know nothing of multifold: a search asks the
network for one position and reads what it answers. `multifold.batched` plays all games, and a game that
waits for its answer lets the others go on. Compares moves and visit counts with the loop over games, and
the time with the loop, and with a search rewritten by hand to ask for the positions of all games together.
"""

import argparse
import itertools
import math
import random
import time

import numpy as np
import torch

import multifold

SIZE = 6
PASS = SIZE * SIZE
WAYS = [(x, y) for x in (-1, 0, 1) for y in (-1, 0, 1) if x or y]


def flipped(board, action):
    """Return the stones of the other player that a move turns over; own stones are 1, the others' -1."""
    found = []
    for x, y in WAYS:
        row, column = divmod(action, SIZE)
        line = []
        while 0 <= (row := row + x) < SIZE and 0 <= (column := column + y) < SIZE:
            if board[row, column] != -1:
                found += line if board[row, column] == 1 else []
                break
            line.append((row, column))
    return found


def valid_moves(board):
    found = [action for action in range(PASS) if not board.flat[action] and flipped(board, action)]
    return found or [PASS]


def next_board(board, action):
    """Return the board after a move, as the other player sees it."""
    board = board.copy()
    if action != PASS:
        for field in [divmod(action, SIZE), *flipped(board, action)]:
            board[field] = 1
    return -board


def winner(board):
    """Return 1 if the player has won, -1 or 0 if not, None while the game goes on."""
    goes_on = valid_moves(board) != [PASS] or valid_moves(-board) != [PASS]
    return None if goes_on else float(np.sign(board.sum()))


class Network(torch.nn.Module):
    def __init__(self, channels=64):
        super().__init__()
        sizes = [1, channels, channels, channels]
        layers = [torch.nn.Conv2d(*pair, 3, padding=1) for pair in itertools.pairwise(sizes)]
        norms = [torch.nn.BatchNorm2d(channels) for _ in layers]
        pairs = zip(layers, norms, strict=True)
        self.body = torch.nn.Sequential(*[x for pair in pairs for x in (*pair, torch.nn.ReLU())])
        self.policy = torch.nn.Linear(channels * PASS, PASS + 1)
        self.value = torch.nn.Linear(channels * PASS, 1)

    def forward(self, boards):  # (n, 6, 6) -> (n, 37), (n, 1)
        x = self.body(boards.view(-1, 1, SIZE, SIZE)).flatten(1)
        return torch.log_softmax(self.policy(x), dim=1), torch.tanh(self.value(x))

    def predict(self, board):
        """Return the probabilities of the moves and the value of one board."""
        with torch.no_grad():
            policy, value = self(torch.from_numpy(board.astype(np.float32))[None])
        return torch.exp(policy)[0].numpy(), value.item()


class MCTS:
    def __init__(self, network, simulations):
        self.network = network
        self.simulations = simulations
        self.Qsa, self.Nsa, self.Ns, self.Ps, self.Vs, self.Es = {}, {}, {}, {}, {}, {}

    def visit_counts(self, board):
        for _ in range(self.simulations):
            self.search(board)
        return self.counts(board)

    def counts(self, board):
        return [self.Nsa.get((board.tobytes(), action), 0) for action in range(PASS + 1)]

    def search(self, board):
        s = board.tobytes()
        if s not in self.Es:
            self.Es[s] = winner(board)
        if self.Es[s] is not None:
            return -self.Es[s]
        if s not in self.Ps:
            policy, value = self.network.predict(board)
            self.expand(board, policy)
            return -value
        action = self.best(s)
        value = self.search(next_board(board, action))
        self.learn(s, action, value)
        return -value

    def expand(self, board, policy):
        s = board.tobytes()
        self.Vs[s] = valid_moves(board)
        total = sum(float(policy[action]) for action in self.Vs[s])
        self.Ps[s] = {action: float(policy[action]) / total for action in self.Vs[s]}
        self.Ns[s] = 0

    def best(self, s):
        def bound(action):
            count = self.Nsa.get((s, action), 0)
            return self.Qsa.get((s, action), 0.0) + self.Ps[s][action] * math.sqrt(self.Ns[s] + 1e-8) / (
                1 + count
            )

        return max(self.Vs[s], key=bound)

    def learn(self, s, action, value):
        count = self.Nsa.get((s, action), 0)
        self.Qsa[s, action] = (count * self.Qsa.get((s, action), 0.0) + value) / (count + 1)
        self.Nsa[s, action] = count + 1
        self.Ns[s] += 1


def opening(seed):
    """Return a board after four moves by chance."""
    board = np.zeros((SIZE, SIZE), np.int8)
    board[2, 2] = board[3, 3] = -1
    board[2, 3] = board[3, 2] = 1
    chance = random.Random(seed)
    for _ in range(4):
        board = next_board(board, chance.choice(valid_moves(board)))
    return board


def play_game(network, seed, moves, simulations):
    """Return the moves of a game, and how often its search has tried each action."""
    board, search, played = opening(seed), MCTS(network, simulations), []
    for _ in range(moves):
        if winner(board) is not None:
            break
        counts = search.visit_counts(board)
        played.append((int(np.argmax(counts)), counts))
        board = next_board(board, played[-1][0])
    return played


def lockstep(network, seeds, moves, simulations):
    """The same games, written by hand so that the network is asked for the positions of all of them."""
    boards = [opening(seed) for seed in seeds]
    searches = [MCTS(network, simulations) for _ in seeds]
    played = [[] for _ in seeds]
    for _ in range(moves):
        going_on = [i for i, board in enumerate(boards) if winner(board) is None]
        for _ in range(simulations):
            asked = []
            for i in going_on:
                search, board, path = searches[i], boards[i], []
                while (s := board.tobytes()) in search.Ps:
                    path.append((s, search.best(s)))
                    board = next_board(board, path[-1][1])
                search.Es.setdefault(s, winner(board))
                asked.append((i, board, path, search.Es[s]))
            new = [np.float32(board) for _, board, _, ended in asked if ended is None]
            answers = iter(())
            if new:
                with torch.no_grad():
                    policies, values = network(torch.from_numpy(np.stack(new)))
                answers = zip(torch.exp(policies).numpy(), values.flatten().tolist(), strict=True)
            for i, board, path, ended in asked:
                value = ended
                if value is None:
                    policy, value = next(answers)
                    searches[i].expand(board, policy)
                for s, action in reversed(path):
                    value = -value
                    searches[i].learn(s, action, value)
        for i in going_on:
            counts = searches[i].counts(boards[i])
            played[i].append((int(np.argmax(counts)), counts))
            boards[i] = next_board(boards[i], played[i][-1][0])
    return played


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, default in (("games", 32), ("moves", 4), ("simulations", 25), ("channels", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    network = Network(asked.channels).eval()
    sizes = {"moves": asked.moves, "simulations": asked.simulations}
    run = multifold.batched(play_game, cells=[Network], join="list")  # needs greenlet
    ways = {
        "the loop": lambda: [play_game(network, seed, **sizes) for seed in range(asked.games)],
        "batched": lambda: run([network] * asked.games, range(asked.games), **sizes),
        "by hand": lambda: lockstep(network, range(asked.games), **sizes),
    }
    run([network], [0], moves=1, simulations=2)  # the first use of torch.func imports for a while
    played, times = {}, {}
    for name, way in ways.items():
        start = time.perf_counter()
        played[name] = way()
        times[name] = time.perf_counter() - start
    assert played["batched"] == played["the loop"] == played["by hand"]
    rounds = len(run.explain().rounds)
    print(f"{asked.games} games: moves and visit counts are those of the loop, in {rounds:,} rounds")
    for name, own in times.items():
        print(f"{name:9} {own:6.2f} s {times['the loop'] / own:5.1f} x")


if __name__ == "__main__":
    main()
