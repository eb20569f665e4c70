"""Networked clients of a torch module, beside the program's server."""

import json
import subprocess
import sys
import textwrap
import threading
import warnings

import pytest

torch = pytest.importorskip("torch")

from programs import PATIENCE, ROOT, Server  # noqa: E402
from test_join import kill_at, ledger, take_part  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import soteriafl as sf  # noqa: E402
import soteriafl.torch as st  # noqa: E402

CONFIG = {
    "algorithm.preset": "soteriafl-sgd",
    "algorithm.batch": 20,
    "algorithm.fraction": 0.3,
    "algorithm.rounds": 12,
    "algorithm.step_size": 2.0,
    "privacy.clip": 1.0,
    "privacy.epsilon": 3.0,
    "privacy.delta": 1e-4,
    "privacy.noise": "float",
}


def records(client, rows=120):
    X = torch.randn(rows, 4, generator=torch.Generator().manual_seed(client))
    return X, (X[:, 0] + 0.5 * X[:, 1] > 0).long()


def network(seed=5):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


#: What a run that proves something has: a limit refuses floating-point noise.
SECURE = CONFIG | {"privacy.noise": "secure"}


def serve(folder, config=SECURE, **settings):
    run = st.describe(network(), folder / "run", clients=2, records=120, config=config)
    return Server(folder, config=run, **settings)


def client(server, folder, number, **settings):
    asked = {
        "client": number,
        "state": folder / f"client-{number}",
        # Its own start does not matter: that of the run comes from the server.
        "module": network(seed=number),
        "loss": F.cross_entropy,
        "dataset": records(number),
        "insecure": True,
        "max_epsilon": 4,
        "progress": False,
    }
    return lambda: sf.join(server.url, **(asked | settings))


TEST = {"test_seed": 7, "accept_unknown_cost": True, "max_epsilon": None}


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        SECURE,
        CONFIG | {"algorithm.preset": "soteriafl-svrg", "privacy.difference_clip": 0.5},
        CONFIG | {"algorithm.preset": "soteriafl-saga", "privacy.difference_clip": 0.5},
    ],
    ids=["sgd", "secure", "svrg", "saga"],
)
@pytest.mark.filterwarnings("ignore::soteriafl.RunWarning")
def test_a_networked_run_gives_the_simulated_bits(tmp_path, config):
    with serve(tmp_path, config, test_seed=7) as server:
        answers = take_part([client(server, tmp_path, n, **TEST) for n in range(2)])
        assert [answer.messages for answer in answers] == [12, 12], answers
        out = server.wait()
    keys = {key: value for key, value in config.items() if key != "privacy.noise"}
    simulated = st.simulate(
        network(),
        loss=F.cross_entropy,
        clients=[records(0), records(1)],
        seed=7,
        noise=config["privacy.noise"],
        config=keys,
    )
    served = st.load(out, network())
    for left, right in zip(served.module.parameters(), simulated.module.parameters(), strict=True):
        assert torch.equal(left, right)
    assert served.privacy.epsilon is None and "seed" in served.privacy.reason
    assert simulated.privacy.epsilon <= 3
    report = (out / "report.html").read_text()
    assert "computes, and clips, every record by itself" in report.replace("&#39;", "'")
    with pytest.raises(sf.DataError, match="another module"):
        st.load(out, nn.Linear(4, 2))


def test_limits_and_models_are_checked_before_anything_is_sent(tmp_path):
    with serve(tmp_path) as server:
        with pytest.raises(sf.BudgetExceeded, match="max_epsilon"):
            client(server, tmp_path, 0, max_epsilon=0.5)()
        for other, said in (
            (nn.Linear(4, 2), r"0\.weight\[8,4\] where yours is weight\[2,4\]"),
            (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), "layers"),
            (network().eval(), "layers"),
        ):
            with pytest.raises(sf.DataError, match=said):
                client(server, tmp_path, 0, module=other)()
        X, y = records(0)
        with pytest.raises(sf.DataError, match=r"join\(module"):
            sf.join(
                server.url, client=0, state=tmp_path / "x", X=X.numpy(), y=y.numpy(), insecure=True
            )
        with pytest.raises(sf.ConfigError, match="one by one"):
            client(server, tmp_path, 0, gradients="vmap", state=tmp_path / "y")()
        (tmp_path / "float").mkdir()
        with (
            serve(tmp_path / "float", CONFIG) as floating,
            pytest.raises(sf.RunRefused, match="not secure"),
        ):
            client(floating, tmp_path, 0, state=tmp_path / "z")()
        assert "joined client=" not in server.log.read_text()
        answers = take_part([client(server, tmp_path, number) for number in range(2)])
        assert all(2.5 < answer.epsilon <= 3 and answer.claim == "proved" for answer in answers)
        summary = json.loads((server.wait() / "summary.json").read_text())
    assert summary["privacy"]["claim"] == "proved"


