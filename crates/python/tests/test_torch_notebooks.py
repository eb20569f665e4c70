"""The notebooks with PyTorch, from top to bottom."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
matplotlib = pytest.importorskip("matplotlib")

NOTEBOOKS = Path(__file__).parents[3] / "examples" / "notebooks"
#: Where the Debian package `dataset-fashion-mnist` has its files, as the notebook says.
PICTURES = "/usr/share/datasets/fashion-mnist"


@pytest.mark.parametrize(
    ("name", "part"),
    [("pytorch_cnn", True), ("pytorch_cnn", False), ("pytorch_fine_tuning", False)],
    ids=["pytorch_cnn of the repository's pictures", "pytorch_cnn", "pytorch_fine_tuning"],
)
def test_notebook(name, part, monkeypatch):
    text = (NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8")
    if name == "pytorch_cnn":
        assert PICTURES in text
        if not part and not Path(PICTURES).exists():
            pytest.skip("*** no dataset-fashion-mnist: the notebook is NOT tested with it ***")
    if part:
        text = text.replace(PICTURES, "/nowhere")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    # Where a notebook's kernel is.
    monkeypatch.chdir(NOTEBOOKS)
    monkeypatch.setattr(pyplot, "show", lambda: None)
    shown = []
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    assert not any(cell["outputs"] for cell in cells), "stored outputs: strip them"
    names: dict[str, object] = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        exec(compile("".join(cell["source"]), f"{name}, cell {number}", "exec"), names)
        shown.extend(pyplot.get_fignums())
        pyplot.close("all")
    run = names["run"]
    assert len(shown) >= 2, "a notebook has pictures"
    assert run.privacy.epsilon is not None
    # Ten classes and few pictures of each client there, two classes here.
    least = {"pytorch_cnn": 0.45 if part else 0.6, "pytorch_fine_tuning": 0.6}[name]
    assert run.rounds["test_accuracy"][-1] > max(least, run.rounds["test_accuracy"][0])
