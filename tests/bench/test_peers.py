from contextlib import ExitStack
from pathlib import Path

import pytest

from trimaran.base.errors import ConfigError
from trimaran.bench import peers as module
from trimaran.bench.peer_process import PeerOptions
from trimaran.bench.peers import Peers, open_peers

OPTIONS = PeerOptions(model="m.gguf", threads=2, vocab=100, context=512, sequences=8, cache_gb=1)


class Fake:
    def __init__(self, name, *arguments):
        self.name, self.arguments, self.closed = name, arguments, 0

    def close(self):
        self.closed += 1


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setattr(module, "PeerProcess", Fake)
    monkeypatch.setattr(module, "llama_cpp_subjects", lambda *arguments: [Fake("llama.cpp", *arguments)])

    def open_them(peers):
        with ExitStack() as stack:
            subjects = open_peers(peers, OPTIONS, stack)
        assert {subject.closed for subject in subjects if isinstance(subject, Fake)} <= {1}
        return subjects

    return open_them


def test_peers_are_opened_in_order_and_once(opened):
    names = ("openvino", "http://127.0.0.1:9/", "llama.cpp", "openvino")
    subjects = opened(Peers(names, Path("there")))
    assert [subject.name for subject in subjects] == ["openvino u8", "openvino f16", "127.0.0.1:9", "llama.cpp"]
    assert [subjects[place].arguments[2].kv_cache for place in (0, 1)] == ["u8", "f16"]
    assert subjects[0].arguments[:2] == ("openvino", Path("there/openvino-python"))
    assert subjects[3].arguments == (Path("there"), Path("m.gguf"), 2)


def test_vllm_needs_a_python_and_a_folder(opened, tmp_path):
    with pytest.raises(ConfigError, match="--peer-python"):
        opened(Peers(("vllm",)))
    with pytest.raises(ConfigError, match=r"reads folders from Hugging Face, not m\.gguf"):
        opened(Peers(("vllm",), python=Path("p")))
    [subject] = opened(Peers(("vllm",), python=Path("p"), model=tmp_path))
    assert (subject.arguments[1], subject.arguments[2].model) == (Path("p"), str(tmp_path))


@pytest.mark.parametrize("name", ["llamacpp", "127.0.0.1:8000", ""])
def test_what_is_no_peer_is_refused(name):
    with pytest.raises(ConfigError, match=r"--peer takes llama\.cpp, openvino, vllm or an address"):
        Peers((name,))
