"""The figures on quantised checkpoints that docs/models.md states come from a script that runs."""

import re

import pytest

from .scripts import load_script


def test_default_formats_are_near_what_is_stored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    script = load_script("stored_error")
    monkeypatch.setattr(script, "ROWS", 128)
    monkeypatch.setattr(script, "COLS", 512)
    script.main()
    title, *lines = capsys.readouterr().out.splitlines()
    assert 2.4 < float(title.split()[-1].rstrip("%")) < 2.9
    found = [re.search(r"default (\w+) +(\w+) ([\d.]+)%", line) for line in lines]
    held = [(match[1], match[2], float(match[3])) for match in found if match]
    assert [default for default, _, _ in held] == ["int8", "int4", "int4", "int4z", "int8", "int8"]
    assert all(default == first for default, first, _ in held)
    assert all(error <= most for (*_, error), most in zip(held, (0.6, 0.15, 0, 0.16, 0.6, 0.03), strict=True))
