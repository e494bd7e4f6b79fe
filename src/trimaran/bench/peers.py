"""Peers by the names that ``--peer`` takes: the programs, environments and addresses that are measured beside us."""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from trimaran.base.errors import ConfigError
from trimaran.bench.cases import Subject
from trimaran.bench.llama_cpp import llama_cpp_subjects
from trimaran.bench.over_http import OverHttp
from trimaran.bench.peer_process import PeerOptions, PeerProcess

NAMES = ("llama.cpp", "openvino", "vllm")
OPENVINO_CACHES = ("u8", "f16")  # which is faster depends on the machine and the case


@dataclass(frozen=True)
class Peers:
    """Which peers, and where they are. ``python`` runs vLLM, on ``model`` (None: the one that is measured)."""

    names: tuple[str, ...] = ()  # of NAMES, and addresses
    folder: Path = Path(".peers/bin")
    python: Path | None = None
    model: Path | None = None

    def __post_init__(self) -> None:
        for name in self.names:
            if name not in NAMES and not is_address(name):
                raise ConfigError(f"--peer takes {', '.join(NAMES)} or an address like http://host:port, not {name!r}")


def is_address(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def open_peers(peers: Peers, options: PeerOptions, stack: ExitStack) -> list[Subject]:
    """The subjects, loaded; ``stack`` closes them. Raises ``ConfigError`` when one is not installed."""
    subjects: list[Subject] = []
    for name in dict.fromkeys(peers.names):
        for subject in _subjects(name, peers, options):
            stack.callback(subject.close)
            subjects.append(subject)
    return subjects


def openvino(options: PeerOptions, folder: Path) -> PeerProcess:
    """OpenVINO as `make peers` installed it in ``folder``."""
    name, python = f"openvino {options.kv_cache}", folder / "openvino-python"
    return PeerProcess(name, "openvino", python, options, "`make peers` installs it")


def _subjects(name: str, peers: Peers, options: PeerOptions) -> Iterator[Subject]:
    match name:
        case "llama.cpp":
            yield from llama_cpp_subjects(peers.folder, Path(options.model), options.threads)
        case "openvino":
            for cache in OPENVINO_CACHES:
                yield openvino(replace(options, kv_cache=cache), peers.folder)
        case "vllm":
            if peers.python is None:
                raise ConfigError("--peer vllm needs --peer-python: the python of an environment that has vLLM")
            model = peers.model or Path(options.model)
            if not model.is_dir():
                raise ConfigError(f"vLLM reads folders from Hugging Face, not {model}; name one with --peer-model")
            yield PeerProcess(name, name, peers.python, replace(options, model=str(model)), "install vLLM there")
        case _:
            yield OverHttp(name.partition("://")[2].rstrip("/"), name, options.vocab)
