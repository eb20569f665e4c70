"""SoteriaFL on Flower: what is foreign, repeated, stale, lost, copied or without room gets a clear
error at the node and at the server; nothing is spent twice, nothing is lost."""

import contextlib
import json
import resource
import shutil
import sqlite3

import numpy as np
import pytest

pytest.importorskip("flwr")

from flower_grid import (
    RUN,
    SEED,
    Nodes,
    configs,
    ledger,
    same_bytes,
    secret,
    secure,
    server_process,  # noqa: F401
    strategy,
    trained,
)
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.app.error import Error
from flwr.clientapp import ClientApp

import soteriafl as sf
from soteriafl.flower import SoteriaStrategy
from soteriafl.flower import strategy as strategy_module
from soteriafl.flower.envelope import FOREIGN, pack, unpack


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


def other_version(content):
    """The same bytes under the number of another protocol, as a record and as an array."""
    return [
        RecordDict({"soteriafl": ConfigRecord({"protocol": 2, "bytes": content})}),
        RecordDict(
            {
                "soteriafl": ArrayRecord(
                    {"bytes": Array("uint8", (len(content),), "soteriafl.2", content)}
                )
            }
        ),
    ]


def test_another_version_is_named_at_both_sides(tmp_path, caplog):
    nodes = Nodes(configs(tmp_path))
    ours = strategy(tmp_path)
    for content in other_version(ours._server.introduce()):
        reply = nodes.at_node(Message(content, 1000, "train"))
        assert reply.error.code == FOREIGN and "of the same version" in reply.error.reason
        assert "both need the same version of soteriafl" in caplog.text
        caplog.clear()
    assert not (tmp_path / "node-0").exists()
    # At the server: a node of another version is in the way of nobody else.
    at_node = nodes.at_node
    newer = [True]

    def answers(message):
        reply = at_node(message)
        if newer[0] and message.metadata.dst_node_id == 1017:
            reply.content = other_version(unpack(reply))[0]
        return reply

    nodes.at_node = answers
    with pytest.raises(sf.SoteriaError, match="both need the same version of soteriafl"):
        ours.start(nodes, timeout=0.2)
    newer[0] = False
    ours.start(nodes)
    same_bytes(ours.run(), trained())


@pytest.mark.parametrize("preset", ["soteriafl-sgd", "soteriafl-saga"])
def test_replayed_questions_and_answers_change_nothing(tmp_path, preset):
    """Everything that ever travelled, again in every round, at both ends."""
    nodes = Nodes(configs(tmp_path))
    ours = strategy(tmp_path, {"algorithm.preset": preset})
    questions, replies = [], []
    at_node = nodes.at_node

    def recorded(message):
        reply = at_node(message)
        spent = ledger(tmp_path / "node-0")
        for old in questions:
            if old.metadata.dst_node_id == message.metadata.dst_node_id:
                at_node(old)
        # What was asked before costs nothing, and takes nothing back.
        assert ledger(tmp_path / "node-0") == spent
        questions.append(message)
        return reply

    nodes.at_node = recorded
    while not ours._server.acknowledged:
        heard = nodes.send_and_receive(ours._questions(nodes))
        replies.extend(heard)
        # Each twice, and then all that came before.
        ours.aggregate_train(0, [*heard, *heard, *replies])
    ours._server.finish()
    same_bytes(ours.run(), trained({"algorithm.preset": preset}))
    assert [ledger(tmp_path / f"node-{i}") for i in range(3)] == [[(7, 1)]] * 3


class Clock:
    """Stands in for the module `time`."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def outcomes(path):
    with sqlite3.connect(path / "client.sqlite") as state:
        return state.execute("SELECT round, accepted FROM messages ORDER BY round").fetchall()


def test_a_node_learns_which_of_its_messages_were_taken(tmp_path, monkeypatch):
    """Of round 3 the answer never arrives, and the round closes without it."""
    monkeypatch.setattr(strategy_module, "time", Clock())
    nodes = Nodes(configs(tmp_path))
    ours = strategy(tmp_path, {"deployment.deadline": 0.2, "deployment.quorum": 2})
    lost = lambda message: ours.round == 3 and message.metadata.dst_node_id == 1034  # noqa: E731
    nodes.fault = lambda message: "reply lost" if lost(message) else None
    ours.start(nodes, timeout=60)
    taken = [(round, int(round != 3)) for round in range(7)]
    assert outcomes(tmp_path / "node-2") == taken
    assert outcomes(tmp_path / "node-0") == [(round, 1) for round in range(7)]


@contextlib.contextmanager
def room_for(size):
    """No file can be written beyond so many bytes, as on a disk without room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("size", [0, 100, 9000, 40000])
def test_a_disk_without_room_at_the_node(tmp_path, monkeypatch, caplog, size):
    monkeypatch.setattr(strategy_module, "time", Clock())
    nodes = Nodes(configs(tmp_path))
    ours = strategy(tmp_path, patience=60.0)
    at_node = nodes.at_node
    full = []

    def tight(message):
        if message.metadata.dst_node_id != 1017 or full.count(ours.round) > 1:
            return at_node(message)
        full.append(ours.round)
        with room_for(size):
            return at_node(message)

    nodes.at_node = tight
    ours.start(nodes)
    same_bytes(ours.run(), trained())
    assert size == 40000 or "no answer" in caplog.text
    assert ledger(tmp_path / "node-1") == [(7, 1)]


