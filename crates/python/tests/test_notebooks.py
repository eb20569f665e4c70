"""The notebooks run from top to bottom, and every one of them shows a picture."""

import pathlib

import pytest

NOTEBOOKS = pathlib.Path(__file__).resolve().parents[3] / "examples" / "notebooks"
#: Those that need more than the other tests install have tests of their own.
NAMES = ["accountant", "table", "report"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_notebooks_run(name, tmp_path):
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs for cell in cells), "stored outputs: strip them"
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    pictures = [
        output
        for cell in cells
        for output in cell.outputs
        if "image/svg+xml" in output.get("data", {})
        or "<svg" in output.get("data", {}).get("text/html", "")
    ]
    assert pictures
