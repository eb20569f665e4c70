"""What stands in the documentation runs, from top to bottom."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.mark.filterwarnings("ignore::soteriafl.RunWarning")
@pytest.mark.parametrize("page", ["docs/python.md", "crates/python/README.md"])
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page}, example {number + 1}", "exec"), names)
    if page == "docs/python.md":
        first = [line for line in blocks[0].splitlines() if line.strip()]
        assert len(first) <= 10 and (tmp_path / "curves.svg").stat().st_size > 5000
        assert names["run"].privacy.epsilon is not None