@pytest.mark.parametrize("size", [0, 100, 9000])
def test_a_disk_without_room_at_the_server(tmp_path, size):
    nodes = Nodes(configs(tmp_path))
    failed, ours = 0, strategy(tmp_path)
    while not ours._server.finished:
        # What a process hears first is written down, and what comes later is not.
        with contextlib.suppress(sf.SoteriaError, OSError):
            for turn in range(8):
                heard = nodes.send_and_receive(ours._questions(nodes))
                with room_for(size if turn > 2 else resource.RLIM_INFINITY):
                    failed += 1
                    ours.aggregate_train(0, heard)
                failed -= 1
        del ours
        ours = strategy(tmp_path)
    assert failed > 1
    ours.start(nodes)
    same_bytes(ours.run(), trained())
    assert [ledger(tmp_path / f"node-{i}") for i in range(3)] == [[(7, 1)]] * 3


def test_a_servers_state_that_was_lost_is_another_run_and_what_was_spent_stays(tmp_path, caplog):
    ours, nodes = secret(tmp_path, secure(), {"max-epsilon": 1.2})
    while ours.round < 2:
        ours.aggregate_train(0, nodes.send_and_receive(ours._questions(nodes)))
    del ours
    shutil.rmtree(tmp_path / "state")
    spent = [ledger(tmp_path / f"node-{i}") for i in range(3)]
    # Results of another run are in the way, and elsewhere the nodes count both.
    places = {"state": tmp_path / "state", "patience": 0.05}
    with pytest.raises(FileExistsError):
        SoteriaStrategy(secure(), out=tmp_path / "run", **places)
    ours = SoteriaStrategy(secure(), out=tmp_path / "other", **places)
    with pytest.raises(sf.RunRefused, match="3 of 3 nodes do not take part"):
        ours.start(nodes, timeout=20)
    assert "more than `max_epsilon` 1.2" in caplog.text
    assert [ledger(tmp_path / f"node-{i}") for i in range(3)] == spent == [[(2, 0)]] * 3


def test_a_slow_transport_is_not_given_everything_twice(tmp_path, monkeypatch):
    """One answer in 10 seconds: all take longer than the patience with one."""
    clock = Clock()
    monkeypatch.setattr(strategy_module, "time", clock)
    nodes = Nodes(configs(tmp_path))
    ours = strategy(tmp_path, patience=25.0)

    def one(message_ids):
        clock.now += 10.0
        waiting = [name for name in message_ids if name in nodes.replies]
        return [nodes.replies.pop(waiting[0])] if waiting else []

    nodes.pull_messages = one
    lost = []

    def fault(message):
        # A question that is lost is asked again, when its answer is overdue.
        if ours.round == 4 and not lost:
            lost.append(clock.now)
            return "question lost"
        if lost and len(lost) == 1 and message.metadata.dst_node_id == nodes.asked[-1]:
            lost.append(clock.now)
        return None

    nodes.fault = fault
    ours.start(nodes, timeout=1000.0)
    same_bytes(ours.run(), trained())
    # To agree, for each round, and for the end; and what was lost.
    assert sorted(nodes.asked.count(node) for node in nodes.configs) == [9, 9, 10]


def test_whom_a_question_went_to_is_known_whatever_could_not_be_sent(tmp_path, caplog):
    """Flower's own grid names only what it could send, in a list that is shorter then."""
    nodes = Nodes(configs(tmp_path))
    ours = strategy(tmp_path)
    push = nodes.push_messages
    refused = []

    def some(messages):
        kept = [message for message in messages if message.metadata.dst_node_id != 1000]
        if ours.round == 2 and len(refused) < 2 and len(kept) < len(messages):
            refused.append(len(messages))
            return push(kept)
        return push(messages)

    nodes.push_messages = some
    ours.start(nodes, timeout=30)
    same_bytes(ours.run(), trained())
    assert refused and "answers as client" not in caplog.text


def test_what_a_node_says_cannot_write_into_the_servers_log(tmp_path, caplog):
    said = "\x1b[2J\r\n\u202eINFO : all is well" + "!" * 10_000
    hostile = ClientApp()
    hostile.train()(lambda message, context: Message(Error(5, said), reply_to=message))
    with pytest.raises(sf.SoteriaError) as raised:
        strategy(tmp_path).start(Nodes(configs(tmp_path), hostile), timeout=0.1)
    for text in [str(raised.value), *(record.getMessage() for record in caplog.records)]:
        assert text.isprintable() and len(text) < 2500
    # Nor a server into a node's.
    caplog.clear()
    content = RecordDict({"soteriafl": ConfigRecord({"protocol": said, "bytes": b""})})
    Nodes(configs(tmp_path)).at_node(Message(content, 1000, "train"))
    assert "it is of protocol" in caplog.text
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert len(caplog.text) < 1000
