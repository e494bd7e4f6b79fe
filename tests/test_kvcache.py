"""The public module for the KV cache, and the formats that need its calibration, on the real small model."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from trimaran import LLM, SamplingParams, kvcache
from trimaran.base.errors import ConfigError
from trimaran.cli.app import app

TEXT = "The capital of France is Paris. Two plus two is four, and four times three is twelve."
GREEDY = SamplingParams(temperature=0, max_tokens=6)


@pytest.fixture(scope="module")
def scales(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kv")
    (folder / "text.txt").write_text(TEXT)
    out = folder / "scales.json"
    done = CliRunner().invoke(app, ["calibrate", str(smollm2), "--text", str(folder / "text.txt"), "-o", str(out)])
    assert done.exit_code == 0, done.stderr
    assert done.stdout == f"{out}\n"
    return out


def test_a_token_takes_what_its_format_says(smollm2: Path) -> None:
    model = str(smollm2)
    sizes = {fmt: kvcache.token_bytes(model, fmt) for fmt in kvcache.FORMATS}
    vectors = 30 * 3 * 2
    assert sizes["bf16"] == vectors * 128
    assert sizes["fp8-static"] == sizes["int8-static"] == vectors * 64
    assert sizes["int8"] == vectors * 68
    assert kvcache.token_bytes(model, "int8", skip_layers=[0, 29]) == 28 * 6 * 68 + 2 * 6 * 128
    with pytest.raises(ConfigError, match="'int7' is no KV format; choose one of fp32, bf16"):
        kvcache.token_bytes(model, "int7")


def test_static_scales_double_what_is_resident(smollm2: Path) -> None:
    resident = {fmt: kvcache.capacity(str(smollm2), 400 * 2**20, fmt, context=512).tokens for fmt in kvcache.FORMATS}
    for fmt, least in {"fp8-static": 2, "int8-static": 2, "int8": 1.85, "fp8": 1.85, "int4": 3.4}.items():
        assert resident[fmt] / resident["bf16"] >= 0.999 * least  # whole tokens
    one = kvcache.capacity(str(smollm2), 400 * 2**20, "bf16", context=512)
    assert (one.sequences, one.sequence_bytes) == (35, 512 * 23_040)
    for wrong in ({"context": 10**6}, {"page_size": 8}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            kvcache.capacity(str(smollm2), 2**20, "bf16", **wrong)


def test_windows_bound_what_a_sequence_takes(tmp_path: Path) -> None:
    config = json.loads((Path(__file__).parent / "data" / "families" / "gemma3_text" / "config.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config | {"max_position_embeddings": 8192, "sliding_window": 64}))
    short, long = (kvcache.capacity(str(path), 2**30, "bf16", context=tokens) for tokens in (64, 8192))
    assert long.sequence_bytes < 128 * short.sequence_bytes
    assert kvcache.token_bytes(str(path), "int4", skip_layers=["sliding"]) > kvcache.token_bytes(str(path), "int4")


@pytest.mark.parametrize("fmt", ["fp8-static", "int8-static"])
def test_a_calibrated_model_answers(smollm2: Path, scales: Path, fmt: str) -> None:
    options = {"kv_format": fmt, "kv_cache_scales": str(scales), "kv_cache_dtype_skip_layers": [0], "max_model_len": 64}
    with LLM(str(smollm2), max_num_seqs=1, **options) as llm:
        assert llm.info.kv_format == f"{fmt}+bf16"
        assert llm.generate("The capital of France is", GREEDY)[0].text.startswith(" Paris")


def test_what_was_not_calibrated_is_not_served(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_HOME", str(tmp_path))
    with pytest.raises(ConfigError, match=r"run `trimaran calibrate .*gguf` once, or name a file"):
        LLM(str(smollm2), kv_format="fp8-static", max_model_len=64)
    done = CliRunner().invoke(
        app, ["generate", str(smollm2), "Hello", "--kv-cache-scales", str(tmp_path / "none.json")]
    )
    assert done.exit_code == 2
    assert "only static formats take a file" in done.stderr
    with pytest.raises(ConfigError, match="no layer 30"):
        LLM(str(smollm2), kv_cache_dtype_skip_layers=[30], max_model_len=64)


def test_texts_that_cannot_calibrate_are_refused(smollm2: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        kvcache.calibrate(str(smollm2), [""], tmp_path / "scales.json")
    done = CliRunner().invoke(app, ["calibrate", str(smollm2), "--text", str(tmp_path / "none.txt")])
    assert done.exit_code == 2
    assert "--text: " in done.stderr
    assert len(kvcache.default_text()) > 4000
