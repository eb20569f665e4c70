"""Whole runs of `soteria train` against a round written in numpy, in turn on the same machine.

usage: against_numpy.py SCRIPT DATA [RUNS]

SCRIPT prints the median milliseconds of a SoteriaFL-SGD round when it is called with `mnist` or `a9a`, a number of rounds,
and MNIST_DIR and A9A in its environment. DATA holds `mnist/` and `a9a/`, as for `soteria train --data-dir`. The network: 784-64-10,
ten clients, batch 128, random-k at 5%; a9a: batch 51. No metrics; two threads here, one there. Needs numpy, and
`cargo build --release` before.
"""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOTERIA = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release" / "soteria"
PROBLEMS = {
    "mnist": (3000, 60, ["algorithm.batch=128", "algorithm.step_size=0.6", "privacy.sigma=0.0186", "privacy.clip=1", "model.activation=sigmoid"]),
    "a9a": (30000, 2000, ["algorithm.batch=51", "algorithm.step_size=0.3", "privacy.sigma=0.0028", "privacy.clip=0.5"]),
}


def theirs(script, data, problem, rounds):
    environment = dict(os.environ, MNIST_DIR=f"{data}/mnist", A9A=f"{data}/a9a/a9a.gz", OMP_NUM_THREADS="1")
    command = [sys.executable, script, problem, str(rounds)]
    return float(subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout)


def ours(data, problem, rounds, settings):
    with tempfile.TemporaryDirectory() as out:
        command = [SOTERIA, "-q", "train", "--json", "--force", "--threads", "2", "--data-dir", data, "--out", out]
        common = [f"data.source={problem}", "algorithm.preset=soteriafl-sgd", f"algorithm.rounds={rounds}", "run.eval_every=0"]
        for setting in common + settings:
            command += ["--set", setting]
        summary = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return 1e3 * summary["seconds"]["training"] / rounds


def main():
    script, data = sys.argv[1:3]
    runs = int(sys.argv[3]) if len(sys.argv) > 3 else 5
    ratios = {problem: [] for problem in PROBLEMS}
    for _ in range(runs):
        for problem, (rounds, rounds_there, settings) in PROBLEMS.items():
            before = theirs(script, data, problem, rounds_there)
            here = ours(data, problem, rounds, settings)
            there = (before + theirs(script, data, problem, rounds_there)) / 2
            ratios[problem].append(there / here)
            print(f"{problem:6} numpy {there:8.4f} ms   soteria {here:8.4f} ms   ratio {there / here:5.1f}", flush=True)
    for problem, found in ratios.items():
        print(f"{problem:6} {min(found):.1f} to {max(found):.1f}, median {statistics.median(found):.1f}")


main()
