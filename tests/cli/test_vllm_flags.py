import dataclasses

import pytest
from typer.testing import CliRunner

from trimaran.cli.app import app
from trimaran.cli.vllm_flags import INSTEAD
from trimaran.server.options import ServeOptions

OURS = {"--" + field.name.replace("_", "-") for field in dataclasses.fields(ServeOptions)}


@pytest.mark.parametrize("flag", INSTEAD)
@pytest.mark.parametrize("value", [["0.9"], []])
def test_a_flag_of_vllms_is_refused_with_what_to_do(flag, value):
    written = [flag, *value] if value else [f"{flag}=0.9"]
    result = CliRunner().invoke(app, ["serve", "smollm2", *written])
    assert result.exit_code == 2
    assert f"no such option: {flag}; {INSTEAD[flag]}" in result.stderr


def test_the_advice_names_options_that_there_are():
    assert not OURS.intersection(INSTEAD)
    named = {word.rstrip(",:") for text in INSTEAD.values() for word in text.split() if word.startswith("--")}
    assert named <= OURS
