"""SoteriaFL on Flower, over nodes in this process: the same bytes as `soteria train`, whatever is
lost, repeated or late; limits that no server moves; clear errors at both sides."""

import json
import logging
import random
import shutil

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import soteriafl as sf
from soteriafl import _soteriafl as native
from soteriafl.flower import Problem, Simulated, SoteriaStrategy, answer, client_app
from soteriafl.flower import client as client_module
from soteriafl.flower import strategy as strategy_module
from soteriafl.flower.envelope import FOREIGN, REFUSED, UNABLE, pack, unpack

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


class Clock:
    """Time that passes when somebody sleeps: nothing here takes any, on a machine of any speed."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(strategy_module, "time", Clock())


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


ESTIMATORS = {
    "gd": {"algorithm.preset": "soteriafl-gd", "algorithm.batch": "auto"},
    "sgd": {},
    "svrg": {"algorithm.preset": "soteriafl-svrg"},
    "saga": {"algorithm.preset": "soteriafl-saga"},
    "recursive": {"algorithm.preset": "ldp-srm", "algorithm.fraction": "auto"},
    "identity": {"algorithm.compressor": "identity", "algorithm.fraction": "auto"},
    "qsgd": {"algorithm.compressor": "qsgd", "algorithm.fraction": "auto"},
    "natural": {"algorithm.compressor": "natural", "algorithm.fraction": "auto"},
    "some take part": {"algorithm.participation": 0.6},
    "network": {"model.kind": "mlp", "algorithm.clip_scope": "auto"},
}


@pytest.mark.filterwarnings("ignore::soteriafl.errors.RunWarning")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_bytes_of_train(tmp_path, name):
    config = {key: value for key, value in ESTIMATORS[name].items() if value != "auto"}
    dropped = {key for key, value in ESTIMATORS[name].items() if value == "auto"}
    settings = {key: value for key, value in (RUN | config).items() if key not in dropped}
    ours = SoteriaStrategy(
        settings, state=tmp_path / "state", out=tmp_path / "run", test_seed=SEED, patience=0.05
    )
    result = ours.start(Nodes(configs(tmp_path)))
    expected = sf.simulate(config=settings, seed=SEED, progress=False)
    same_bytes(ours.run(), expected)
    assert {key: array.numpy().tobytes() for key, array in result.arrays.items()} == {
        key: values.tobytes() for key, values in expected.model.items()
    }
    assert ours.round == ours.rounds == len(ours.run().rounds["round"]) - 1


@pytest.mark.parametrize("name", ["gd", "sgd", "svrg", "saga", "recursive"])
def test_the_same_bytes_whatever_is_lost_repeated_or_late(tmp_path, name):
    seed = len(name)
    config = {key: value for key, value in ESTIMATORS[name].items() if value != "auto"}
    settings = RUN | config
    for key, value in ESTIMATORS[name].items():
        if value == "auto":
            del settings[key]
    draw = random.Random(seed)
    fates = ["question lost", "reply lost", "asked twice", "crash", None, None, None, None]
    nodes = Nodes(configs(tmp_path), fault=lambda message: draw.choice(fates))

    def start():
        return SoteriaStrategy(
            settings, state=tmp_path / "state", out=tmp_path / "run", test_seed=SEED, patience=0.0
        )

    ours = start()
    late = []
    for _ in range(5000):
        if ours._server.acknowledged:
            break
        if draw.random() < 0.05:
            # The server's process ends, and another one goes on; late replies reach that.
            del ours
            ours = start()
        replies = nodes.send_and_receive(ours._questions(nodes))
        if draw.random() < 0.2:
            late, replies = [*late, *replies], []
        elif late and draw.random() < 0.5:
            replies, late = [*late, *replies], []
        ours.aggregate_train(0, replies)
    ours._server.finish()
    same_bytes(ours.run(), sf.simulate(config=settings, seed=SEED, progress=False))


def test_flowers_own_loop_drives_it(tmp_path):
    """The functions that Flower's strategies have, called as Flower calls them."""
    ours = strategy(tmp_path)
    nodes = Nodes(configs(tmp_path))
    closed = []
    for turn in range(1, ours.rounds + 4):
        asked = ours.configure_train(turn, ArrayRecord(), ConfigRecord(), nodes)
        arrays, _ = ours.aggregate_train(turn, nodes.send_and_receive(asked))
        closed.append(arrays is not None)
        assert list(ours.configure_evaluate(turn, ArrayRecord(), ConfigRecord(), nodes)) == []
        assert ours.aggregate_evaluate(turn, []) is None
    assert sum(closed) == ours.rounds
    ours.start(nodes)
    same_bytes(ours.run(), trained())


