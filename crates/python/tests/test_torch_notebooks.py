"""The notebooks with PyTorch, from top to bottom."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
matplotlib = pytest.importorskip("matplotlib")

NOTEBOOKS = Path(__file__).parents[3] / "examples" / "notebooks"


@pytest.mark.parametrize("name", ["pytorch_cnn", "pytorch_fine_tuning"])
def test_notebook(name, monkeypatch):
    matplotlib.use("Agg")
    from matplotlib import pyplot

    monkeypatch.setattr(pyplot, "show", lambda: None)
    shown = []
    text = (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), names)
        shown.extend(pyplot.get_fignums())
        pyplot.close("all")
    run = names["run"]
    assert len(shown) >= 2, "a notebook has pictures"
    assert run.privacy.epsilon is not None
    assert run.rounds["test_accuracy"][-1] > max(0.6, run.rounds["test_accuracy"][0])
