"""Reads checkpoints that ``trimaran compress`` writes with other libraries, and compares every number, bit by bit.

compressed-tensors decompresses int4 modules as the configuration written beside them says; transformers loads the whole
models, int4 and FP8, and multiplies them out in bf16. One matrix of each kind goes to tests/data/compressed.safetensors
with what they make of it (``expected``). Run by ``make interop``.
"""

import json
import tempfile
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file, save_file
from tests.models.families import write_checkpoint
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, FineGrainedFP8Config

from trimaran.checkpoint import open_checkpoint
from trimaran.compress.recipe import Fp8Blocks, Int4, Recipe
from trimaran.compress.run import compress
from trimaran.quant.logical import logical_tensors

FILE = Path(__file__).resolve().parent.parent / "tests" / "data" / "compressed.safetensors"
RECIPES: dict[str, Recipe] = {"int4_group32": Int4(32), "int4_group64": Int4(64), "fp8": Fp8Blocks()}
SAMPLE = "model.layers.0.self_attn.o_proj"

Tensors = dict[str, torch.Tensor]


def main() -> None:
    kept: Tensors = {}
    for model in ("llama3", "qwen3_moe"):
        for case, recipe in RECIPES.items():
            with tempfile.TemporaryDirectory() as folder:
                kept |= check(model, case, recipe, Path(folder))
    save_file(kept, FILE)
    print(f"{FILE}: {FILE.stat().st_size} bytes")


def check(model: str, case: str, recipe: Recipe, folder: Path) -> Tensors:
    """Compresses and reads again; the sample's tensors."""
    small = folder / "small"
    with open_checkpoint(write_checkpoint(model, folder / "source")) as source:
        compress(source, recipe, small)
    with open_checkpoint(small) as checkpoint:
        ours = {
            tensor.name: torch.from_numpy(tensor.open().values(slice(None))).bfloat16()
            for tensor in logical_tensors(checkpoint)
        }
    stored = load_file(small / "model.safetensors")
    theirs = decompressed(small, stored) if case != "fp8" else {}
    for name, values in theirs.items():
        assert torch.equal(values, ours[name]), (model, case, name)
    loaded = load_whole(small, case)
    shared = [name for name in loaded if name in ours]
    for name in shared:
        assert torch.equal(loaded[name].reshape(ours[name].shape), ours[name]), (model, case, name)
    print(
        f"{model} {case}: {len(theirs)} modules by compressed-tensors, {len(shared)} tensors by transformers: the same"
    )
    sample = {name.removeprefix(f"{SAMPLE}."): value for name, value in stored.items() if name.startswith(SAMPLE)}
    sample["expected"] = loaded[f"{SAMPLE}.weight"].contiguous()
    return {f"{case}.{leaf}": value for leaf, value in sample.items()} if model == "llama3" else {}


def decompressed(folder: Path, stored: Tensors) -> Tensors:
    config = json.loads((folder / "config.json").read_text("utf-8"))["quantization_config"]
    read = QuantizationConfig.model_validate(config)
    compressor = BaseCompressor.get_value_from_registry(read.format)
    found = {}
    for module in [name.removesuffix(".weight_packed") for name in stored if name.endswith(".weight_packed")]:
        state = {leaf: stored[f"{module}.{leaf}"] for leaf in ("weight_packed", "weight_scale", "weight_shape")}
        found[f"{module}.weight"] = compressor.decompress(state, read.config_groups["group_0"])["weight"]
    return found


def load_whole(folder: Path, case: str) -> Tensors:
    """Its tensors by transformers, in bf16; experts that it stacks are left out."""
    config = FineGrainedFP8Config(dequantize=True) if case == "fp8" else CompressedTensorsConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, dtype=torch.bfloat16)
    return dict(model.state_dict())


if __name__ == "__main__":
    main()
