"""The examples in README and docs/python.md run as they are written."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def examples(page: str, without: str = "OpenAI(") -> list[str]:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    return [block for block in blocks if without not in block]


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_python_examples_run(page: str, smollm2: Path, capsys: pytest.CaptureFixture[str]):
    blocks = examples(page)
    assert blocks, "the page shows no example"
    for block in blocks:
        exec(compile(block, page, "exec"), {})
    assert "Paris" in capsys.readouterr().out
