from dataclasses import replace

import pytest

from models.families import write_checkpoint
from trimaran.base.errors import ConfigError
from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.bench.cases import Decode, EndToEnd, Mixed, Prefill
from trimaran.bench.run import Setup, run

CASES = [Prefill(20), Decode(20, 3), Decode(20, 3, 4), EndToEnd(4, 20, 3), Mixed(3)]


def test_engine_and_executor_are_measured_on_the_real_model(smollm2):
    said = []
    report = run(Setup(model=smollm2, threads=1, rounds=1), CASES, said.append)
    assert [line.case for line in report.lines] == CASES
    assert all(set(line.rates) >= {"engine"} for line in report.lines)
    assert all("executor" in line.rates for line in report.lines if not isinstance(line.case, Mixed))
    assert all(line.floor > 0 for line in report.lines)
    assert "int4z" in report.formats
    assert report.machine["threads"] == 1
    assert said[0] == f"loading {smollm2.name}"
    assert "prefill 20" in report.to_text()


def test_formats_are_those_that_were_asked_for(smollm2):
    setup = Setup(model=smollm2, threads=1, rounds=1)
    setup = replace(setup, weight_format=WeightFormat.BF16, kv_format=KVFormat.FP32, activations=ActivationFormat.FP32)
    report = run(setup, [Prefill(4)], lambda _: None)
    assert report.formats.startswith("weights bf16, pages fp32")


def test_a_case_longer_than_the_models_context_is_refused(smollm2):
    with pytest.raises(ConfigError, match="needs 9001 tokens"):
        run(Setup(model=smollm2), [Prefill(9000)], lambda _: None)


@pytest.mark.parametrize("name", ["gemma3_text", "mistral"])
def test_models_with_windows_have_pages_for_every_case(tmp_path, name):
    cases = [Prefill(200), Decode(100, 3), Decode(60, 3, 4), EndToEnd(4, 50, 3)]
    report = run(Setup(model=write_checkpoint(name, tmp_path / name), threads=1, rounds=1), cases, lambda _: None)
    assert all(set(line.rates) == {"engine", "executor"} for line in report.lines)
