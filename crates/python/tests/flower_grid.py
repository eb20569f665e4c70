"""Flower's nodes in this process, for tests: client apps behind a grid that loses what it is told
to lose, and the run that they play."""

import sqlite3

import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Message, RecordDict
from flwr.app.error import Error
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import soteriafl as sf
from soteriafl.flower import SoteriaStrategy, client_app
from soteriafl.flower.envelope import unpack

SEED = 7
#: Three clients of unequal size.
RUN = {
    "data.source": "synthetic:61x6",
    "data.clients": 3,
    "data.partition": "iid",
    "algorithm.preset": "soteriafl-sgd",
    "algorithm.fraction": 0.4,
    "algorithm.batch": 5,
    "algorithm.rounds": 7,
    "privacy.sigma": 0.05,
    "privacy.clip": 1.0,
    "privacy.accountant": "rdp",
    "privacy.amplification": "off",
}


@pytest.fixture(autouse=True)
def server_process(monkeypatch):
    """Flower's messages name the task that makes them."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Nodes(Grid):
    """A grid whose nodes are client apps in this process; what it loses is up to `fault`."""

    def __init__(self, configs, app=None, fault=lambda message: None):
        self.app = app or client_app(part)
        self.configs = dict(configs)
        self.fault = fault
        self.replies = {}
        self.asked = []
        self.named = 0

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **more):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.configs)

    def push_messages(self, messages):
        names = []
        for message in messages:
            self.named += 1
            names.append(f"{self.named}")
            message.metadata.__dict__["_message_id"] = names[-1]
            self.asked.append(message.metadata.dst_node_id)
            fault = self.fault(message)
            if fault == "question lost" or self.asked[-1] not in self.configs:
                continue
            reply = self.at_node(message)
            if fault == "asked twice":
                assert contents(self.at_node(message)) == contents(reply)
            if fault == "reply lost":
                continue
            if fault == "crash":
                reply = Message(Error(2, "<class 'OSError'>"), reply_to=message)
            self.replies[names[-1]] = reply
        return names

    def at_node(self, message):
        """A process that ends with its answer, as in a deployment."""
        node = message.metadata.dst_node_id
        context = Context(1, node, self.configs[node], RecordDict(), {"max-epsilon": 1e9})
        arrived = message_from_proto(message_to_proto(message))
        return message_from_proto(message_to_proto(self.app(arrived, context)))

    def pull_messages(self, message_ids):
        return [self.replies.pop(name) for name in message_ids if name in self.replies]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(list(messages)))


def contents(reply):
    return unpack(reply) if reply.has_content() else reply.error.code


def part(context):
    return f"synthetic:61x6:{context.node_config['partition-id']}/3"


def configs(tmp_path, count=3, **more):
    """What the owners of the nodes say; node ids are not client numbers."""
    own = {"max-epsilon": 1e6, "test-seed": SEED, "accept-unknown-cost": True, **more}
    return {
        1000 + 17 * i: {"partition-id": i, "soteria-state": str(tmp_path / f"node-{i}"), **own}
        for i in range(count)
    }


def strategy(tmp_path, config=(), **more):
    places = {"state": tmp_path / "state", "out": tmp_path / "run"}
    settings = places | {"test_seed": SEED, "patience": 0.05} | more
    return SoteriaStrategy(RUN | dict(config), **settings)


def trained(config=()):
    return sf.simulate(config=RUN | dict(config), seed=SEED, progress=False)


def same_bytes(run, other):
    assert run.model.keys() == other.model.keys()
    for name, values in run.model.items():
        assert values.tobytes() == other.model[name].tobytes(), name


def secure(**more):
    """A run of secret seeds, which costs epsilon 1."""
    config = {
        "data.source": "synthetic:900x6",
        "algorithm.preset": "soteriafl-gd",
        "algorithm.rounds": 3,
        "privacy.epsilon": 1.0,
        "privacy.delta": 1e-6,
        **more,
    }
    return {key: RUN[key] for key in ("data.clients", "data.partition", "privacy.clip")} | config


def secret(tmp_path, config, own=None, count=3):
    """Nodes and a strategy whose secrets nobody knows."""
    found = configs(tmp_path, count, **{"max-epsilon": 2.0})
    for config_of_node in found.values():
        del config_of_node["test-seed"], config_of_node["accept-unknown-cost"]
        config_of_node.update(own or {})
    app = client_app(lambda context: f"synthetic:900x6:{context.node_config['partition-id']}/3")
    ours = SoteriaStrategy(config, state=tmp_path / "state", out=tmp_path / "run", patience=0.05)
    return ours, Nodes(found, app)


def ledger(path):
    """Messages and whether the run is over, for every run of a node."""
    with sqlite3.connect(path / "client.sqlite") as state:
        return state.execute(
            "SELECT (SELECT count(*) FROM messages WHERE run = hash), finished FROM runs"
        ).fetchall()
