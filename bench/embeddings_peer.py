"""transformers as a subject of bench/embeddings.py, in a Python that has it: texts in, vectors out, as JSON."""

import base64
import json
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, BertConfig, BertModel

BATCH = 32


def main(folder: Path, threads: int) -> None:
    torch.set_num_threads(threads)
    model = BertModel(BertConfig.from_pretrained(folder)).eval()
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for line in sys.stdin:
        texts = json.loads(line)
        began = time.perf_counter()
        order = sorted(range(len(texts)), key=lambda number: -len(texts[number]))
        vectors = torch.empty(len(texts), model.config.hidden_size)
        for first in range(0, len(texts), BATCH):
            numbers = order[first : first + BATCH]
            inputs = tokenizer([texts[number] for number in numbers], padding=True, return_tensors="pt")
            with torch.inference_mode():
                rows = model(**inputs).last_hidden_state
            seen = inputs["attention_mask"][..., None].float()
            vectors[numbers] = torch.nn.functional.normalize((rows * seen).sum(1) / seen.sum(1), dim=1)
        seconds = time.perf_counter() - began
        print(
            json.dumps({"seconds": seconds, "vectors": base64.b64encode(vectors.numpy().tobytes()).decode()}),
            flush=True,
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
