import json
import stat
import sys
from pathlib import Path

import pytest

from trimaran.base.errors import ConfigError, UnsupportedError
from trimaran.bench.cases import Decode, EndToEnd, Mixed, Prefill
from trimaran.bench.llama_cpp import LlamaCpp, llama_cpp_subjects

SCRIPT = """#!{python}
import json, os, pathlib, sys
name = pathlib.Path(sys.argv[0]).name
with open({log!r}, "a") as log:
    print(json.dumps([name, sys.argv[1:], os.environ.get("OMP_WAIT_POLICY")]), file=log)
if name == "llama-bench":
    print(json.dumps({{"avg_ts": 123.5}}))
elif name == "llama-batched-bench":
    print("loading")
    print(json.dumps({{"speed_tg": 77.0, "t": 2.0}}))
else:
    pathlib.Path(sys.argv[3]).write_text("requantised")
"""


@pytest.fixture
def programs(tmp_path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("llama-bench", "llama-batched-bench", "llama-quantize"):
        program = folder / name
        program.write_text(SCRIPT.format(python=sys.executable, log=str(tmp_path / "log")))
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def calls(programs: Path) -> list:
    return [json.loads(line) for line in (programs.parent / "log").read_text().splitlines()]


def test_cases_become_the_programs_own_options(programs):
    peer = LlamaCpp(programs, Path("m.gguf"), threads=2)
    assert peer.measure(Prefill(512)) == 123.5
    assert peer.measure(Decode(128, 64)) == 123.5
    assert peer.measure(Decode(128, 32, 8)) == 77.0
    assert peer.measure(EndToEnd(8, 128, 64)) == 8 * 64 / 2.0
    assert peer.measure(Mixed(8)) is None
    prefill, decode, batch, whole = (" ".join(arguments) for _, arguments, _ in calls(programs))
    assert "-p 512 -n 0" in prefill
    assert "-p 0 -n 64 -d 128" in decode
    assert "-npp 128 -ntg 32 -npl 8 -c 1280" in batch
    assert "-npp 128 -ntg 64 -npl 8" in whole
    assert all("-m m.gguf -t 2" in text and "-fa " in text for text in (prefill, decode, batch, whole))
    assert {policy for _, _, policy in calls(programs)} == {"active"}


def test_the_copy_in_its_fastest_format_is_made_once(programs, tmp_path):
    model = tmp_path / "m.gguf"
    for _ in range(2):
        as_is, copy = llama_cpp_subjects(programs, model, threads=1)
    assert (as_is.name, copy.name) == ("llama.cpp as is", "llama.cpp Q4_0")
    copy.measure(Prefill(8))
    names = [name for name, _, _ in calls(programs)]
    assert names == ["llama-quantize", "llama-bench"]
    made = tmp_path / "models" / "m.requantised-Q4_0.gguf"
    assert made.read_text() == "requantised"
    assert str(made) in calls(programs)[-1][1]


def test_missing_programs_say_how_to_build_them(tmp_path):
    with pytest.raises(ConfigError, match="make peers"):
        LlamaCpp(tmp_path, Path("m.gguf"), threads=1)


def test_only_gguf_files_are_measured(programs, tmp_path):
    with pytest.raises(UnsupportedError, match="GGUF files only"):
        llama_cpp_subjects(programs, tmp_path, threads=1)


def test_a_failing_program_is_an_error_with_its_words(programs):
    (programs / "llama-bench").write_text(f"#!{sys.executable}\nimport sys; sys.exit('no such model')")
    with pytest.raises(UnsupportedError, match="no such model"):
        LlamaCpp(programs, Path("m.gguf"), threads=1).measure(Prefill(8))
