"""Clipped gradients and whole rounds of soteriafl.torch against Opacus and plain PyTorch.

Needs torch, opacus and the wheel of this repository in one environment:

    python benches/against_opacus.py

One thread; processor time of the process, the median of several repetitions, all in one run, so
that ratios hold on a busy machine. Batches have 128 records; Opacus does optimiser, clipping and
noise, without its data loader.
"""

import statistics
import time
import warnings

import torch
from torch import nn
from torch.nn import functional as F

import soteriafl.torch as st

warnings.filterwarnings("ignore")
torch.set_num_threads(1)
BATCH, CLIENTS = 128, 10


def mlp():
    return nn.Sequential(nn.Linear(784, 64), nn.Sigmoid(), nn.Linear(64, 10))


def cnn():
    """The network of Opacus' MNIST tutorial."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, 2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def large():
    """A million parameters."""
    return nn.Sequential(nn.Linear(784, 1000), nn.Tanh(), nn.Linear(1000, 212), nn.Tanh(), nn.Linear(212, 10))


def records(shape, rows=CLIENTS * 600):
    torch.manual_seed(1)
    return torch.randn(rows, *shape), torch.randint(0, 10, (rows,))


def measure(steps, repetitions=7):
    """Milliseconds of processor time of each step, measured in turns."""
    times = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(repetitions):
        for name, step in steps.items():
            start = time.process_time()
            step()
            times[name].append(1e3 * (time.process_time() - start))
    return {name: statistics.median(found) for name, found in times.items()}


def plain(build, X, y):
    module = build()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)

    def step():
        for client in range(CLIENTS):
            rows = torch.randint(0, len(y), (BATCH,))
            optimizer.zero_grad()
            F.cross_entropy(module(X[rows]), y[rows]).backward()
            optimizer.step()

    return step


def opacus(build, X, y, mode):
    from opacus import PrivacyEngine

    module = build()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, y), batch_size=BATCH)
    made = PrivacyEngine().make_private(
        module=module,
        optimizer=optimizer,
        data_loader=loader,
        criterion=nn.CrossEntropyLoss(),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        poisson_sampling=False,
        grad_sample_mode=mode,
    )
    module, optimizer = made[0], made[1]
    criterion = made[2] if mode == "ghost" else nn.CrossEntropyLoss()

    def step():
        for client in range(CLIENTS):
            rows = torch.randint(0, len(y), (BATCH,))
            optimizer.zero_grad()
            criterion(module(X[rows]), y[rows]).backward()
            optimizer.step()

    return step


def ours(build, X, y, gradients="auto", **settings):
    """Ten clients, `ROUNDS` rounds; the time of a round is the difference of two runs."""
    module = build()
    clients = [(X[i::CLIENTS], y[i::CLIENTS]) for i in range(CLIENTS)]
    few, many = 4, 24

    def run(rounds):
        ticks = []

        def tick(*_):
            ticks.append(time.process_time())

        st.simulate(
            module,
            loss=F.cross_entropy,
            clients=clients,
            sigma=0.01,
            clip=1.0,
            batch=BATCH,
            rounds=rounds,
            gradients=gradients,
            evaluate_every=0,
            progress=tick,
            **settings,
        )
        return ticks

    def round_time():
        ticks = run(many)
        steps = [after - before for before, after in zip(ticks[few:], ticks[few + 1 : -1], strict=False)]
        return 1e3 * statistics.median(steps)

    return round_time


def compare(name, build, shape, modes):
    X, y = records(shape)
    steps = {"plain PyTorch, not private": plain(build, X, y)}
    for mode in modes:
        steps[f"Opacus, {mode}"] = opacus(build, X, y, mode)
    found = measure(steps)
    found["soteriafl, rand-k 5 %, shift"] = ours(build, X, y, fraction=0.05)()
    found["soteriafl, rand-k 5 %, clip on selected"] = ours(
        build, X, y, fraction=0.05, clip_scope="selected"
    )()
    print(f"\n{name}: {CLIENTS} steps of {BATCH} records")
    mine = found["soteriafl, rand-k 5 %, shift"]
    for step, milliseconds in found.items():
        print(f"  {step:44} {milliseconds:8.2f} ms   ours/this {mine / milliseconds:5.2f}")


def overhead():
    """Privacy, compression and shift above clipped sums of per-record gradients."""
    X, y = records((784,))
    model = st.PerRecord(large(), F.cross_entropy, "vmap")
    start = model.flatten()

    def gradients():
        for _ in range(CLIENTS):
            rows = torch.randint(0, len(y), (BATCH,))
            model.clipped_sum(start, X[rows], y[rows], clip=1.0)

    base = measure({"clipped sums": gradients}, 3)["clipped sums"]
    whole = ours(large, X, y, gradients="vmap", fraction=0.05)()
    print(f"\n{model.dimension} parameters by vmap: clipped sums {base:.0f} ms, whole round {whole:.0f} ms")
    print(f"  privacy, compression and shift: {100 * (whole / base - 1):.1f} %")


if __name__ == "__main__":
    print(f"torch {torch.__version__}")
    compare("784-64-10", mlp, (784,), ("hooks", "ghost"))
    compare("the MNIST network of Opacus", cnn, (1, 28, 28), ("hooks", "ghost"))
    overhead()
