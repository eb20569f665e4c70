#!/usr/bin/env python3
"""Compares this accountant with Google's dp_accounting (pip install dp-accounting==0.6.0).

Not part of the test suite: it needs Python and minutes. From the repository root:

    cargo build --release -p soteriafl-accountant --example cost
    python3 crates/accountant/tests/compare_dp_accounting.py --seconds 300

For random settings it checks that our epsilon is never below dp_accounting's optimistic bound and
never above its pessimistic one by more than 0.1 percent, and prints the speed of both in the same
run: epsilon, the golden mixtures, calibration. dp_accounting's mass-error (composed masses that sum
to more than one) makes its bounds drift with the number of rounds; rows where its own two bounds
differ by more than 1 percent say nothing and are counted apart.
"""

import argparse
import csv
import math
import pathlib
import random
import subprocess
import time

from dp_accounting import dp_event
from dp_accounting import mechanism_calibration
from dp_accounting import privacy_accountant
from dp_accounting.pld import pld_privacy_accountant
from dp_accounting.pld import privacy_loss_distribution as pld

ROOT = pathlib.Path(__file__).resolve().parents[3]
RELATION = privacy_accountant.NeighboringRelation
RELATIONS = {"zero-out": RELATION.ADD_OR_REMOVE_ONE, "replace-one": RELATION.REPLACE_ONE}


