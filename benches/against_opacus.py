"""Whole rounds of soteriafl.torch against Opacus and plain PyTorch, and what they are made of.

Needs torch, opacus and the wheel of this repository in one environment:

    python benches/against_opacus.py [mlp] [cnn] [large] [hooks]

One thread; processor time of that thread, medians. After every round of ours each of the others
does its ten steps, so that all of them see the same machine, and ratios hold on a busy one. Batches
have 128 records. Opacus does gradients, clipping, noise and the optimiser's step, without its data
loader; ours is the whole round of ten clients, from drawing the batches to the server's step.
"""

import statistics
import sys
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
    return nn.Sequential(
        nn.Linear(784, 1000), nn.Tanh(), nn.Linear(1000, 212), nn.Tanh(), nn.Linear(212, 10)
    )


def records(shape, rows=CLIENTS * 600):
    torch.manual_seed(1)
    return torch.randn(rows, *shape), torch.randint(0, 10, (rows,))


def plain(build, X, y):
    module = build()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)

    def steps():
        for _ in range(CLIENTS):
            rows = torch.randint(0, len(y), (BATCH,))
            optimizer.zero_grad()
            F.cross_entropy(module(X[rows]), y[rows]).backward()
            optimizer.step()

    return steps


def opacus(build, X, y, mode):
    from opacus import PrivacyEngine

    module = build()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
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

    def steps():
        for _ in range(CLIENTS):
            rows = torch.randint(0, len(y), (BATCH,))
            optimizer.zero_grad()
            criterion(module(X[rows]), y[rows]).backward()
            optimizer.step()

    return steps


def clipped_sums(build, X, y, gradients):
    """Our own building block alone: no noise, no compression, no server."""
    model = st.PerRecord(build(), F.cross_entropy, gradients)
    start = model.flatten()

    def steps():
        for _ in range(CLIENTS):
            rows = torch.randint(0, len(y), (BATCH,))
            model.clipped_sum(start, X[rows], y[rows], clip=1.0)

    return steps


def explicit(build, X, y):
    """Gradients of single records by torch.func, in chunks of a few, and nothing done with them."""
    module = build()
    parameters = {name: p.detach() for name, p in module.named_parameters()}

    def loss(parameters, x, target):
        outputs = torch.func.functional_call(module, parameters, (x[None],))
        return F.cross_entropy(outputs, target[None])

    differentiate = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))

    def steps():
        for _ in range(CLIENTS):
            rows = torch.randint(0, len(y), (BATCH,))
            for some in rows.split(8):
                differentiate(parameters, X[some], y[some])

    return steps


def compare(title, build, shape, others, variants, rounds):
    """Milliseconds of one of our rounds and of ten steps of the others, in turns."""
    X, y = records(shape)
    clients = [(X[i::CLIENTS], y[i::CLIENTS]) for i in range(CLIENTS)]
    others = {name: make(build, X, y) for name, make in others.items()}
    times = {name: [] for name in [*variants, *others]}
    for step in others.values():
        step()
    for variant, settings in variants.items():
        since = None

        def turn(*_, variant=variant):
            nonlocal since
            if since is not None:
                times[variant].append(time.thread_time() - since)
            for name, step in others.items():
                start = time.thread_time()
                step()
                times[name].append(time.thread_time() - start)
            since = time.thread_time()

        st.simulate(
            build(),
            loss=F.cross_entropy,
            clients=clients,
            sigma=0.01,
            clip=1.0,
            batch=BATCH,
            rounds=rounds,
            evaluate_every=0,
            progress=turn,
            **settings,
        )
    found = {name: 1e3 * statistics.median(part[2:-1]) for name, part in times.items()}
    print(f"\n{title}: {CLIENTS} clients or steps, {BATCH} records each")
    for name, milliseconds in found.items():
        ratios = "".join(f"{found[variant] / milliseconds:10.2f}" for variant in variants)
        print(f"  {name:44} {milliseconds:9.2f} ms {ratios}", flush=True)


RAND_K = {"fraction": 0.05}
SELECTED = {"fraction": 0.05, "clip_scope": "selected"}
GHOST = {
    "plain PyTorch, not private": plain,
    "Opacus, ghost clipping": lambda *given: opacus(*given, "ghost"),
}
HOOKS = {"Opacus, hooks": lambda *given: opacus(*given, "hooks")}


def sums(gradients):
    return lambda *given: clipped_sums(*given, gradients)


def main(asked):
    print(f"torch {torch.__version__}; the numbers behind times: ours through theirs")
    own = {"ours, random-k 5%, shift": RAND_K, "ours, the same, clipped on what travels": SELECTED}
    opacus_too = GHOST | (HOOKS if "hooks" in asked else {}) | {"our clipped sums": sums("hooks")}
    if "mlp" in asked:
        compare("784-64-10", mlp, (784,), opacus_too, own, 40)
    if "cnn" in asked:
        compare("the MNIST network of Opacus", cnn, (1, 28, 28), opacus_too, own, 10)
    if "large" in asked:
        one = {"ours, random-k 5%, shift": RAND_K}
        others = {
            "plain PyTorch, not private": plain,
            "gradients of records, torch.func": explicit,
            "our clipped sums, hooks": sums("hooks"),
        }
        compare("784-1000-212-10 by hooks", large, (784,), others, one, 10)
        one = {"ours by vmap, random-k 5%, shift": RAND_K | {"gradients": "vmap"}}
        others = {
            "gradients of records, torch.func": explicit,
            "our clipped sums, vmap": sums("vmap"),
        }
        compare("784-1000-212-10 by vmap", large, (784,), others, one, 8)


if __name__ == "__main__":
    main(sys.argv[1:] or ["mlp", "cnn", "large", "hooks"])
