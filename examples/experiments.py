"""The experiments of ``multifold bench experiments`` from Python: on your frameworks, as one page.

python examples/experiments.py [--experiment a] [--minutes 1] [--folder experiments]

Runs small sizes on all backends that are installed, one cell after the other, and writes a page with
figures. What is in the folder already is not measured again.
"""

import argparse
from pathlib import Path

import multifold
from multifold_bench import report, results
from multifold_bench.experiments import EXPERIMENTS
from multifold_bench.runner import Amount, Runner, run


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiment", choices=EXPERIMENTS, default="a")
    parser.add_argument("--backend", action="append", help="by default all that are installed")
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, default=Path("experiments"))
    arguments = parser.parse_args()

    arguments.folder.mkdir(exist_ok=True)
    file = arguments.folder / "rows.jsonl"
    amount = Amount(quick=True, rounds=3, seconds=0.5)
    runner = Runner(file, data={}, amount=amount, others={}, command="python examples/experiments.py")
    names = arguments.backend or multifold.installed_backends()
    backends = list(map(multifold.load_backend, names))
    chosen = [EXPERIMENTS[arguments.experiment]]
    left = run(runner, backends, chosen, arguments.minutes, advance=print, told=lambda done, total: None)
    if left:
        print(f"There was no time for {left} cells: run it again to go on.")
    print(report.write(arguments.folder, results.read(file)))


if __name__ == "__main__":
    main()
