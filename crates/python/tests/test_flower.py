"""SoteriaFL on Flower, over nodes in this process: the same bytes as `soteria train`, whatever is
lost, repeated or late; limits that no server moves; results."""

import json
import logging
import random

import numpy as np
import pytest

pytest.importorskip("flwr")

from flower_grid import (
    RUN,
    SEED,
    Nodes,
    configs,
    ledger,
    part,
    same_bytes,
    secret,
    secure,
    server_process,  # noqa: F401
    strategy,
    trained,
)
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.common.serde import message_from_proto, message_to_proto

import soteriafl as sf
from soteriafl.flower import Simulated, SoteriaStrategy, answer, client_app
from soteriafl.flower import strategy as strategy_module
from soteriafl.flower.envelope import REFUSED, UNABLE, pack, unpack


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


@pytest.mark.filterwarnings("ignore::soteriafl.errors.RunWarning")
@pytest.mark.parametrize("preset", ["soteriafl-sgd", "soteriafl-saga"])
def test_large_states_lie_beside_the_database(tmp_path, preset):
    """A process for each message, and states that are too large for the database."""
    config = {"data.source": "synthetic:31x24000", "algorithm.rounds": 4}
    config |= {"algorithm.preset": preset, "algorithm.fraction": 0.01}
    nodes = Nodes(configs(tmp_path))
    nodes.app = client_app(
        lambda context: f"synthetic:31x24000:{context.node_config['partition-id']}/3"
    )
    ours = strategy(tmp_path, config)
    files = set()

    def fault(message):
        files.update(path.name[-2:] for path in (tmp_path / "node-1").glob("state-*"))
        return "asked twice"

    nodes.fault = fault
    ours.start(nodes)
    same_bytes(ours.run(), trained(config))
    assert files == {"-0", "-1"}
    # When the run is over nothing of them is left.
    assert not list(tmp_path.glob("node-*/state-*"))
    assert (tmp_path / "node-1" / "client.sqlite").stat().st_size < 150_000
