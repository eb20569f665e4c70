"""The program `soteria`, for tests that run it beside the package."""

import functools
import os
import pathlib
import re
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
#: Seconds after which something that must happen counts as never happening, on any machine.
PATIENCE = 600


def until(holds, what):
    """Waits for an event; `what` says in an error which one it was."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"never: {what() if callable(what) else what}"
        time.sleep(0.02)


@functools.cache
def program():
    """The path of `soteria`: SOTERIA_PROGRAM, or what cargo builds."""
    given = os.environ.get("SOTERIA_PROGRAM")
    if given:
        return given
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    command = ["cargo", "build", "-q", "--locked", "--workspace", "--bin", "soteria"]
    subprocess.run(command, cwd=ROOT, check=True)
    return str(target / "debug" / "soteria")


class Server:
    """`soteria serve` on a port of its own, which it keeps when it is started anew."""

    def __init__(self, folder, *settings, config=None, test_seed=None, tls=None):
        self.out, self.log = folder / "out", folder / "serve.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        self.arguments = [
            *(["--config", config] if config else []),
            *[part for setting in settings for part in ("--set", setting)],
            *(["--test-seed", str(test_seed)] if test_seed is not None else []),
            *(["--tls", tls] if tls else ["--insecure"]),
            *["--listen", f"127.0.0.1:{self.port}", "--state", folder / "server", "--force"],
            *["--out", self.out],
        ]
        self.start()

    def start(self):
        with self.log.open("ab") as log:
            command = [program(), "serve", *map(str, self.arguments)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait(self):
        assert self.process.wait(PATIENCE) == 0, self.log.read_text()
        return self.out

    def __enter__(self):
        def listens():
            assert self.process.poll() is None, self.log.read_text()
            return re.search(r"round \d+ is open", self.log.read_text())

        until(listens, self.log.read_text)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
