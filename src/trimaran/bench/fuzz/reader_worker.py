"""Reads what it is told to, in a process of its own: ``python -m trimaran.bench.fuzz.reader_worker BYTES``.

Each line of standard input is JSON ``{"kind", "path"}``; each answer a line of JSON ``{"outcome", "detail"}``:
``read``, ``refused`` (one of our typed errors), or ``bug`` (anything else, ``detail`` says where). Memory is limited
to ``BYTES`` above what the process takes when it begins; the time of a case is the parent's business.
"""

import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path

from trimaran.base.errors import TrimaranError
from trimaran.bench.fuzz.model_samples import gguf_sample
from trimaran.bench.fuzz.template_samples import CONVERSATION
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.verify import verify_model_integrity
from trimaran.engine.config import EngineConfig
from trimaran.engine.load import load_engine
from trimaran.text.gguf_vocab import read_gguf_vocab
from trimaran.text.template import ChatTemplate, open_template
from trimaran.text.tokenizer import Tokenizer, open_tokenizer
from trimaran.text.vocab_files import read_vocab

TEXT = "hello wôrld \U0001f600\n<|im_end|>\0 12345"


def read_model(path: Path) -> None:
    """All that serving a model reads: tokenizer, template, and the engine up to its first token."""
    with open_checkpoint(path) as checkpoint:
        tokenizer = open_tokenizer(checkpoint)
        tokenizer.decode(tokenizer.encode_prompt(TEXT))
        render(open_template(checkpoint, tokenizer))
    config = EngineConfig(
        model=str(path), executor="native", threads=1, max_num_seqs=2, max_num_batched_tokens=16, kv_memory_bytes=2**24
    )
    load_engine(config).close()


def read_manifest(path: Path) -> None:
    verify_model_integrity(path)


def read_template(path: Path) -> None:
    render(ChatTemplate({"default": path.read_text(encoding="utf-8", errors="surrogateescape")}, plain_tokenizer()))


def render(template: ChatTemplate) -> None:
    template.render(CONVERSATION)
    template.render(CONVERSATION[1:], add_generation_prompt=False)


def read_tokenizer(path: Path) -> None:
    tokenizer = Tokenizer(read_vocab(path, {}))
    tokenizer.decode(tokenizer.encode_prompt(TEXT))
    tokenizer.decode(tokenizer.encode(TEXT), skip_special=False)


@cache
def plain_tokenizer() -> Tokenizer:
    return Tokenizer(read_gguf_vocab(gguf_sample().metadata))


READERS: dict[str, Callable[[Path], None]] = {
    "gguf": read_model,
    "folder": read_model,
    "manifest": read_manifest,
    "template": read_template,
    "tokenizer": read_tokenizer,
}


def answer(kind: str, path: Path) -> dict[str, str]:
    """What became of one case."""
    try:
        READERS[kind](path)
    except TrimaranError as error:
        return {"outcome": "refused", "detail": f"{type(error).__name__}: {error}"[:300]}
    except BaseException as error:  # a panic of tokenizers' Rust is no Exception
        frames = traceback.extract_tb(error.__traceback__)
        ours = [frame for frame in frames if "trimaran" in frame.filename] or frames
        where = f"{Path(ours[-1].filename).name}:{ours[-1].name}"
        return {"outcome": "bug", "detail": f"{type(error).__name__} in {where}: {error}"[:300]}
    return {"outcome": "read", "detail": ""}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a reader prints is no answer
    plain_tokenizer()
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = taken + int(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin:
        case = json.loads(line)
        print(json.dumps(answer(case["kind"], Path(case["path"]))), file=answers, flush=True)


if __name__ == "__main__":
    main()