class Ours:
    """One process that answers a line with a line: `value seconds`."""

    def __init__(self, binary):
        self.process = subprocess.Popen(
            [binary], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def ask(self, *words):
        self.process.stdin.write(" ".join(str(word) for word in words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().split()
        if len(answer) != 2:
            raise RuntimeError(f"{words}: {' '.join(answer)}")
        return float(answer[0]), float(answer[1])

    def epsilon(self, adjacency, sigma, shifts, probabilities, rounds, delta):
        parts = [f"{s!r}:{p!r}" for s, p in zip(shifts, probabilities)]
        return self.ask("epsilon", adjacency, repr(sigma), rounds, repr(delta), *parts)


def theirs(adjacency, sigma, rate, rounds, delta, pessimistic, interval):
    start = time.perf_counter()
    one = pld.from_gaussian_mechanism(
        sigma,
        pessimistic_estimate=pessimistic,
        value_discretization_interval=interval,
        sampling_prob=rate,
        use_connect_dots=pessimistic,
        neighboring_relation=RELATIONS[adjacency],
    )
    epsilon = one.self_compose(rounds).get_epsilon_for_delta(delta)
    return epsilon, time.perf_counter() - start


def random_setting(generator):
    while True:
        rate = math.exp(generator.uniform(math.log(1e-3), math.log(0.5)))
        sigma = math.exp(generator.uniform(math.log(0.6), math.log(20)))
        rounds = int(math.exp(generator.uniform(0, math.log(20000))))
        delta = 10 ** generator.uniform(-8, -3)
        adjacency = generator.choice(["zero-out", "replace-one"])
        # What a user would run: a cost worth stating.
        if 0.02 < rate * math.sqrt(rounds) / sigma < 5:
            return adjacency, sigma, rate, rounds, delta


def compare_random(ours, seconds, seed):
    generator = random.Random(seed)
    end = time.perf_counter() + seconds
    below, above, ratios, rows, loose = -math.inf, -math.inf, [], 0, 0
    while time.perf_counter() < end:
        adjacency, sigma, rate, rounds, delta = random_setting(generator)
        high, spent = theirs(adjacency, sigma, rate, rounds, delta, True, 1e-4)
        low, _ = theirs(adjacency, sigma, rate, rounds, delta, False, 1e-4)
        found, own = ours.epsilon(adjacency, sigma, (0.0, 1.0), (1 - rate, rate), rounds, delta)
        rows += 1
        ratios.append((spent / own, own, (adjacency, sigma, rate, rounds, delta)))
        if high > 1.01 * low:
            loose += 1
        if low > 0:
            below = max(below, low / found - 1 if found > 0 else math.inf)
        if high > 0:
            above = max(above, found / high - 1)
        if (low > 0 and found < low) or found > high * 1.001 + 1e-9:
            print(
                f"OUTSIDE {adjacency} sigma {sigma!r} q {rate!r} T {rounds} delta {delta!r}: "
                f"ours {found!r}, theirs [{low!r}, {high!r}]"
            )
    ratios.sort()
    print(f"random settings: {rows} ({loose} where their own bounds differ by over 1 percent)")
    print(f"  largest (optimistic / ours - 1): {below:+.2e}")
    print(f"  largest (ours / pessimistic - 1): {above:+.2e}")
    least, own, setting = ratios[0]
    print(f"  speed ratio of epsilon: median {ratios[len(ratios) // 2][0]:.0f}, least {least:.0f}")
    print(f"    the least: {setting}, ours {own * 1e3:.1f} ms")


def compare_golden(ours):
    mixtures, sampled = [], []
    with open(ROOT / "vectors" / "accounting.csv", encoding="utf-8") as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            adjacency = "zero-out" if row["adjacency"] == "add_remove" else "replace-one"
            sigma, rounds, delta = float(row["sigma"]), int(row["steps"]), float(row["delta"])
            if row["mechanism"] == "poisson_gaussian":
                rate = float(row["q"])
                _, spent = theirs(adjacency, sigma, rate, rounds, delta, True, 1e-4)
                _, own = ours.epsilon(
                    adjacency, sigma, (0.0, 1.0), (1 - rate, rate), rounds, delta
                )
                sampled.append((spent / own, row["id"]))
            elif row["mechanism"] == "mixture_gaussian" and row["dpacct_seconds"]:
                shifts = [float(text) for text in row["sensitivities"].split(";")]
                chances = [float(text) for text in row["probs"].split(";")]
                chances = [chance / sum(chances) for chance in chances]
                start = time.perf_counter()
                event = dp_event.SelfComposedDpEvent(
                    dp_event.MixtureOfGaussiansDpEvent(sigma, shifts, chances), rounds
                )
                accountant = pld_privacy_accountant.PLDAccountant(RELATION.ADD_OR_REMOVE_ONE)
                accountant.compose(event).get_epsilon(delta)
                spent = time.perf_counter() - start
                _, own = ours.epsilon(adjacency, sigma, shifts, chances, rounds, delta)
                mixtures.append((spent / own, row["id"]))
    for name, rows in (("sampled", sampled), ("mixtures", mixtures)):
        rows.sort()
        print(
            f"golden {name}: {len(rows)} rows, speed ratio median {rows[len(rows) // 2][0]:.0f}, "
            f"least {rows[0][0]:.0f} ({rows[0][1]})"
        )


def compare_calibration(ours):
    ratios = []
    for rate, rounds, target, delta in (
        (0.01, 1000, 1.0, 1e-5),
        (0.05, 1000, 1.0, 1e-5),
        (128 / 6000, 150, 1.0, 1e-5),
        (0.0625, 3000, 2.0, 1e-3),
    ):
        start = time.perf_counter()
        sigma = mechanism_calibration.calibrate_dp_mechanism(
            lambda: pld_privacy_accountant.PLDAccountant(RELATION.ADD_OR_REMOVE_ONE),
            lambda noise: dp_event.SelfComposedDpEvent(
                dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise)), rounds
            ),
            target,
            delta,
            mechanism_calibration.LowerEndpointAndGuess(0.0, 1.0),
            tol=1e-4,
        )
        spent = time.perf_counter() - start
        found, own = ours.ask("calibrate", "zero-out", repr(rate), rounds, target, repr(delta))
        ratios.append(spent / own)
        print(
            f"calibration q {rate:.4g} T {rounds}: theirs {sigma:.6f} in {spent:.2f} s, "
            f"ours {found:.6f} in {own * 1e3:.1f} ms, ratio {spent / own:.0f}"
        )
    print(f"  least calibration ratio {min(ratios):.0f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--skip-golden", action="store_true")
    options = parser.parse_args()
    ours = Ours(ROOT / "target" / "release" / "examples" / "cost")
    compare_random(ours, options.seconds, options.seed)
    compare_calibration(ours)
    if not options.skip_golden:
        compare_golden(ours)


if __name__ == "__main__":
    main()
