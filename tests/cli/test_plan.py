"""``trimaran plan`` as a user types it, and as docs/plan.md shows it."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from trimaran.base.errors import ConfigError
from trimaran.cli.app import app
from trimaran.cli.sizes import parse_size

LLAMA_31_8B = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
}


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["plan", *arguments])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_31_8B))
    return path


def test_a_table_and_json_of_a_config(config: Path) -> None:
    done = run(str(config), "--gpu", "h100", "--count", "1", "--context", "32768")
    assert done.exit_code == 0, done.stderr
    assert "131,072 bytes on each GPU" in done.stdout
    assert "assumed: 1 x h100" in done.stdout
    facts = json.loads(run(str(config.parent), "--count", "2", "--json").stdout)
    assert facts["kv_bytes_per_token_per_gpu"] == 131_072 / 2
    assert facts["context"] == 131_072


def test_layers_that_stay_bf16_take_more(config: Path) -> None:
    def token_bytes(*more: str) -> float:
        done = run(str(config), "--count", "2", "--kv-cache-dtype", "fp8", "--json", *more)
        return float(json.loads(done.stdout)["kv_bytes_per_token_per_gpu"])

    assert token_bytes("--kv-cache-dtype-skip-layers", "0,31") == token_bytes() * 34 / 32
    refused = run("--weight-bytes", "61GB", "--kv-cache-dtype-skip-layers", "0")
    assert isinstance(refused.exception, SystemExit)
    assert "needs MODEL" in refused.stderr


def test_the_examples_of_the_page(config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    page = (Path(__file__).parents[2] / "docs" / "plan.md").read_text()
    [(command, table)] = re.findall(r"^```\n\$ trimaran plan (.*)\n([^`]*)```$", page, re.MULTILINE)
    assert run(*command.split()).stdout == table
    [block] = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(config.parent)
    exec(compile(block, "plan.md", "exec"), {})
    assert int(capsys.readouterr().out) > 1_000_000


def test_sizes_by_hand_need_no_model() -> None:
    sizes = ("--weight-bytes", "61GB", "--kv-bytes-per-token", "36KB", "--gpu-memory", "80GB", "--count", "1")
    done = run(*sizes, "--context", "32768", "--overhead", "2GB", "--gpu-memory-utilization", "0.95", "--json")
    assert json.loads(done.stdout)["tokens"] == 361_111
    assert "give MODEL" in run().stderr


def test_what_cannot_be_is_said(config: Path) -> None:
    assert "--weights 'int3' is none of bf16, fp8, int4" in run(str(config), "--weights", "int3").stderr
    assert "no GPU 'h300' is known" in run(str(config), "--gpu", "h300").stderr
    assert "does not exist" in run(str(config.with_name("other.json"))).stderr


@pytest.mark.parametrize(
    ("text", "size"), [("61GB", 61 * 10**9), ("139.8GiB", int(139.8 * 2**30)), ("36 kb", 36_000), ("1024", 1024)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1 parsec", "nan", "inf"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size"):
        parse_size(text)
