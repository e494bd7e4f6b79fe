"""The profile of the native executor: every op in it, counted, and nothing of it unless it was asked for."""

import re

import numpy as np
import pytest

from trimaran import _probe
from trimaran.base.errors import ConfigError
from trimaran.base.formats import WeightFormat
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.native_profile import HEADER, PHASES
from trimaran.kernels.program import Add, Glu, Program, RmsNorm
from trimaran.kernels.step import ExecutorOptions

from .single_op import X, buffer, fp32, named, rows_step
from .single_op import program as program_around
from .tiny import CONFIG, Rows, program, random_tokens, random_weights, step

OPTIONS = ExecutorOptions(num_pages=60, max_rows=200, max_sequences=200, threads=2)
KINDS = ["embed", "qkv", "attention", "o_proj", "gate_up", "down_proj", "lm_head", "all"]
PAGES = list(range(1, 11))


@pytest.fixture
def profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles, on a machine that reads 1 GB/s and does 1 GOP/s of int8 and 0.1 of fp32."""
    monkeypatch.setenv("TRIMARAN_PROFILE", "1")
    monkeypatch.setattr(_probe, "read_seconds", lambda size, threads, passes: [size / 1e9])
    monkeypatch.setattr(_probe, "multiply_rate", lambda int8, threads, passes: [1e9 if int8 else 1e8])


def executor(made: Program | None = None) -> NativeExecutor:
    made = made or program()
    return NativeExecutor(made, random_weights(made, WeightFormat.INT8), OPTIONS)


def parse(text: str) -> dict[str, dict[str, list[str]]]:
    """By phase and op: the cells of the line, those that are blank left out."""
    phases: dict[str, dict[str, list[str]]] = {}
    for part in text.strip().split("\n\n"):
        title, header, *lines = part.splitlines()
        assert header.split() == list(HEADER)
        named = re.fullmatch(r"profile, steps of (.+): (\d+) steps, (\S+) rows on average", title)
        assert named is not None
        phases[named[1]] = {line.split()[0]: line.split()[1:] for line in lines}
        phases[named[1]]["steps"] = [named[2], named[3]]
    return phases


def run_three_phases(runner: NativeExecutor) -> None:
    tokens = random_tokens(150)
    runner.run(step(Rows(tokens[:100], 0, PAGES), logits_rows=[]))  # the first chunk of a prompt
    runner.run(step(Rows(tokens[:120], 0, PAGES), logits_rows=[119]))
    runner.run(step(Rows(tokens[:2], 100, PAGES), Rows(tokens[:1], 30, [20, 21])))
    for position in (120, 121):
        runner.run(step(Rows(tokens[:1], position, PAGES)))


@pytest.mark.usefixtures("profiled")
def test_every_op_is_counted_by_phase(capfd: pytest.CaptureFixture[str]) -> None:
    runner = executor()
    run_three_phases(runner)
    assert capfd.readouterr() == ("", "")
    runner.close()
    out, err = capfd.readouterr()
    assert out == ""
    phases = parse(err)
    assert list(phases) == list(PHASES)
    for lines, steps, rows, with_logits in zip(phases.values(), (2, 1, 2), (1, 3, 110), (2, 1, 1), strict=True):
        assert [kind for kind in lines if kind != "steps"] == KINDS
        assert lines["steps"] == [str(steps), f"{rows:.1f}"]
        calls = {kind: int(lines[kind][0]) for kind in KINDS}
        layers = dict.fromkeys(["qkv", "attention"], CONFIG.layers * steps)
        layers |= dict.fromkeys(["o_proj", "gate_up", "down_proj"], (CONFIG.layers - 1) * steps + with_logits)
        assert calls == {"embed": steps, **layers, "lm_head": with_logits, "all": sum(calls.values()) - calls["all"]}
        micros = [float(lines[kind][1]) for kind in KINDS]
        assert micros[-1] > 0
        assert sum(micros[:-1]) == pytest.approx(micros[-1], abs=1)
        assert lines["all"][2] == "100.0%"
    runner.close()
    assert capfd.readouterr().err == ""  # once


@pytest.mark.usefixtures("profiled")
def test_bytes_and_operations(capfd: pytest.CaptureFixture[str]) -> None:
    runner = executor()
    run_three_phases(runner)
    runner.close()
    one, few, many = parse(capfd.readouterr().err).values()
    layers, hidden, vocab = CONFIG.layers, CONFIG.hidden, CONFIG.vocab
    qkv = layers * hidden * (CONFIG.q_width + 2 * CONFIG.kv_width)

    def figures(cells: list[str]) -> list[float]:
        return [float(cells[3]) * 1e6, float(cells[5]) * 1e6]  # bytes and operations per step

    def near(*expected: float) -> object:
        return pytest.approx(expected, rel=0.02, abs=500.1)  # of a million, up to three decimals are printed

    assert figures(one["qkv"]) == near(qkv * 34 / 32, 2 * qkv)
    assert figures(few["qkv"]) == near(qkv * 34 / 32, 2 * qkv * 3)
    assert figures(many["qkv"]) == near(qkv * 34 / 32, 2 * qkv * 110)
    greedy = vocab * hidden * (34 - 16) / 32  # the high halves and the scales
    assert figures(many["lm_head"]) == near(greedy / 2, 2 * vocab * hidden / 2)  # in one of two steps
    token, score = 2 * layers * CONFIG.kv_width * 2, 4 * layers * CONFIG.q_width
    assert figures(one["attention"]) == near(token * (121 + 122) / 2, score * (121 + 122) / 2)
    assert figures(few["attention"]) == near(token * (102 + 31), score * (101 + 102 + 31))
    of_first, of_last = (layers - 1) / layers, 1 / layers  # of which the last computes what its one row needs
    assert figures(many["attention"]) == near(
        token * (of_first * (100 + 120) + of_last * 120) / 2,
        score * (of_first * (100 * 101 + 120 * 121) / 2 + of_last * 120) / 2,
    )
    assert float(one["embed"][3]) * 1e6 == pytest.approx(hidden * 34 / 32, abs=500.1)
    assert len(one["embed"]) == len(HEADER) - 3  # no operations

    def floor(cells: list[str]) -> float:
        """Microseconds of a step."""
        return float(cells[-1].rstrip("%")) / 100 * float(cells[1])

    assert floor(many["qkv"]) == pytest.approx(2 * qkv * 110 / 1e9 * 1e6, rel=0.05)
    assert floor(one["attention"]) == pytest.approx(score * (121 + 122) / 2 / 1e8 * 1e6, rel=0.05)


@pytest.mark.usefixtures("profiled")
def test_ops_that_were_not_fused_have_lines(capfd: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    x, normed, gated, total = buffer("x", 32), buffer("normed", 32), buffer("gated", 16), buffer("total", 16)
    weights = [fp32(X, rng.standard_normal((5, 32))), fp32("norm", np.ones(32))]
    ops = [RmsNorm(normed, x, "norm", 1e-5), Glu(gated, normed), Add(total, gated, gated)]
    runner = NativeExecutor(program_around(ops, weights, total), named(weights), OPTIONS)
    runner.run(rows_step([1, 4, 0]))
    runner.close()
    (lines,) = parse(capfd.readouterr().err).values()
    kinds = ["embed", "rms_norm", "swiglu", "add", "take_rows", "logits"]
    assert [(kind, lines[kind][0]) for kind in kinds] == [(kind, "1") for kind in kinds]


@pytest.mark.usefixtures("profiled")
def test_without_a_step_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    executor().close()
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("value", [None, "", "0", "false"])
def test_off_unless_asked_for(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], value: str | None
) -> None:
    if value is None:
        monkeypatch.delenv("TRIMARAN_PROFILE", raising=False)
    else:
        monkeypatch.setenv("TRIMARAN_PROFILE", value)
    runner = executor()
    monkeypatch.setenv("TRIMARAN_PROFILE", "1")  # too late: it is read when the executor is built
    run_three_phases(runner)
    runner.close()
    assert capfd.readouterr() == ("", "")


def test_a_value_that_is_neither_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMARAN_PROFILE", "perhaps")
    with pytest.raises(ConfigError, match="TRIMARAN_PROFILE='perhaps'"):
        executor()


def test_the_results_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = step(Rows(random_tokens(150), 0, PAGES))
    plain = executor().run(rows).logits
    monkeypatch.setenv("TRIMARAN_PROFILE", "1")
    timed = executor().run(rows).logits
    assert plain is not None
    assert timed is not None
    assert plain.tobytes() == timed.tobytes()
