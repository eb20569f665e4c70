"""A real SuperLink and two SuperNodes, over TLS and with keys, on this machine: each is killed in
the middle, and the run ends with the bytes of `soteria train`. Beside it Flower's own state on the
same node, which is back at its beginning."""

import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr")

import soteriafl as sf

SCRIPTS = Path(sys.executable).parent
SEED = 7
ROUNDS = 4
RUN = {
    "data.source": "synthetic:61x6",
    "data.clients": 2,
    "data.partition": "iid",
    "algorithm.preset": "soteriafl-saga",
    "algorithm.fraction": 0.4,
    "algorithm.batch": 5,
    "algorithm.rounds": ROUNDS,
    "privacy.sigma": 0.05,
    "privacy.clip": 1.0,
    "privacy.accountant": "rdp",
    "privacy.amplification": "off",
}

CLIENT = """
from flwr.app import ConfigRecord
from flwr.clientapp import ClientApp
from soteriafl.flower import answer

app = ClientApp()


def records(context):
    return f"synthetic:61x6:{context.node_config['partition-id']}/2"


@app.train()
def train(message, context):
    # What a shift in Flower's own state would be: how many messages it knows of.
    known = context.state.get("shift", ConfigRecord({"messages": 0}))["messages"] + 1
    context.state["shift"] = ConfigRecord({"messages": known})
    with open(context.node_config["soteria-state"] + ".flower", "a") as file:
        file.write(f"{known}\\n")
    return answer(message, context, records)
"""

