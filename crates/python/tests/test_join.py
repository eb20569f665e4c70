"""Networked clients in Python, beside the program's server: bits, limits, crashes, bad input."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import warnings

import numpy as np
import pytest
from programs import PATIENCE, Server, program, until

import soteriafl as sf

SETTINGS = [
    "data.source=clients",
    "data.clients=2",
    "deployment.records=120",
    "deployment.features=4",
    'deployment.labels=["no", "yes"]',
    "data.features=none",
    "algorithm.rounds=12",
]


def records(client, rows=120):
    rng = np.random.default_rng(client)
    X = rng.uniform(-1, 1, (rows, 4)).astype(np.float32)
    return X, np.where(X[:, 0] - X[:, 1] > 0, "yes", "no")


def take_part(clients):
    """Runs one function per client, each on a thread of its own; returns what they return."""
    answers = [None] * len(clients)

    def run(number, client):
        try:
            answers[number] = client()
        except BaseException as error:
            answers[number] = error

    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return answers


def client(server, folder, number, **settings):
    X, y = records(number)
    asked = {
        "client": number,
        "state": folder / f"client-{number}",
        "X": X,
        "y": y,
        "insecure": True,
        "max_epsilon": 2,
        "progress": False,
    }
    return lambda: sf.join(server.url, **(asked | settings))


def ledger(state):
    command = [program(), "ledger", "--state", str(state), "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def csv(folder, number):
    X, y = records(number)
    path = folder / f"records-{number}.csv"
    lines = [
        ",".join([*(repr(float(v)) for v in row), label]) for row, label in zip(X, y, strict=True)
    ]
    path.write_text("a,b,c,d,label\n" + "\n".join(lines) + "\n")
    return path


def test_a_client_in_python_is_a_client_of_the_program(tmp_path):
    made = []
    for kind in ("memory", "csv"):
        folder = tmp_path / kind
        folder.mkdir()
        with Server(folder, *SETTINGS, test_seed=5) as server:
            given = {"test_seed": 5, "accept_unknown_cost": True, "max_epsilon": None}
            clients = [client(server, folder, n, **given) for n in range(2)]
            if kind == "csv":
                spec = f"csv:{csv(folder, 1)}"
                clients[1] = client(server, folder, 1, X=None, y=None, data=spec, **given)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", sf.RunWarning)
                answers = take_part(clients)
            assert [answer.messages for answer in answers] == [12, 12], answers
            assert answers[0].epsilon is None and answers[0].finished
            made.append((server.wait() / "model.safetensors").read_bytes())
    # The same records in memory and in a file: one model, one digest in the ledger.
    assert made[0] == made[1]
    assert ledger(tmp_path / "memory/client-1").count('"data"') == 1
    data = [
        line
        for kind in ("memory", "csv")
        for line in ledger(tmp_path / kind / "client-1").splitlines()
        if '"data"' in line
    ]
    assert len(data) == 2 and data[0] == data[1]


def test_a_limit_is_kept_and_nothing_is_sent(tmp_path):
    with Server(tmp_path, *SETTINGS, "privacy.epsilon=1", "privacy.delta=1e-4") as server:
        with pytest.raises(sf.BudgetExceeded, match=r"more than `max_epsilon` 0\.5"):
            client(server, tmp_path, 0, max_epsilon=0.5)()
        with pytest.raises(sf.RunRefused, match="refused by you"):
            client(server, tmp_path, 0, consent=lambda cost: cost.epsilon > 1)()
        with pytest.raises(sf.RunWarning, match="no limit was given"), warnings.catch_warnings():
            warnings.simplefilter("error")
            client(server, tmp_path, 0, max_epsilon=None)()
        with pytest.raises(sf.DataError, match="features and classes"):
            client(server, tmp_path, 0, X=np.zeros((5, 3)), y=["no"] * 5, state=tmp_path / "b")()
        with pytest.raises(sf.ConfigError, match="no client 7"):
            client(server, tmp_path, 7)()
        with pytest.raises(sf.RunRefused, match="no test run"):
            client(server, tmp_path, 0, test_seed=1)()
        assert "joined client=0" not in server.log.read_text()
        answers = take_part([client(server, tmp_path, number) for number in range(2)])
        assert all(0.9 < answer.epsilon <= 1 and answer.claim == "proved" for answer in answers)
        server.wait()
    # All of it is in the ledger: another run of these records would exceed the limit.
    (tmp_path / "again").mkdir()
    with (
        Server(tmp_path / "again", *SETTINGS, "privacy.delta=1e-4", "run.seed=9") as server,
        pytest.raises(sf.BudgetExceeded),
    ):
        client(server, tmp_path, 0, max_epsilon=1.1)()


def test_progress_ends_a_client_which_goes_on_later(tmp_path):
    with Server(tmp_path, *SETTINGS, "algorithm.rounds=200") as server:
        seen = []

        def some(round, rounds):
            seen.append((round, rounds))
            return len(seen) < 3

        def first():
            assert client(server, tmp_path, 0, progress=some)() is None
            return client(server, tmp_path, 0)()

        answers = take_part([first, client(server, tmp_path, 1)])
        assert [answer.messages for answer in answers] == [200, 200], answers
        assert len(seen) == 3 and all(rounds == 200 for _, rounds in seen)
        server.wait()


CLIENT = """
    import sys
    sys.path.insert(0, {tests!r})
    import test_join, soteriafl as sf
    X, y = test_join.records(0)

    # Says where it is, and stays there from round {hold} on, until somebody ends it or the input.
    def progress(round, rounds):
        print(round, flush=True)
        if round >= {hold}:
            sys.stdin.read()
        return True

    sf.join({url!r}, client=0, state={state!r}, X=X, y=y, insecure=True, max_epsilon=2,
            test_seed={seed}, accept_unknown_cost={seed} is not None, progress=progress)