def test_an_exception_of_the_module_never_lets_a_message_leave(tmp_path):
    calls = []

    def loss(outputs, y):
        calls.append(len(y))
        if len(calls) == 120:
            raise ZeroDivisionError("the user's mistake")
        return F.cross_entropy(outputs, y, reduction="none")

    with serve(tmp_path) as server:
        said = []

        def mistaken():
            with pytest.raises(ZeroDivisionError, match="mistake") as raised:
                client(server, tmp_path, 0, loss=loss)()
            said.extend(raised.value.__notes__)
            made = ledger(tmp_path / "client-0")
            # Whatever starts it again: that it fails, and where, may be about a record.
            for _ in range(2):
                with pytest.raises(sf.RunRefused, match="removed"):
                    client(server, tmp_path, 0, loss=loss)()
            (tmp_path / "client-0" / "stopped").unlink()
            # It goes on in the round that it could not compute.
            return made, client(server, tmp_path, 0)()

        answers = take_part([mistaken, client(server, tmp_path, 1)])
        made, ended = answers[0]
        assert "nothing was sent" in said[-1], said
        assert '"messages": 12' not in made and ended.messages == 12
        server.wait()


CLIENT = """
    import sys
    sys.path.insert(0, {tests!r})
    import test_torch_join as tests, soteriafl as sf, torch
    torch.set_num_threads(1)
    class Server: url = {url!r}
    import pathlib

    # Says where it is, and stays there from round {hold} on, until somebody ends it or the input.
    def progress(round, rounds):
        print(round, flush=True)
        if round >= {hold}:
            sys.stdin.read()
        return True

    tests.client(Server, pathlib.Path({folder!r}), 0, **(tests.TEST | dict(progress=progress)))()
"""


@pytest.mark.filterwarnings("ignore::soteriafl.RunWarning")
@pytest.mark.parametrize("preset", ["sgd", "saga"])
def test_a_killed_client_keeps_shift_and_ledger(tmp_path, preset):
    """Killed twice by kill -9, the run has the bytes of one that nobody killed."""
    config = CONFIG | {"algorithm.preset": f"soteriafl-{preset}", "algorithm.rounds": 60}
    if preset == "saga":
        config |= {"privacy.difference_clip": 0.5}
    with serve(tmp_path, config, test_seed=7) as server:
        answers = []
        other = client(server, tmp_path, 1, **TEST)
        thread = threading.Thread(target=lambda: answers.append(other()), daemon=True)
        thread.start()

        def process(hold):
            code = textwrap.dedent(CLIENT).format(
                tests=str(ROOT / "crates/python/tests"),
                url=server.url,
                folder=str(tmp_path),
                hold=hold,
            )
            pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
            return subprocess.Popen([sys.executable, "-c", code], text=True, **pipes)

        for stop in (7, 31):
            # Whatever it does when the signal comes, it is not done.
            kill_at(process(hold=stop + 10), stop)
        _, said = (running := process(hold=10**9)).communicate(timeout=PATIENCE)
        assert running.returncode == 0, said
        thread.join(PATIENCE)
        assert answers and answers[0].messages == 60
        assert '"messages": 60' in ledger(tmp_path / "client-0")
        served = st.load(server.wait(), network())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        simulated = st.simulate(
            network(),
            loss=F.cross_entropy,
            clients=[records(0), records(1)],
            seed=7,
            config={key: value for key, value in config.items() if key != "privacy.noise"},
        )
    for left, right in zip(served.module.parameters(), simulated.module.parameters(), strict=True):
        assert torch.equal(left, right)