def test_results_are_a_run_directory(tmp_path):
    ours = strategy(tmp_path, {"data.test": "synthetic:40x6"})
    seen = []

    def evaluate(round, arrays):
        seen.append((round, len(arrays)))
        return MetricRecord({"a": 1})

    result = ours.start(
        Nodes(configs(tmp_path)),
        evaluate_fn=lambda round, arrays: (
            seen.append((round, len(arrays))) or MetricRecord({"a": 1})
        ),
    )
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {
        "report.html",
        "summary.json",
        "rounds.csv",
        "model.safetensors",
        "config.toml",
    } <= files
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["kind"] == "deployment"
    run = ours.run()
    assert run.test_accuracy is not None and run.privacy.epsilon is None
    assert "test" in run.privacy.statement
    assert seen == [(round, 2) for round in range(1, 8)]
    assert result.evaluate_metrics_serverapp[7] == MetricRecord({"a": 1})
    # Started again it finds the end.
    del ours
    assert strategy(tmp_path, {"data.test": "synthetic:40x6"}).start(Nodes({})).arrays


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
    import sqlite3

    with sqlite3.connect(path / "client.sqlite") as state:
        return state.execute(
            "SELECT (SELECT count(*) FROM messages WHERE run = hash), finished FROM runs"
        ).fetchall()


def test_a_proved_run(tmp_path):
    ours, nodes = secret(tmp_path, secure())
    ours.start(nodes)
    run = ours.run()
    assert 0.9 < run.privacy.epsilon <= 1.0
    assert [ledger(tmp_path / f"node-{i}") for i in range(3)] == [[(3, 1)]] * 3


def test_a_limit_is_the_nodes_own(tmp_path, caplog):
    ours, nodes = secret(tmp_path, secure())
    # The server's run_config says 1e9; the node's owner says less than the run costs.
    nodes.configs[1017]["max-epsilon"] = 0.5
    with caplog.at_level(logging.ERROR), pytest.raises(sf.RunRefused, match="node 1017"):
        ours.start(nodes, timeout=20)
    assert "more than `max_epsilon` 0.5" in caplog.text
    # Nobody has sent anything, and the others' states are bound to nothing.
    assert ledger(tmp_path / "node-1") == []
    assert nodes.asked.count(1017) == 1


