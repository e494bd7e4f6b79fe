"""Options from flags, environment and file: which wins, what is converted, and what is refused with a hint."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
import pytest

from trimaran.base.config import option, resolve
from trimaran.base.env import VARIABLES
from trimaran.base.errors import ConfigError


@dataclass(frozen=True)
class Options:
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = option(8000, "port")
    memory: int | None = option(None, "memory")
    ratio: float = option(0.5, "ratio")
    caching: bool = option(True, "caching")
    keys: tuple[str, ...] = option((), "keys", secret=True)
    fmt: str = option("auto", "format", choices=("auto", "int4"))


def from_file(tmp_path: Path, text: str, **more) -> Options:
    file = tmp_path / "options.yaml"
    file.write_text(text)
    return resolve(Options, **{"flags": {}, "environ": {}, **more}, file=file)


def test_flags_then_environment_then_file_then_defaults(tmp_path):
    text = "port: 1\nratio: 0.1\ncaching: false\n"
    environ = {"TRIMARAN_PORT": "2", "TRIMARAN_RATIO": "0.2"}
    options = from_file(tmp_path, text, environ=environ, flags={"port": "3", "memory": None})
    assert options == Options(port=3, ratio=0.2, caching=False, memory=None, keys=(), fmt="auto")


def test_an_empty_file_and_an_empty_variable_set_nothing(tmp_path):
    assert from_file(tmp_path, "", environ={"TRIMARAN_PORT": ""}) == Options()


@pytest.mark.parametrize(("text", "value"), [("8000", 8000), ("8k", 8000), ("8K", 8192), ("1.5k", 1500), ("2G", 2**31)])
def test_sizes(text, value, tmp_path):
    assert resolve(Options, flags={"memory": text}, environ={}).memory == value
    assert resolve(Options, flags={}, environ={"TRIMARAN_MEMORY": text}).memory == value
    assert from_file(tmp_path, f"memory: {text}").memory == value


@pytest.mark.parametrize(("text", "value"), [("true", True), ("1", True), ("YES", True), ("off", False), ("0", False)])
def test_truth(text, value):
    assert resolve(Options, flags={}, environ={"TRIMARAN_CACHING": text}).caching is value


def test_lists(tmp_path):
    assert resolve(Options, flags={"keys": ["a", "b"]}, environ={}).keys == ("a", "b")
    assert resolve(Options, flags={}, environ={"TRIMARAN_KEYS": "a, b,"}).keys == ("a", "b")
    assert from_file(tmp_path, "keys: [a, b]").keys == ("a", "b")
    assert from_file(tmp_path, "keys: a").keys == ("a",)


def test_names_in_files_may_have_dashes_but_only_one_spelling_at_a_time(tmp_path):
    @dataclass(frozen=True)
    class Dashed:
        max_len: int = option(1, "length")

    file = tmp_path / "options.yaml"
    file.write_text("max-len: 5")
    assert resolve(Dashed, flags={}, environ={}, file=file).max_len == 5
    file.write_text("max-len: 5\nmax_len: 6")
    with pytest.raises(ConfigError, match="max_len is set twice"):
        resolve(Dashed, flags={}, environ={}, file=file)


@pytest.mark.parametrize(
    ("flags", "environ", "says"),
    [
        ({"port": "many"}, {}, "--port: 'many' is not valid: expected a whole number"),
        ({"memory": "many"}, {}, "--memory: 'many' is not valid: expected a whole number"),
        ({"ratio": "half"}, {}, "--ratio: 'half' is not valid: expected a number"),
        ({"port": "70000"}, {}, "--port: '70000' is not valid: expected a whole number <= 65535"),
        ({"fmt": "int5"}, {}, "--fmt: 'int5' is not one of auto, int4"),
        ({}, {"TRIMARAN_PORT": "x"}, "TRIMARAN_PORT: 'x' is not valid"),
        ({}, {"TRIMARAN_CACHING": "maybe"}, "TRIMARAN_CACHING='maybe': expected true or false"),
        ({}, {"TRIMARAN_PROT": "1"}, "TRIMARAN_PROT; did you mean TRIMARAN_PORT?"),
        ({}, {"TRIMARAN_SOMETHING_ELSE": "1"}, "nothing reads the environment variable TRIMARAN_SOMETHING_ELSE"),
    ],
)
def test_refusals(flags, environ, says):
    with pytest.raises(ConfigError) as caught:
        resolve(Options, flags=flags, environ=environ)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot: 1", "unknown option 'prot'"),
        ("prot: 1", "did you mean port?"),
        ("- port", "must hold option names and values, not a list"),
        ("port: [1]", "port in"),
        ("port: 1\nfmt: {", "is not valid YAML"),
        ("caching: 3", "is not valid: expected true or false"),
        ("fmt: 3", "3 is not valid: expected text"),
        ("keys: 5", "the value is not valid: expected text or a list of texts"),
        ("port: 1\nport-: 2", "unknown option"),
        ("port: 1\nratio: 1\nport: 2", "port is set twice in"),
        ("{port: 1, 'port': 2}", "port is set twice in"),
    ],
)
def test_refused_files(tmp_path, text, says):
    with pytest.raises(ConfigError) as caught:
        from_file(tmp_path, text)
    assert says in str(caught.value)


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match="cannot read the configuration file"):
        resolve(Options, flags={}, environ={}, file=tmp_path / "none.yaml")


def test_variables_that_are_no_options_are_known():
    assert resolve(Options, flags={}, environ=dict.fromkeys(VARIABLES, "1")) == Options()
    assert resolve(Options, flags={}, environ={"HOME": "/", "TRIMARAN": "1"}) == Options()


def test_secrets_are_not_shown():
    assert "hush" not in repr(resolve(Options, flags={"keys": ["hush"]}, environ={}))


def test_a_wrong_secret_is_not_shown(tmp_path):
    with pytest.raises(ConfigError, match="keys in") as caught:
        from_file(tmp_path, "keys: [1234567]")
    assert "1234567" not in str(caught.value)
