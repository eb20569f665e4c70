"""What a round over the network costs beyond the same round in one process: ten `soteria join` and one `soteria serve` over TLS on
loopback, state on disk, against `soteria train`; the models must be equal to the byte.

usage: network_overhead.py [float|secure] [RUNS] [STATE_DIR]

The 784-64-10 network on dense data, SoteriaFL-SGD, batch 128, random-k at 5%. Starting and joining are taken out by the difference of a
run of 1400 rounds and one of 200. Needs `cargo build --release` before.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SOTERIA = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve() / "release" / "soteria"
SOURCE, CLIENTS, SEED = "synthetic:60000x784x10", 10, "7"
CONFIG = """
[data]
source = "{source}"
clients = {clients}
[model]
kind = "mlp"
hidden = [64]
[algorithm]
preset = "soteriafl-sgd"
batch = 128
rounds = {rounds}
step_size = 0.5
[privacy]
sigma = 0.0186
clip = 1.0
noise = "{noise}"
[run]
eval_every = 0
"""


def run(noise, rounds, parent):
    """Milliseconds a round of the simulated run, and seconds of the whole networked one."""
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        place = pathlib.Path(folder)
        (place / "run.toml").write_text(CONFIG.format(source=SOURCE, clients=CLIENTS, rounds=rounds, noise=noise))
        start = lambda *words: subprocess.Popen([SOTERIA, "-q", *words], cwd=folder, stdout=subprocess.DEVNULL)
        assert start("keys", "init", "keys", "--clients", str(CLIENTS)).wait() == 0
        assert start("train", "--config", "run.toml", "--seed", SEED, "--out", "simulated").wait() == 0
        address = f"127.0.0.1:{random.randrange(20000, 40000)}"
        common = ["--tls", "keys", "--test-seed", SEED]
        parties = [start("serve", "--config", "run.toml", "--listen", address, "--state", "server", "--out", "networked", *common)]
        for client in range(CLIENTS):
            name = str(client)
            parties.append(start("join", "--server", f"https://{address}", "--client", name, "--state", f"client-{name}", "--data", f"{SOURCE}:{name}/{CLIENTS}", "--yes", *common))
        assert [party.wait() for party in parties] == [0] * len(parties)
        models = [(place / name / "model.safetensors").read_bytes() for name in ("simulated", "networked")]
        assert models[0] == models[1], "the models differ"
        seconds = [json.loads((place / name / "summary.json").read_text())["seconds"] for name in ("simulated", "networked")]
    return 1e3 * seconds[0]["training"] / rounds, seconds[1]["total"]


def main():
    noise = sys.argv[1] if len(sys.argv) > 1 else "float"
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    parent = sys.argv[3] if len(sys.argv) > 3 else None
    for _ in range(runs):
        (_, short), (simulated, long) = run(noise, 200, parent), run(noise, 1400, parent)
        networked = (long - short) / 1.2
        print(f"{noise}: simulated {simulated:.2f} ms, networked {networked:.2f} ms a round, {networked - simulated:.2f} more", flush=True)


main()