def test_two_runs_add_up(tmp_path):
    ours, nodes = secret(tmp_path / "first", secure(), {})
    ours.start(nodes)
    again, more = secret(tmp_path / "second", secure())
    for node, own in more.configs.items():
        own["soteria-state"] = nodes.configs[node]["soteria-state"]
    # Two runs of epsilon 1 cost more than 1.2 by the filter.
    for own in more.configs.values():
        own["max-epsilon"] = 1.2
    with pytest.raises(sf.RunRefused):
        again.start(more, timeout=20)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max-epsilon": None}, "sets no limit"),
        ({"max-epsilon": "a lot"}, "`max-epsilon` of the node's configuration must be a number"),
        ({"max-epsilon": True}, "must be a number"),
        ({"max-epsillon": 1.0}, "'max-epsillon', which means nothing"),
        ({"soteria-state": None}, "must name a directory for its state"),
        ({"soteria-state": "relative"}, "by its whole path"),
        ({"partition-id": None}, "which client it is"),
        ({"partition-id": -1}, "at least 0"),
        ({"partition-id": 3, "soteria-data": "synthetic:61x6"}, "no client 3"),
        ({"test-seed": 8}, "test run"),
        ({"test-seed": None}, "test run"),
        ({"accept-unknown-cost": False}, "accept_unknown_cost"),
        ({"accept-unknown-cost": 1}, "must be true or false"),
        ({"adjacency": "other"}, 'must be "replace-one"'),
        ({"adjacency": ""}, 'must be "replace-one"'),
        ({"accept-unknown-cost": None, "max-epsilon": "none"}, "accept_unknown_cost is needed"),
        ({"max-delta": 1.0}, "`max-delta` must be a number from 1e-300 to below 1"),
        ({"max-read": 0.0}, "`max-read` must be a number above 0"),
        ({"max-epsilon": "none", "max-read": 1.0}, "`max-read` goes with `max-epsilon`"),
        ({"records-per-person": 1001}, "`records-per-person` must be at most 1000"),
        ({"records-per-person": 0}, "at least 1"),
        ({"records_per_person": 3}, "'records_per_person', which means nothing"),
        ({"record-per-person": 3}, "'record-per-person', which means nothing"),
        ({"adjacancy": "replace-one"}, "'adjacancy', which means nothing"),
        ({"Max-Epsilon": 0.1}, "'Max-Epsilon', which means nothing"),
        ({"epsilon": 0.1}, "'epsilon', which means nothing"),
        ({"my-soteria-state": "/tmp"}, "'my-soteria-state', which means nothing"),
        ({"soteria-data": "csv:/no/such/file.csv"}, "/no/such/file.csv"),
    ],
)
def test_a_node_that_is_set_up_wrong_says_so_to_its_owner(tmp_path, caplog, change, said):
    found = configs(tmp_path)
    for key, value in change.items():
        if value is None:
            del found[1000][key]
        else:
            found[1000][key] = value
    nodes = Nodes(found)
    ours = strategy(tmp_path)
    question = Message(pack(ours._server.introduce()), 1000, "train")
    with caplog.at_level(logging.ERROR):
        reply = nodes.at_node(question)
    assert reply.has_error() and reply.error.code in (REFUSED, UNABLE)
    assert said in caplog.text
    # The server hears no reason: it could be about a record.
    assert said not in reply.error.reason and "own log" in reply.error.reason


def test_what_an_exception_says_stays_at_the_node(tmp_path, caplog):
    def broken(context):
        raise ValueError("patient 17 has no age")

    nodes = Nodes(configs(tmp_path), client_app(broken))
    with pytest.raises(sf.SoteriaError, match="nothing has happened") as raised:
        strategy(tmp_path).start(nodes, timeout=0.2)
    assert "patient" not in str(raised.value)
    assert "patient 17" in caplog.text


def test_foreign_messages_are_errors_at_both_sides(tmp_path, caplog):
    nodes = Nodes(configs(tmp_path))
    ours = strategy(tmp_path)
    foreign = [
        RecordDict({"arrays": ArrayRecord([np.zeros(3)]), "config": ConfigRecord({"lr": 0.1})}),
        RecordDict(),
        RecordDict({"soteriafl": ConfigRecord({"protocol": 2, "bytes": b""})}),
        RecordDict({"soteriafl": ConfigRecord({"protocol": 1, "bytes": "text"})}),
        RecordDict({"soteriafl": MetricRecord({"protocol": 1})}),
        pack(b""),
        pack(b"\xff" * 40),
        pack(b"hello, who is there?"),
    ]
    for content in foreign:
        reply = nodes.at_node(Message(content, 1000, "train"))
        assert reply.has_error() and reply.error.code == FOREIGN, content
    assert not (tmp_path / "node-0").exists()
    # What a node of another app says.
    strange = Nodes(configs(tmp_path), ClientApp())
    strange.app.train()(lambda message, context: Message(foreign[0], reply_to=message))
    with pytest.raises(sf.SoteriaError, match="it has no record of SoteriaFL"):
        ours.start(strange, timeout=0.1)
    # Nothing of it has reached the run.
    ours.start(nodes)
    same_bytes(ours.run(), trained())


