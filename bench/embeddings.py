"""Vectors of 1,000 texts: how near they are to those of transformers, and how many a second both make.

    make goldens                    # for an environment with transformers, once
    python bench/embeddings.py minilm --peer .venv-goldens/bin/python
    python bench/embeddings.py minilm --weight-format bf16

The texts are 4 to 40 words in a row of what lies in bench/calibration and bench/texts. Ours go through the engine as
one request, as from the server; transformers gets float32, as many threads, and batches of 32 by falling length, as
sentence-transformers makes them. Rounds of both alternate; medians are reported. Ends with status 1 when a vector's
cosine with transformers' is below 0.9999.
"""

import argparse
import base64
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trimaran.base.formats import WeightFormat
from trimaran.base.messages import Embed, Embedded
from trimaran.checkpoint.sources import resolve
from trimaran.engine.config import EngineConfig
from trimaran.engine.encoder import Encoder
from trimaran.engine.load import load_any
from trimaran.kernels.step import Float32
from trimaran.text.encoder_tokenizer import EncoderTokenizer

HERE = Path(__file__).resolve().parent
LEAST_COSINE = 0.9999
SHORTEST, LONGEST = 4, 40  # words


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path of an encoder")
    parser.add_argument("--peer", type=Path, help="a Python with torch and transformers")
    parser.add_argument("--texts", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0, help="0: one per core")
    parser.add_argument("--weight-format", type=WeightFormat, help="default: as in the file")
    given = parser.parse_args()
    path = resolve(given.model).path
    texts = sentences(given.texts)
    config = EngineConfig(model=str(path), threads=given.threads, weight_format=given.weight_format)
    encoder = load_any(config)
    assert isinstance(encoder, Encoder), f"{given.model} is no encoder"
    tokenizer = EncoderTokenizer(path / "tokenizer.json")
    peer = None if given.peer is None else Peer(given.peer, path, encoder.info.threads)
    ours: list[float] = []
    theirs: list[float] = []
    vectors = other = np.zeros((0, 0), np.float32)
    for _ in range(given.rounds):
        seconds, vectors = embed(encoder, tokenizer, texts)
        ours.append(seconds)
        if peer is not None:
            seconds, other = peer.embed(texts)
            theirs.append(seconds)
    info = encoder.info
    encoder.close()
    tokens = sum(map(len, tokenizer.encode(texts)))
    print(f"{len(texts)} texts, {tokens} tokens, {info.threads} threads, {info.isa}, weights {info.weight_format}\n")
    print(f"{'':<16}{'texts/s':>10}{'tokens/s':>12}")
    for name, times in (("trimaran", ours), ("transformers", theirs)):
        if times:
            second = statistics.median(times)
            print(f"{name:<16}{len(texts) / second:>10,.0f}{tokens / second:>12,.0f}")
    if peer is None:
        return 0
    peer.close()
    cosine = (vectors * other).sum(1) / np.linalg.norm(vectors, axis=1) / np.linalg.norm(other, axis=1)
    print(f"\ntimes transformers' speed {statistics.median(theirs) / statistics.median(ours):.2f}")
    print(f"cosine: least {cosine.min():.7f}, mean {cosine.mean():.7f}")
    return 0 if cosine.min() >= LEAST_COSINE else 1


def sentences(count: int) -> list[str]:
    """The same ``count`` pieces of the texts, on every machine."""
    files = sorted([*(HERE / "calibration").glob("*.txt"), *(HERE / "texts").glob("*.txt")])
    words = " ".join(file.read_text("utf-8") for file in files).split()
    rng = np.random.default_rng(0)
    lengths = rng.integers(SHORTEST, LONGEST + 1, count).tolist()
    starts = rng.integers(0, len(words) - LONGEST, count).tolist()
    return [" ".join(words[start : start + length]) for start, length in zip(starts, lengths, strict=True)]


def embed(encoder: Encoder, tokenizer: EncoderTokenizer, texts: Sequence[str]) -> tuple[float, Float32]:
    """Seconds from text to vectors, and these ``[texts, width]``."""
    began = time.perf_counter()
    encoder.submit(Embed("bench", tokenizer.encode(texts)))
    answers = []
    while not encoder.idle:
        answers += encoder.step()
    seconds = time.perf_counter() - began
    [answer] = answers
    assert isinstance(answer, Embedded), answer
    return seconds, np.frombuffer(answer.vectors, "<f4").reshape(len(texts), -1)


class Peer:
    """transformers in a process of its own, from text to vectors."""

    def __init__(self, python: Path, model: Path, threads: int) -> None:
        # -P: what lies beside the program is not what transformers means by the same names
        arguments = [str(python), "-P", str(HERE / "embeddings_peer.py"), str(model), str(threads)]
        self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.embed(["It warms up."])

    def embed(self, texts: Sequence[str]) -> tuple[float, Float32]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(texts), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("transformers ended; see above why")
        answer = json.loads(line)
        data = np.frombuffer(base64.b64decode(answer["vectors"]), "<f4")
        return answer["seconds"], data.reshape(len(texts), -1)

    def close(self) -> None:
        self._process.communicate(timeout=30)


if __name__ == "__main__":
    sys.exit(main())
