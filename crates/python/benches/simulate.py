"""What `simulate` costs above the library and above `soteria train`, and what a call of the
accountant costs.

    python benches/simulate.py [path of soteria]

Needs an installed wheel, and the program for the comparison of rounds. Times are processor time,
which hardly depends on what else runs here. Overhead is that of the whole call less that of the
native run, which is what `soteria train` does after reading its files; `soteria train` reads text
where this copies arrays. Rounds are compared by the difference of a long and a short run.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

import soteriafl as sf
from soteriafl import _soteriafl as native


def median(of, repeats):
    of()
    times = [of() for _ in range(repeats)]
    return 1e3 * statistics.median(times)


def overhead(X, y, rounds):
    """Milliseconds of one run above the native one."""
    inside = 0.0
    run_native = native.simulate

    def timed(**arguments):
        nonlocal inside
        start = time.process_time()
        finished = run_native(**arguments)
        inside += time.process_time() - start
        return finished

    def once():
        nonlocal inside
        inside, start = 0.0, time.process_time()
        run = sf.simulate(X, y, rounds=rounds, progress=False)
        run.privacy, run.model, run.rounds  # noqa: B018
        return time.process_time() - start - inside

    native.simulate = timed
    try:
        return median(once, 5)
    finally:
        native.simulate = run_native


def call(of):
    def once():
        start = time.process_time()
        of()
        return time.process_time() - start

    return median(once, 201)


NETWORK = {
    "data.source": "synthetic:6000x784x10",
    "data.clients": 10,
    "model.kind": "mlp",
    "model.hidden": [64],
    "algorithm.preset": "soteriafl-sgd",
    "algorithm.batch": 128,
    "algorithm.fraction": 0.05,
    "algorithm.coordinates": "own",
    "privacy.sigma": 0.0186,
    "privacy.clip": 1.0,
    "run.eval_every": 0,
}


def rounds_against(program, few=200, many=2200, repeats=5):
    """Milliseconds of a round of the 784-64-10 network, here and by `soteria train`, in turns; one
    thread."""

    def here(rounds):
        start = time.process_time()
        settings = NETWORK | {"algorithm.rounds": rounds}
        sf.simulate(config=settings, threads=1, progress=False)
        return time.process_time() - start

    def there(rounds):
        settings = NETWORK | {"algorithm.rounds": rounds}
        given = []
        for key, value in settings.items():
            given += ["--set", f"{key}={json.dumps(value)}"]
        with tempfile.TemporaryDirectory() as out:
            command = [program, "train", "--quiet", "--force", "--threads", "1", "--out", out]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([*command, *given], check=True, stdout=subprocess.DEVNULL)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    def difference(run):
        return 1e3 * (run(many) - run(few)) / (many - few)

    found = [(difference(here), difference(there)) for _ in range(repeats)]
    ours, theirs = (statistics.median(times) for times in zip(*found, strict=True))
    ratio = statistics.median(here / there for here, there in found)
    print(f"784-64-10: simulate {ours:.3f} ms a round, soteria train {theirs:.3f} ms: {ratio:.3f}")


def main():
    rng = np.random.default_rng(0)
    print("simulate, above the native run, median of 5 runs:")
    for rows, features, rounds in [(2000, 10, 50), (32_561, 123, 100), (60_000, 784, 1)]:
        X = rng.uniform(-1, 1, (rows, features)).astype(np.float32)
        y = (X[:, 0] > 0).astype(int)
        size = f"{rows} x {features}, {rounds} rounds"
        print(f"  {size:28} float32 {overhead(X, y, rounds):7.1f} ms", end="")
        print(f"   float64 {overhead(X.astype(np.float64), y, rounds):7.1f} ms")
    mechanism = sf.Mechanism(records=1000)
    asked = {"sigma": 0.05, "rounds": 10, "delta": 1e-5}
    micro = 1e3 * call(lambda: sf.epsilon(mechanism, **asked))
    print(f"epsilon of a closed form: {micro:.0f} microseconds a call")


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("ignore")
    main()
    if len(sys.argv) > 1:
        rounds_against(sys.argv[1])