def test_two_nodes_with_one_number(tmp_path, caplog):
    found = configs(tmp_path)
    found[5] = found[1000] | {"soteria-state": str(tmp_path / "copy")}
    nodes = Nodes(found)
    ours = strategy(tmp_path)
    ours.start(nodes)
    same_bytes(ours.run(), trained())
    assert "both answer as client 0: give each its own number" in caplog.text


def test_one_node_with_two_numbers(tmp_path, caplog):
    found = configs(tmp_path)
    nodes = Nodes(found)
    ours = strategy(tmp_path)
    nodes_fault = iter([None] * 3 + ["changed"])

    def fault(message):
        if next(nodes_fault, None) == "changed":
            found[1000]["partition-id"], found[1000]["soteria-state"] = 1, str(tmp_path / "other")

    nodes.fault = fault
    nodes.configs = found
    with pytest.raises(sf.SoteriaError, match="answers as client 1, and has answered as client 0"):
        ours.start(nodes, timeout=0.3)


def test_numbers_can_be_bound_to_nodes(tmp_path):
    found = configs(tmp_path)
    bound = {node: own["partition-id"] for node, own in found.items()}
    ours = strategy(tmp_path, nodes=bound)
    ours.start(Nodes(found))
    same_bytes(ours.run(), trained())
    other = strategy(tmp_path / "other", nodes=bound | {1000: 1, 1017: 0})
    with pytest.raises(sf.SoteriaError, match="answers as client 0, and may be client 1"):
        other.start(Nodes(configs(tmp_path / "other")), timeout=0.1)


def test_a_node_that_comes_back_under_another_id(tmp_path):
    found = configs(tmp_path)
    nodes = Nodes(found)
    ours = strategy(tmp_path)

    def fault(message):
        # From round 3 on, client 1 answers from another node.
        if ours.round == 3 and 1017 in nodes.configs:
            nodes.configs[2000] = nodes.configs.pop(1017)

    nodes.fault = fault
    ours.start(nodes, timeout=30)
    same_bytes(ours.run(), trained())
    assert 2000 in nodes.asked


def test_a_state_that_was_lost_is_told_and_spends_nothing_more(tmp_path, caplog):
    nodes = Nodes(configs(tmp_path))
    ours = strategy(tmp_path)

    def fault(message):
        if ours.round == 3 and message.metadata.dst_node_id == 1017:
            shutil.rmtree(tmp_path / "node-1", ignore_errors=True)

    nodes.fault = fault
    with pytest.raises(sf.SoteriaError, match="waits for client 1"):
        ours.start(nodes, timeout=0.4)
    assert "this state knows of" in caplog.text or "never joined" in caplog.text


def test_a_full_disk_loses_nothing(tmp_path, caplog):
    """A node that cannot write says so, and goes on when it can."""
    nodes = Nodes(configs(tmp_path))
    ours = strategy(tmp_path)
    hidden = tmp_path / "hidden"

    def fault(message):
        if message.metadata.dst_node_id != 1017:
            return
        if ours.round == 3 and not hidden.exists():
            (tmp_path / "node-1").rename(hidden)
            (tmp_path / "node-1").write_text("no directory can be made here")
        elif hidden.exists() and (tmp_path / "node-1").is_file():
            (tmp_path / "node-1").unlink()
            hidden.rename(tmp_path / "node-1")

    nodes.fault = fault
    ours.start(nodes, timeout=30)
    same_bytes(ours.run(), trained())
    assert "no answer" in caplog.text
    assert ledger(tmp_path / "node-1") == [(7, 1)]


def test_an_older_copy_of_a_nodes_state_is_found_out(tmp_path, caplog):
    nodes = Nodes(configs(tmp_path))
    ours = strategy(tmp_path)

    def fault(message):
        if message.metadata.dst_node_id == 1017 and ours.round == 2 and not kept.exists():
            shutil.copytree(tmp_path / "node-1", kept)
        if message.metadata.dst_node_id == 1017 and ours.round == 5:
            shutil.rmtree(tmp_path / "node-1")
            shutil.copytree(kept, tmp_path / "node-1")

    kept = tmp_path / "kept"
    nodes.fault = fault
    with pytest.raises(sf.SoteriaError, match="waits for client 1"):
        ours.start(nodes, timeout=0.4)
    assert "no answer" in caplog.text


