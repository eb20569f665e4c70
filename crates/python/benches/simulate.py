"""What `simulate` costs above the library, and what a call of the accountant costs.

    python benches/simulate.py

Needs an installed wheel. Times are processor time, which hardly depends on what else runs here:
of the whole call less that of the native run, which is what `soteria train` does after reading its
files. `soteria train` reads text where this copies arrays.
"""

import statistics
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