"""


def process(server, folder, seed=None, hold=10**9):
    """Client 0 as a process of its own, which does not go far beyond round `hold`."""
    code = textwrap.dedent(CLIENT).format(
        tests=os.path.dirname(__file__),
        url=server.url,
        state=str(folder / "client-0"),
        seed=seed,
        hold=hold,
    )
    return subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def kill_at(running, round):
    """Kills a client that says where it is: at this round, or while it does the next ones."""
    said = 0
    for line in running.stdout:
        said = int(line)
        if said >= round:
            break
    assert said >= round and running.poll() is None, running.stderr.read()
    running.kill()
    running.communicate()


def test_a_killed_client_goes_on_with_the_same_bytes(tmp_path):
    made = []
    for stops in ((), (31, 32, 110, 233)):
        folder = tmp_path / str(len(stops))
        folder.mkdir()
        with Server(folder, *SETTINGS, "algorithm.rounds=400", test_seed=3) as server:
            given = {"test_seed": 3, "accept_unknown_cost": True}
            other = threading.Thread(target=client(server, folder, 1, **given), daemon=True)
            other.start()
            for stop in stops:
                # Whatever it does when the signal comes, it is not done.
                kill_at(process(server, folder, 3, hold=stop + 20), stop)
            _, said = (running := process(server, folder, 3)).communicate(timeout=PATIENCE)
            assert running.returncode == 0, said
            other.join(PATIENCE)
            made.append((server.wait() / "model.safetensors").read_bytes())
        assert '"messages": 400' in ledger(folder / "client-0")
    assert made[0] == made[1]


def test_ctrl_c_ends_a_client_that_waits(tmp_path):
    with Server(tmp_path, *SETTINGS) as server:
        running = process(server, tmp_path)
        # It waits for the other client, which never comes.
        until(lambda: "joined client=0" in server.log.read_text(), server.log.read_text)
        running.send_signal(signal.SIGINT)
        _, said = running.communicate(timeout=PATIENCE)
        assert "KeyboardInterrupt" in said and running.returncode != 0


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"client": -1}, sf.ConfigError, "`client`"),
        ({"max_epsilon": float("nan")}, sf.ConfigError, "`max_epsilon`"),
        ({"max_delta": 2}, sf.ConfigError, "`max_delta`"),
        ({"max_epsilon": None, "max_read": 1}, sf.ConfigError, "`max_read`"),
        ({"insecure": False}, sf.ConfigError, "`tls`"),
        ({"tls": "/nowhere", "insecure": False}, sf.ConfigError, "nowhere"),
        ({"adjacency": "both"}, sf.ConfigError, "`adjacency`"),
        ({"records_per_person": 0}, sf.ConfigError, "`records_per_person`"),
        ({"data": "csv:x.csv"}, sf.DataError, "`X` and `data`"),
        ({"y": None}, sf.DataError, "`X` needs `y`"),
        ({"X": None, "y": None, "data": "nothing:x"}, sf.DataError, "nothing"),
        ({"X": np.full((120, 4), np.nan)}, sf.DataError, "`X`"),
        ({"X": np.array([["a"]])}, sf.DataError, "`X`"),
    ],
)
def test_bad_arguments_are_named(tmp_path, settings, error, said):
    class Nowhere:
        url = "http://127.0.0.1:9"

    with pytest.raises(error, match=said):
        client(Nowhere, tmp_path, 0, **settings)()