def test_a_strategy_with_other_settings_is_another_run(tmp_path):
    first = strategy(tmp_path)
    nodes = Nodes(configs(tmp_path))
    for _ in range(4):
        first.aggregate_train(0, nodes.send_and_receive(first._questions(nodes)))
    assert first.round == 3
    del first
    with pytest.raises(FileExistsError):
        strategy(tmp_path, {"algorithm.rounds": 9})
    with pytest.raises(sf.ConfigError, match="another configuration"):
        strategy(tmp_path, {"algorithm.rounds": 9}, out=tmp_path / "more")
    # With a state of its own the nodes judge it as a run of its own.
    other = SoteriaStrategy(
        RUN | {"algorithm.rounds": 9},
        state=tmp_path / "other",
        out=tmp_path / "other-run",
        test_seed=SEED,
        patience=0.05,
    )
    other.start(nodes, timeout=30)
    assert ledger(tmp_path / "node-0") == [(3, 0), (9, 1)] or ledger(tmp_path / "node-0") == [
        (4, 0),
        (9, 1),
    ]


def test_arguments_that_nodes_did_not_agree_to_are_refused(tmp_path):
    ours = strategy(tmp_path)
    with pytest.raises(sf.ConfigError, match=r"algorithm\.rounds"):
        ours.start(Nodes({}), num_rounds=3)
    with pytest.raises(sf.ConfigError, match="initial_arrays"):
        ours.start(Nodes({}), ArrayRecord([np.zeros(3)]))
    with pytest.raises(sf.ConfigError, match="train_config"):
        ours.start(Nodes({}), train_config=ConfigRecord({"lr": 0.1}))
    with pytest.raises(sf.ConfigError, match="algorithm"):
        strategy(tmp_path / "other", {"algorithm.round": 3})
    # Keys of the app itself are none of ours.
    strategy(tmp_path / "more", {"num-server-rounds": 3})


def test_nobody_is_there(tmp_path):
    with pytest.raises(sf.SoteriaError, match="0 nodes are connected"):
        strategy(tmp_path).start(Nodes({}), timeout=0.05)


def test_a_deadline_and_a_quorum(tmp_path):
    config = {"deployment.deadline": 0.2, "deployment.quorum": 2}
    ours = strategy(tmp_path, config)
    silent = []

    def fault(message):
        if ours.round in (3, 4) and message.metadata.dst_node_id == 1034:
            silent.append(ours.round)
            return "question lost"

    ours.start(Nodes(configs(tmp_path), fault=fault), timeout=30)
    taken = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert 3 in silent
    assert ours.round == 7 and taken["rounds"] == 7
    assert ledger(tmp_path / "node-2")[0][1] == 1


def test_keys_of_the_app_are_left_alone(tmp_path):
    found = configs(tmp_path, **{"data-path": "/somewhere", "device": "cpu", "num-partitions": 3})
    strategy(tmp_path).start(Nodes(found))
    assert ledger(tmp_path / "node-0") == [(7, 1)]


def test_what_an_app_says_of_a_simulation_moves_no_limit(tmp_path, monkeypatch, caplog):
    """Neither without the owner's word, nor beside a configuration of the node's own."""
    app = client_app(part, simulated=Simulated(tmp_path / "states", test_seed=SEED))
    bare = {"partition-id": 0, "num-partitions": 3}
    question = pack(strategy(tmp_path)._server.introduce())

    def said(app, own):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            reply = Nodes({1000: own}, app).at_node(Message(question, 1000, "train"))
        assert reply.has_error() and reply.error.code == REFUSED
        return caplog.text

    assert "must name a directory for its state" in said(app, bare)
    monkeypatch.setenv("SOTERIA_SIMULATION", str(tmp_path))
    for own in ({"max-epsilon": 0.1}, {"test-seed": SEED}, {"device": "cpu"}):
        assert "must name a directory for its state" in said(app, bare | own)
    assert "sets no limit" in said(app, bare | {"soteria-state": str(tmp_path / "own")})
    relative = client_app(part, simulated=Simulated("states", test_seed=SEED))
    assert "`state` of Simulated must be a whole path" in said(relative, bare)
    assert not (tmp_path / "states").exists() and not (tmp_path / "own").exists()


