import json
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from trimaran.base.errors import ConfigError, UnsupportedError
from trimaran.bench.cases import Decode, EndToEnd, Mixed, Prefill
from trimaran.bench.peer_process import PeerOptions, PeerProcess
from trimaran.bench.processes import tree

OPTIONS = PeerOptions(model="m.gguf", threads=2, vocab=100, context=512, sequences=8, cache_gb=1, kv_cache="f16")

# Each fake admits two prompts a step, gives every admitted request a token a step, and notes what it was told.
OPENVINO = """
import json, os
__version__ = "2026.0-fake"
print("what a peer prints is no answer")

class SchedulerConfig: pass
class GenerationConfig: pass

class Handle:
    def __init__(self, length, config):
        self.length, self.left, self.new = length, config.max_new_tokens, 0
        assert config.ignore_eos and not config.do_sample
    def can_read(self): return self.new > 0
    def read(self):
        self.new = 0
        return {0: "a token"}
    def stop(self): self.left = self.new = 0

class ContinuousBatchingPipeline:
    def __init__(self, model, scheduler, device, properties, other):
        self.handles, self.seen = [], 0
        told = [model, device, properties, vars(scheduler)]
        open(os.environ["NOTES"], "a").write(json.dumps(told) + "\\n")
    def add_request(self, number, tokens, config):
        self.handles.append(Handle(len(tokens.values[0]), config))
        return self.handles[-1]
    def step(self):
        self.seen = min(self.seen + 2, len(self.handles))
        for handle in self.handles[:self.seen]:
            if handle.left:
                handle.left -= 1
                handle.new += 1
        open(os.environ["NOTES"], "a").write(json.dumps([h.length for h in self.handles if h.new]) + "\\n")
    def has_non_finished_requests(self): return any(handle.left for handle in self.handles)
"""
TENSOR = """
class Tensor:
    def __init__(self, values):
        assert str(values.dtype) == "int64" and values.min() >= 3 and values.max() < 100
        self.values = values
"""
VLLM = """
import json, os
from types import SimpleNamespace
__version__ = "0.0-fake"
SamplingParams = EngineArgs = SimpleNamespace

class LLMEngine:
    @classmethod
    def from_engine_args(cls, arguments):
        engine = cls()
        engine.open, engine.seen = {}, 0
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        open(os.environ["NOTES"], "a").write(json.dumps(vars(arguments)) + "\\n")
        return engine
    def add_request(self, name, prompt, sampling):
        assert sampling.ignore_eos and sampling.temperature == 0
        self.open[name] = sampling.max_tokens
    def step(self):
        self.seen += 2
        outputs = []
        for name in list(self.open)[:self.seen]:
            self.open[name] -= 1
            done = self.open[name] == 0
            outputs.append(SimpleNamespace(request_id=name, finished=done, outputs=[SimpleNamespace(token_ids=[1])]))
            if done:
                del self.open[name]
        return outputs
    def has_unfinished_requests(self): return bool(self.open)
    def abort_request(self, names):
        for name in names: del self.open[name]
"""


@pytest.fixture
def python(tmp_path) -> Path:
    """This Python, with a stand-in for each peer."""
    for name, source in {"openvino_genai": OPENVINO, "openvino": TENSOR, "vllm": VLLM}.items():
        (tmp_path / f"{name}.py").write_text(source)
    return wrapper(tmp_path, f"PYTHONPATH={tmp_path} NOTES={tmp_path}/notes")


def wrapper(folder: Path, environment: str) -> Path:
    program = folder / "python"
    program.write_text(f'#!/bin/sh\n{environment} exec {sys.executable} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def notes(python: Path) -> list:
    return [json.loads(line) for line in (python.parent / "notes").read_text().splitlines()]


@pytest.fixture(params=["openvino", "vllm"])
def peer(request, python):
    found = PeerProcess(request.param, request.param, python, OPTIONS, "install it")
    yield found
    found.close()


@pytest.mark.parametrize("case", [Prefill(20), Decode(20, 3), Decode(20, 3, 5), EndToEnd(4, 20, 3), Mixed(3)])
def test_every_case_has_a_figure_and_leaves_nothing_behind(peer, case):
    assert [peer.measure(case) > 0 for _ in range(2)] == [True, True]


def test_openvino_gets_its_best_settings(python):
    peer = PeerProcess("openvino", "openvino", python, OPTIONS, "install it")
    assert peer.version == "2026.0-fake"
    peer.measure(Prefill(20))
    peer.close()
    [model, device, properties, scheduler], *steps = notes(python)
    assert (model, device) == ("m.gguf", "CPU")
    assert steps == [[20], [20]], "to warm up, and to be timed"
    assert properties == {"INFERENCE_NUM_THREADS": 2, "KV_CACHE_PRECISION": "f16"}
    assert scheduler == {
        "cache_size": 1,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 2048,
        "enable_prefix_caching": False,
    }


def test_decoding_is_timed_once_every_sequence_decodes(python):
    peer = PeerProcess("openvino", "openvino", python, OPTIONS, "install it")
    peer.measure(Decode(20, steps=4, sequences=5))
    peer.close()
    together = [step for step in notes(python)[1:] if len(step) == 5]
    assert len(together) == 2 * (1 + 4), "twice: the step that brings the last first token, then those that are timed"


def test_vllm_is_told_the_folder_and_the_lengths(python):
    PeerProcess("vllm", "vllm", python, replace(OPTIONS, model="folder"), "install it").close()
    [told] = notes(python)
    assert (told["model"], told["max_model_len"], told["enable_prefix_caching"]) == ("folder", 512, False)


def test_closing_ends_the_process(python):
    peer = PeerProcess("openvino", "openvino", python, OPTIONS, "install it")
    assert len(list(tree(os.getpid()))) == 2
    peer.close()
    peer.close()
    assert len(list(tree(os.getpid()))) == 1


def test_a_missing_environment_and_a_missing_module_say_what_to_do(tmp_path):
    with pytest.raises(ConfigError, match="python is missing: install it"):
        PeerProcess("openvino", "openvino", tmp_path / "python", OPTIONS, "install it")
    with pytest.raises(ConfigError, match=r"cannot run openvino .*openvino_genai.*: install it"):
        PeerProcess("openvino", "openvino", wrapper(tmp_path, ""), OPTIONS, "install it")


def test_a_failing_peer_is_an_error_with_its_words(python, tmp_path):
    (tmp_path / "openvino.py").write_text("raise OSError('no such model')")
    with pytest.raises(UnsupportedError, match="openvino failed: OSError: no such model"):
        PeerProcess("openvino", "openvino", python, OPTIONS, "install it")
    (tmp_path / "openvino.py").write_text("import sys; sys.exit('out of memory')")
    with pytest.raises(UnsupportedError, match="openvino failed: out of memory"):
        PeerProcess("openvino", "openvino", python, OPTIONS, "install it")


def test_a_peer_that_dies_between_measurements_is_an_error(python, tmp_path):
    (tmp_path / "openvino.py").write_text("def Tensor(values): import os; os._exit(3)")
    peer = PeerProcess("openvino", "openvino", python, OPTIONS, "install it")
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="openvino failed: "):
            peer.measure(Prefill(8))
    peer.close()