SERVER = """
import json
from flwr.serverapp import ServerApp
from soteriafl.flower import SoteriaStrategy

app = ServerApp()


@app.main()
def main(grid, context):
    own = context.run_config
    config = json.load(open(own["config"]))
    strategy = SoteriaStrategy(
        config, state=own["state"], out=own["out"], test_seed=7, patience=40.0
    )
    strategy.start(grid)
"""

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "killed"
version = "1.0.0"
description = "An app that is killed"
license = { file = "LICENSE" }
dependencies = ["flwr>=1.41.0"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "soteriafl"
fab-format-version = 1
flwr-version-target = "1.41.0"
[tool.flwr.app.components]
serverapp = "killed.server_app:app"
clientapp = "killed.client_app:app"
[tool.flwr.app.config]
config = ""
state = ""
out = ""
"""


def free_ports(count):
    held = [socket.socket() for _ in range(count)]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Machines:
    """SuperLink and SuperNodes, each in a process group of its own."""

    def __init__(self, work):
        self.work = work
        self.ports = free_ports(3)
        self.groups = {}
        self.environment = os.environ | {
            "FLWR_HOME": str(work / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
        }
        self.keys()

    def keys(self):
        def make(*command):
            subprocess.run(command, cwd=self.work, check=True, capture_output=True)

        new = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        make("openssl", "req", "-x509", *new, "-days", "2", "-subj", "/CN=authority",
             "-keyout", "ca.key", "-out", "ca.crt")  # fmt: skip
        make("openssl", "req", *new, "-subj", "/CN=127.0.0.1",
             "-keyout", "server.key", "-out", "server.csr")  # fmt: skip
        (self.work / "names").write_text("subjectAltName=IP:127.0.0.1\n")
        make("openssl", "x509", "-req", "-in", "server.csr",
             "-CA", "ca.crt", "-CAkey", "ca.key",
             "-CAcreateserial", "-days", "2", "-extfile", "names",
             "-out", "server.crt")  # fmt: skip
        for node in (0, 1):
            make("ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", f"node-{node}.key")
        home = self.work / "flower"
        home.mkdir()
        (home / "config.toml").write_text(
            f'[superlink.loopback]\naddress = "127.0.0.1:{self.ports[0]}"\n'
            f'root-certificates = "{self.work}/ca.crt"\n'
        )

    TLS = ("--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt",
           "--ssl-keyfile", "server.key", "--host", "127.0.0.1")  # fmt: skip

    def start(self, name, *command):
        with open(self.work / f"{name}.log", "ab") as log:
            self.groups[name] = subprocess.Popen(
                # As a service would be: SuperLink takes a node that was killed for alive, and does
                # not let it in again, until it has missed its heartbeats for a minute.
                ["bash", "-c", 'while :; do "$@"; sleep 2; done', "service", *command],
                cwd=self.work,
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def superlink(self):
        self.start("superlink", "flower-superlink", *self.TLS, "--port", str(self.ports[0]),
                   "--enable-supernode-auth", "--database", "superlink.db",
                   "--disable-runtime-dependency-installation")  # fmt: skip
        until(lambda: self.flwr("supernode", "list", "loopback").returncode == 0, 300, "SuperLink")

    def supernode(self, node):
        own = (
            f"partition-id={node} max-epsilon=1.0 test-seed={SEED} accept-unknown-cost=true "
            f'soteria-state="{self.work}/node-{node}"'
        )
        self.start(f"node-{node}", "flower-supernode", "--superlink", f"127.0.0.1:{self.ports[0]}",
                   "--root-certificates", "ca.crt", *self.TLS, "--port", str(self.ports[1 + node]),
                   "--auth-supernode-private-key", f"node-{node}.key",
                   "--node-config", own)  # fmt: skip

    def flwr(self, *arguments):
        return subprocess.run(
            [str(SCRIPTS / "flwr"), *arguments],
            cwd=self.work,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )

    def run(self):
        settings = " ".join(
            f"{name}='{self.work / path}'"
            for name, path in (("config", "run.json"), ("state", "server"), ("out", "run"))
        )
        made = self.flwr("run", "app", "loopback", "--run-config", settings)
        assert made.returncode == 0, made.stdout + made.stderr

    def kill(self, name):
        """At once, with everything that it has started."""
        group = self.groups.pop(name)
        os.killpg(group.pid, signal.SIGKILL)
        group.wait()

    def end(self):
        for name in list(self.groups):
            self.kill(name)

    def rounds(self):
        """How many rounds are closed, as the disk knows it."""
        path = self.work / "server" / "server.sqlite"
        if not path.exists():
            return 0
        try:
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5) as state:
                return state.execute("SELECT count(*) FROM rounds").fetchone()[0]
        except sqlite3.OperationalError:
            return 0

    def logs(self):
        texts = [path.read_text(errors="replace")[-4000:] for path in self.work.glob("*.log")]
        return "\n=====\n".join(texts)


def until(done, seconds, what):
    end = time.monotonic() + seconds
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.2)


@pytest.fixture
def machines(tmp_path):
    for tool in ("openssl", "ssh-keygen"):
        if shutil.which(tool) is None:
            pytest.skip(f"*** no {tool}: the SuperLink is NOT tested ***")
    app = tmp_path / "app"
    (app / "killed").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "LICENSE").write_text("MIT\n")
    (app / "killed" / "__init__.py").write_text("")
    (app / "killed" / "client_app.py").write_text(CLIENT)
    (app / "killed" / "server_app.py").write_text(SERVER)
    import json

    (tmp_path / "run.json").write_text(json.dumps(RUN))
    found = Machines(tmp_path)
    yield found
    found.end()


def test_every_process_is_killed_and_the_bytes_are_those_of_train(machines):
    work = machines.work
    try:
        machines.superlink()
        for node in (0, 1):
            registered = machines.flwr("supernode", "register", f"node-{node}.key.pub", "loopback")
            assert registered.returncode == 0, registered.stdout + registered.stderr
            machines.supernode(node)
        machines.run()
        until(lambda: machines.rounds() >= 2, 600, "two rounds")
        machines.kill("node-0")
        machines.supernode(0)
        # The server app ends with the SuperLink that has started it.
        machines.kill("superlink")
        machines.superlink()
        machines.run()
        until((work / "run" / "summary.json").exists, 600, "the end")
    except (TimeoutError, subprocess.TimeoutExpired) as error:
        pytest.fail(f"{error}: {machines.rounds()} rounds\n{machines.logs()}")

    run = sf.load(work / "run")
    expected = sf.simulate(config=RUN, seed=SEED, progress=False)
    for name, values in expected.model.items():
        assert run.model[name].tobytes() == values.tobytes()
    assert (work / "run" / "report.html").exists()
    for node in (0, 1):
        with sqlite3.connect(work / f"node-{node}" / "client.sqlite") as state:
            assert state.execute("SELECT count(*) FROM messages").fetchone() == (ROUNDS,)
    # Flower's own state, of this SuperNode and this `flwr run`: it began again, nobody was told.
    known = [int(line) for line in (work / "node-0.flower").read_text().split()]
    again = [place for place in range(1, len(known)) if known[place] <= known[place - 1]]
    assert again and known[again[0]] == 1 and max(known) < len(known)