def test_a_run_that_can_publish_records_is_said_aloud_where_there_is_no_limit(tmp_path, caplog):
    config = secure(**{"privacy.epsilon": 20.0})
    ours, nodes = secret(tmp_path, config, {"max-epsilon": "none"})
    with caplog.at_level(logging.WARNING):
        nodes.at_node(Message(pack(ours._server.introduce()), 1000, "train"))
    assert "this run can publish whole records" in caplog.text


def test_simulated_nodes_have_a_state_each(tmp_path, monkeypatch):
    monkeypatch.setenv("SOTERIA_SIMULATION", str(tmp_path))
    app = client_app(part, simulated=Simulated(tmp_path / "states", test_seed=SEED))
    nodes = Nodes({i: {"partition-id": i, "num-partitions": 3} for i in range(3)}, app)
    ours = strategy(tmp_path)
    ours.start(nodes)
    same_bytes(ours.run(), trained())
    assert sorted(path.name for path in (tmp_path / "states").iterdir()) == [
        "client-0",
        "client-1",
        "client-2",
    ]


def test_records_in_memory(tmp_path):
    """Arrays that the app has read itself: the bytes of a run on the same arrays."""
    rng = np.random.default_rng(3)
    X = np.float32(rng.uniform(-1, 1, (60, 6)))
    y = np.where(X[:, 0] > 0, "1", "0")
    config = {key: RUN[key] for key in RUN if key not in ("data.source", "data.partition")} | {
        "data.source": "clients",
        "deployment.records": 20,
        "deployment.features": 6,
        "deployment.labels": ["0", "1"],
    }
    app = client_app(lambda context: (X[context.node_config["partition-id"] :: 3],
                                      y[context.node_config["partition-id"] :: 3]))  # fmt: skip
    ours = SoteriaStrategy(
        config, state=tmp_path / "state", out=tmp_path / "run", test_seed=SEED, patience=0.05
    )
    ours.start(Nodes(configs(tmp_path), app))
    given = {key: RUN[key] for key in RUN if not key.startswith("data.")}
    expected = sf.simulate(
        X, y, clients=np.arange(60) % 3, config=given, seed=SEED, epsilon=1.0, progress=False
    )
    same_bytes(ours.run(), expected)


