import json

from typer.testing import CliRunner

from trimaran import __version__
from trimaran.cli.app import app


def run(*arguments, **env):
    return CliRunner().invoke(app, ["version", *arguments], env=env)


def test_text_and_json_say_the_same():
    found = json.loads(run("--json").stdout)
    text = run().stdout
    assert found["version"] == __version__
    assert set(found["executors"]) == {"native", "reference", "null"}
    assert found["cores"] >= 1
    assert f"trimaran {__version__}\n" in text
    for name, isa in found["executors"].items():
        assert f"{name} ({isa or 'not built'})" in text


def test_the_instruction_set_that_was_forced_is_shown():
    assert json.loads(run("--json", TRIMARAN_ISA="generic").stdout)["executors"]["native"] == "generic"


def test_one_that_does_not_exist_is_a_user_error():
    result = run(TRIMARAN_ISA="mmx")
    assert result.exit_code == 2
    assert "mmx" in result.stderr
