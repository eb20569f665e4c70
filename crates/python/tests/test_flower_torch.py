"""PyTorch modules on Flower: what a module that fails tells, and by what its records are known."""

import pytest

pytest.importorskip("flwr")

from flower_grid import (
    Nodes,
    configs,
    ledger,
    server_process,  # noqa: F401
    strategy,
)
from flwr.app import Message

import soteriafl as sf
from soteriafl import _soteriafl as native
from soteriafl.flower import Problem, SoteriaStrategy, client_app
from soteriafl.flower import client as client_module
from soteriafl.flower.envelope import REFUSED, pack


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
