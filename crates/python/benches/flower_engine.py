"""A run over Flower's simulation engine, and what the engine takes alone.

    FLWR_TELEMETRY_ENABLED=0 RAY_USAGE_STATS_ENABLED=0 python benches/flower_engine.py [NODES ...]

Needs flwr[simulation] and Linux. Every node has ten records of its own, the model 101 parameters.
`alone` is an app that answers every question with what it was asked: the engine's own cost. States
of nodes and server are in a temporary directory, TMPDIR: its disk decides what durability costs.
Processor time is that of all processes of the engine.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation

import soteriafl as sf
from soteriafl.flower import Simulated, SoteriaStrategy, client_app

RECORDS, FEATURES = 10, 100
CONFIG = {
    "data.source": "clients",
    "deployment.records": RECORDS,
    "deployment.features": FEATURES,
    "deployment.labels": ["0", "1"],
    "algorithm.preset": "soteriafl-sgd",
    "algorithm.batch": 2,
    "algorithm.fraction": 0.05,
    "privacy.sigma": 0.5,
    "privacy.clip": 1.0,
    "privacy.accountant": "rdp",
    "privacy.amplification": "off",
}


class Processes:
    """Processor time of this process and of all that it has started, ended ones as last seen."""

    def __init__(self):
        self.seen = {}

    def seconds(self):
        tick, parents, found = os.sysconf("SC_CLK_TCK"), {}, {}
        for process in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = process.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[process.parent.name] = fields[1]
            found[process.parent.name] = (int(fields[11]) + int(fields[12])) / tick
        for process, time_of_it in found.items():
            above = process
            while above in parents and above != str(os.getpid()):
                above = parents[above]
            if above in parents:
                self.seen[process] = time_of_it
        return sum(self.seen.values())


class Clock:
    """Seconds of the parts of a run."""

    def __init__(self, title):
        self.title, self.processes = title, Processes()
        self.last = time.perf_counter(), self.processes.seconds()

    def lap(self, what):
        now = time.perf_counter(), self.processes.seconds()
        elapsed, processor = (new - old for new, old in zip(now, self.last, strict=True))
        print(f"  {self.title}: {what:10} {elapsed:9.2f} s elapsed {processor:9.2f} s processor",
              flush=True)  # fmt: skip
        self.last = now


def engine(title, nodes, server_app, client_app):
    print(f"{title}, {nodes} nodes", flush=True)
    clock = Clock(title)
    run_simulation(
        server_app=server_app,
        client_app=client_app,
        num_supernodes=nodes,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    clock.lap("all of it")


def alone(nodes, rounds):
    """What the engine takes for a message to each node, and its answer."""
    client, server = ClientApp(), ServerApp()

    @client.train()
    def train(message, context):
        return Message(message.content, reply_to=message)

    @server.main()
    def main(grid, context):
        clock = Clock("alone")
        while len(ids := list(grid.get_node_ids())) < nodes:
            time.sleep(0.1)
        clock.lap("nodes")
        content = RecordDict({"any": ConfigRecord({"bytes": bytes(500)})})
        for turn in range(rounds):
            messages = [Message(content, node, MessageType.TRAIN) for node in ids]
            waiting = set(grid.push_messages(messages))
            assert len(waiting) == nodes
            while waiting:
                for reply in grid.pull_messages(list(waiting)):
                    assert reply.has_content()
                    waiting.discard(reply.metadata.reply_to_message_id)
                time.sleep(0.25)
            clock.lap(f"turn {turn}")

    engine("alone", nodes, server, client)


def soteria(nodes, rounds, directory):
    """A whole run: joining, rounds, the end; each is a message to each node."""
    rng = np.random.default_rng(1)
    X = np.float32(rng.uniform(-1, 1, (nodes * RECORDS, FEATURES)))
    np.save(directory / "X.npy", X)
    np.save(directory / "y.npy", (X[:, 0] > 0).astype(np.int64))
    os.environ["SOTERIA_SIMULATION"] = str(directory)

    def load(context):
        i = context.node_config["partition-id"]
        here = slice(i * RECORDS, (i + 1) * RECORDS)
        return tuple(np.load(directory / f"{name}.npy", mmap_mode="r")[here] for name in "Xy")

    client = client_app(load, simulated=Simulated(directory / "nodes", test_seed=7))
    server = ServerApp()

    @server.main()
    def main(grid, context):
        strategy = SoteriaStrategy(
            CONFIG | {"data.clients": nodes, "algorithm.rounds": rounds},
            state=directory / "server",
            out=directory / "run",
            test_seed=7,
        )
        clock = Clock("soteriafl")
        run, exchange = strategy._server, strategy._exchange

        def watched(grid):
            begun, open_round = run.begun, strategy.round
            happened = exchange(grid)
            if not begun and run.begun:
                clock.lap("joining")
            if strategy.round > open_round:
                clock.lap(f"round {open_round}")
            return happened

        strategy._exchange = watched
        strategy.start(grid)
        clock.lap("the end")

    engine("soteriafl", nodes, server, client)


def simulated(nodes, rounds):
    """The same over this package's own simulator."""
    rng = np.random.default_rng(1)
    X = np.float32(rng.uniform(-1, 1, (nodes * RECORDS, FEATURES)))
    y = (X[:, 0] > 0).astype(np.int64)
    own = {
        key: value for key, value in CONFIG.items() if not key.startswith(("data.", "deployment."))
    }
    began = [time.perf_counter(), time.process_time()]
    config = own | {"algorithm.rounds": rounds}
    sf.simulate(X, y, clients=np.arange(len(y)) // RECORDS, config=config, progress=False)
    elapsed, processor = time.perf_counter() - began[0], time.process_time() - began[1]
    print(f"simulator, {nodes} clients, {rounds} rounds: {elapsed:.2f} s elapsed, "
          f"{processor:.2f} s processor, all of it", flush=True)  # fmt: skip


def main():
    for nodes in [int(word) for word in sys.argv[1:]] or [100, 1000]:
        rounds = 1 if nodes > 2000 else 3
        simulated(nodes, 100)
        alone(nodes, 2 if nodes <= 2000 else 1)
        with tempfile.TemporaryDirectory() as directory:
            soteria(nodes, rounds, Path(directory))


if __name__ == "__main__":
    main()
