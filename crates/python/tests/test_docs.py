"""What stands in the documentation runs, from top to bottom."""

import re
import subprocess
import threading

import pytest
from programs import PATIENCE, ROOT, Server, program


def blocks(page):
    found = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert found
    return found


def run(page, number, block, names):
    exec(compile(block, f"{page}, example {number + 1}", "exec"), names)


@pytest.mark.filterwarnings("ignore::soteriafl.RunWarning")
@pytest.mark.parametrize("page", ["docs/python.md", "crates/python/README.md"])
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for number, block in enumerate(blocks(page)):
        if "sf.join(" in block:
            # The client of the page, against a server on this machine.
            settings = ["data.source=clients", "data.clients=2", "deployment.records=3000"]
            settings += ["deployment.features=2", 'deployment.labels=["healthy", "ill"]']
            join(tmp_path, block, names, Server, settings=settings)
            continue
        run(page, number, block, names)
    if page == "docs/python.md":
        first = [line for line in blocks(page)[0].splitlines() if line.strip()]
        assert len(first) <= 10 and (tmp_path / "curves.svg").stat().st_size > 5000
        assert names["run"].privacy.epsilon is not None


def test_examples_of_torch_run(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    pytest.importorskip("matplotlib").use("Agg")
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    names = {}
    for number, block in enumerate(blocks("docs/pytorch.md")):
        if "sf.join(" in block:
            join(tmp_path, block, names, Server, config="run/run.toml")
            (tmp_path / "out").rename(tmp_path / "results")
            continue
        run("docs/pytorch.md", number, block, names)
    assert isinstance(names["trained"], torch.nn.Module)


def join(folder, block, names, serve, settings=(), config=None):
    """Both clients of an example, over TLS with the keys that the page makes."""
    made = [program(), "keys", "init", folder / "keys", "--clients", "2"]
    subprocess.run(made, check=True, capture_output=True)
    with serve(folder, *settings, config=config, tls=folder / "keys") as server:
        exec(block.replace("https://127.0.0.1:7443", server.url), names)
        hospital, failed = names["hospital"], []
        X, y = names.get("X"), names.get("ill")

        def client(number):
            rows = slice(3000 * number, 3000 * (number + 1))
            try:
                hospital(number) if config else hospital(number, X[rows], y[rows])
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert not failed, failed
        server.wait()