def test_a_torch_module(tmp_path):
    torch = pytest.importorskip("torch")
    import soteriafl.torch as st

    torch.manual_seed(1)
    X = torch.randn(90, 4)
    y = (X[:, 0] > 0).long()

    def network():
        torch.manual_seed(5)
        return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))

    def load(context):
        share = slice(context.node_config["partition-id"], None, 3)
        return Problem(network(), torch.nn.functional.cross_entropy, (X[share], y[share]))

    config = {
        "algorithm.rounds": 4,
        "algorithm.estimator": "gd",
        "algorithm.step_size": 0.5,
        "privacy.epsilon": 8.0,
        "privacy.delta": 1e-5,
        "privacy.clip": 1.0,
    }
    where = st.describe(network(), tmp_path / "described", clients=3, records=30, config=config)
    found = configs(tmp_path, **{"max-epsilon": 16.0})
    for own in found.values():
        del own["test-seed"], own["accept-unknown-cost"]
    ours = SoteriaStrategy(where, state=tmp_path / "state", out=tmp_path / "run", patience=0.05)
    result = ours.start(Nodes(found, client_app(load)))
    assert result.arrays["0.weight"].numpy().shape == (3, 4)
    assert ours.run().privacy.epsilon <= 8.0
    assert [ledger(tmp_path / f"node-{i}") for i in range(3)] == [[(4, 1)]] * 3


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("failure", ["raises", "refuses", "is misshaped"])
def test_a_module_that_fails_by_value_tells_one_bit(tmp_path, monkeypatch, caplog, failure, kept):
    """At some models it fails. A server that could ask again, of this run or another one, would
    find the records by bisection."""
    torch = pytest.importorskip("torch")
    import soteriafl.torch as st
    from soteriafl.torch import records

    if kept:
        # A process that lives through the run, in place of one for each message.
        node, living = native.Node, {}
        monkeypatch.setattr(
            client_module.native,
            "Node",
            lambda state, holding, terms, keep: living.setdefault(
                state, node(state, holding, terms, True)
            ),
        )

    torch.manual_seed(1)
    X = torch.randn(30, 4)
    y = (X[:, 0] > 0).long()
    computed = []

    class Fragile(torch.nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(5)
            self.linear = torch.nn.Linear(4, 2)

        def forward(self, x):
            return self.linear(x)

    def loss(outputs, targets):
        if loaded:
            computed.append(1)
        if broken and loaded:
            if failure == "raises":
                raise ValueError("patient 17 has no age")
            if failure == "refuses":
                raise sf.RunRefused("patient 17 has no age")
        return torch.nn.functional.cross_entropy(outputs, targets)

    def load(context):
        return Problem(Fragile(), loss, (X, y))

    def holding(*arguments):
        # Where the module has its own parameters it works: those of the server are what it is for.
        nonlocal loaded
        loaded = False
        found = given(*arguments)
        loaded = True
        return found

    gradients = records.Problem.gradients

    def misshaped(*arguments):
        found = gradients(*arguments)
        return found[:, :3] if broken and failure == "is misshaped" else found

    monkeypatch.setattr(records.Problem, "gradients", misshaped)
    given = client_module._holding
    monkeypatch.setattr(client_module, "_holding", holding)
    loaded = broken = False
    config = {
        "algorithm.rounds": 4,
        "algorithm.estimator": "gd",
        "privacy.epsilon": 8.0,
        "privacy.delta": 1e-5,
        "privacy.clip": 1.0,
    }
    found = configs(tmp_path, 1, **{"max-epsilon": 16.0})
    del found[1000]["test-seed"], found[1000]["accept-unknown-cost"]
    nodes = Nodes(found, client_app(load))

    def server(name):
        where = st.describe(
            Fragile(), tmp_path / f"described {name}", clients=1, records=30, config=config
        )
        state, out = tmp_path / f"state {name}", tmp_path / f"run {name}"
        return SoteriaStrategy(where, state=state, out=out, patience=0.05)

    def ask(ours):
        """What the server hears instead of an answer; what it answers may be a position alone."""
        for _ in range(4):
            (question,) = ours._questions(nodes)
            (name,) = nodes.push_messages([question])
            reply = nodes.replies.pop(name)
            if reply.has_error():
                return reply.error.code, reply.error.reason
            ours._hear(reply)
            ours._server.tick(0.0)
            if not broken and ours.round == 1:
                return None
        raise AssertionError("it answers")

    first = server("first")
    # It agrees, hears the start, and makes the first message.
    assert ask(first) is None
    assert ledger(tmp_path / "node-0") == [(1, 0)]
    broken = True
    refused = ask(first)
    assert refused[0] == REFUSED and "patient" not in refused[1]
    assert "could not be computed in round 1" in caplog.text
    assert (tmp_path / "node-0" / "stopped").exists()
    # Mended or not: the same question, and one of another run, from another process each.
    asked = len(computed)
    assert [ask(first), ask(server("second"))] == [refused] * 2
    broken = False
    assert [ask(first), ask(server("third"))] == [refused] * 2
    assert len(computed) == asked
    assert ledger(tmp_path / "node-0") == [(1, 0)]
    assert "answers nothing more" in caplog.text
    # The owner's word.
    (tmp_path / "node-0" / "stopped").unlink()
    first.start(nodes, timeout=30)
    assert ledger(tmp_path / "node-0") == [(4, 1)]


def test_data_sets_of_a_module_are_never_set_apart(tmp_path, caplog):
    torch = pytest.importorskip("torch")
    found = configs(tmp_path, 1, **{"disjoint-data-sets": True})
    module = torch.nn.Linear(4, 2)
    records = (torch.zeros(3, 4), torch.zeros(3).long())
    app = client_app(lambda context: Problem(module, torch.nn.functional.cross_entropy, records))
    question = Message(pack(strategy(tmp_path)._server.introduce()), 1000, "train")
    reply = Nodes(found, app).at_node(question)
    assert reply.error.code == REFUSED
    assert "all runs of a state count together" in caplog.text


def test_arrays_beside_a_module_count_together(tmp_path, caplog):
    """The same records under two names, which nobody can tell: a limit holds for both."""
    torch = pytest.importorskip("torch")
    import soteriafl.torch as st

    X = torch.linspace(-1, 1, 1200).reshape(300, 4)
    y = (X[:, 0] > 0).long()
    module, loss = torch.nn.Linear(4, 2), torch.nn.functional.cross_entropy
    private = {"privacy.epsilon": 1.0, "privacy.delta": 1e-6, "privacy.clip": 1.0}
    config = private | {"algorithm.rounds": 2, "algorithm.estimator": "gd"}
    described = st.describe(module, tmp_path / "described", clients=1, records=300, config=config)
    found = configs(tmp_path, 1, **{"max-epsilon": 1.2})
    del found[1000]["test-seed"], found[1000]["accept-unknown-cost"]
    first = SoteriaStrategy(described, state=tmp_path / "state", out=tmp_path / "run", patience=0.1)
    first.start(Nodes(found, client_app(lambda context: Problem(module, loss, (X, y)))))
    assert ledger(tmp_path / "node-0") == [(2, 1)]

    arrays = config | {
        "data.source": "clients",
        "data.clients": 1,
        "deployment.records": 300,
        "deployment.features": 4,
        "deployment.labels": ["0", "1"],
    }
    again = SoteriaStrategy(arrays, state=tmp_path / "again", out=tmp_path / "more", patience=0.1)
    app = client_app(lambda context: (X.numpy(), y.numpy()))

    def code(limit):
        own = {1000: found[1000] | {"disjoint-data-sets": True, "max-epsilon": limit}}
        question = Message(pack(again._server.introduce()), 1000, "train")
        reply = Nodes(own, app).at_node(question)
        return reply.error.code if reply.has_error() else None

    assert code(1.2) == REFUSED
    assert "more than `max_epsilon` 1.2" in caplog.text
    assert code(4.0) is None


def test_an_apps_own_train_function(tmp_path):
    app = ClientApp()

    @app.train()
    def train(message, context):
        return answer(message, context, part)

    ours = strategy(tmp_path)
    ours.start(Nodes(configs(tmp_path), app))
    same_bytes(ours.run(), trained())


def test_bytes_of_a_message(tmp_path):
    """What Flower carries of ours is the message and at most 200 bytes."""
    sizes = []
    nodes = Nodes(configs(tmp_path))
    ours = strategy(tmp_path, {"data.source": "synthetic:61x5000", "algorithm.fraction": 0.05})
    nodes.app = client_app(
        lambda context: f"synthetic:61x5000:{context.node_config['partition-id']}/3"
    )
    at_node = nodes.at_node

    def watched(message):
        reply = at_node(message)
        if reply.has_content():
            sizes.append(len(message_to_proto(reply).content.SerializeToString()))
        return reply

    nodes.at_node = watched
    ours.start(nodes)
    kept = round(0.05 * 5001)
    assert max(sizes) <= 4 * kept + 200
    assert max(sizes) > 4 * kept


def test_large_contents_travel_in_pieces():
    large = bytes(range(256)) * 8192
    for content in (b"", b"small", large):
        message = Message(pack(content), 1, "train")
        assert unpack(message_from_proto(message_to_proto(message))) == content
    assert isinstance(pack(large)["soteriafl"], ArrayRecord)
