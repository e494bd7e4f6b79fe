"""Scales of keys and values that a checkpoint brings along, as compressed-tensors and FP8 checkpoints store them."""

import re

import numpy as np

from trimaran.base.errors import CheckpointError
from trimaran.base.formats import HeadsCache, KVFormat
from trimaran.checkpoint import Checkpoint
from trimaran.kernels.kv_scales import KVScales
from trimaran.kernels.program import Attention, Program
from trimaran.models.names import text_name
from trimaran.quant.stored import plain

_SCALE = re.compile(r"model\.layers\.(\d+)\.self_attn\.(?:attn\.)?([kv])_scale")


def stored_scales(checkpoint: Checkpoint, program: Program) -> KVScales | None:
    """The checkpoint's own scales for ``fp8-static`` pages (``k_scale``, ``v_scale``: one value a layer, or one a kv
    head), or ``None`` when it has none. Raises ``CheckpointError`` when some are missing or misshapen."""
    attention = [op for op in program.ops if isinstance(op, Attention)]
    shapes = [
        (cache.layers, cache.kv_heads)
        for cache in (group.caches[0] for group in program.groups)
        if isinstance(cache, HeadsCache)
    ]
    if len(shapes) != len(program.groups) or not any(_SCALE.fullmatch(text_name(name)) for name in checkpoint.names):
        return None
    groups = [np.zeros((2, *shape), np.float32) for shape in shapes]
    for tensor in checkpoint.tensors():
        match = _SCALE.fullmatch(text_name(tensor.name))
        if match is None or int(match[1]) >= len(attention):  # layers behind the model's predict further tokens
            continue
        op = attention[int(match[1])]
        values = plain(tensor).values(slice(None)).ravel()
        if len(values) not in (1, op.kv_heads):
            raise CheckpointError(f"tensor {tensor.name} has {len(values)} scales, for {op.kv_heads} kv heads")
        groups[op.group]["kv".index(match[2]), op.layer] = values
    if any((scales == 0).any() for scales in groups):
        raise CheckpointError("the checkpoint has k_scale and v_scale of some layers only")
    return KVScales(KVFormat.FP8_STATIC, tuple(groups))
