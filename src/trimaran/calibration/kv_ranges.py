"""How large a model's keys and values become, by layer and kv head: what static scales are made from.

The file is JSON: the digest of the model, the number of tokens that were run through it, and for each layer the largest
magnitudes of keys and values, as they are and after the transform that integer pages hold them in (``turned``), which
goes over ``together`` dimensions.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from trimaran.base.errors import ConfigError, UnsupportedError
from trimaran.base.formats import GROUP, HeadsCache, KVFormat, hadamard_width
from trimaran.calibration.forward import Forward
from trimaran.calibration.stored_scales import stored_scales
from trimaran.calibration.weights import StreamedWeights
from trimaran.checkpoint import Checkpoint, environment
from trimaran.kernels import reference_ops as ops
from trimaran.kernels.kv_scales import KVScales
from trimaran.kernels.program import Attention, Program
from trimaran.kernels.step import Float32
from trimaran.models.registry import build_program, read_config
from trimaran.quant.logical import logical_tensors

HEADROOM = 1.0  # of a scale over the largest number that calibration met
_LARGEST = {KVFormat.FP8_STATIC: 448, KVFormat.INT8_STATIC: 127}
_LEAST = 2.0**-40  # of a range: a head that calibration saw only zeros of gets some scale
_MOST_FILE = 64 << 20


class LayerRanges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Largest magnitudes of one layer, by kv head."""

    keys: list[float]
    values: list[float]
    turned_keys: list[float]
    turned_values: list[float]
    together: int = GROUP  # files of older versions do not say


class Ranges(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``layers``: all of the model's. ``model`` is ``Checkpoint.sampled``."""

    model: str
    tokens: int
    layers: list[LayerRanges]
    kind: str = "trimaran kv ranges"

    def scales(self, fmt: KVFormat, program: Program) -> tuple[KVScales, ...]:
        """The scales of a static format, of others none; raises ``ConfigError`` unless the ranges are of such a
        model."""
        if not fmt.static:
            return ()
        groups: list[Float32 | None] = [
            np.ones((2, cache.layers, cache.kv_heads), np.float32) if isinstance(cache, HeadsCache) else None
            for cache in (group.caches[0] for group in program.groups)
        ]
        attention = [op for op in program.ops if isinstance(op, Attention)]
        if len(attention) != len(self.layers):
            raise ConfigError(f"ranges of {len(self.layers)} layers, for a model of {len(attention)}")
        for op, layer in zip(attention, self.layers, strict=True):
            scales = groups[op.group]
            assert scales is not None, "attention has a cache of heads"
            if fmt.integer and layer.together != hadamard_width(fmt, op.head_dim):
                raise ConfigError(
                    f"ranges of {fmt} pages were measured after transforms of {layer.together} dimensions, which are "
                    f"{hadamard_width(fmt, op.head_dim)} now: run `trimaran calibrate` again"
                )
            of_keys, of_values = layer.turned_keys if fmt.integer else layer.keys, layer.values
            if fmt.turned_values:
                of_values = layer.turned_values
            for part, ranges in enumerate((of_keys, of_values)):
                if len(ranges) != op.kv_heads or not np.isfinite(ranges).all():
                    raise ConfigError(f"ranges of a layer are {ranges}, not {op.kv_heads} finite numbers")
                scales[part, op.layer] = np.maximum(ranges, _LEAST) * (HEADROOM / _LARGEST[fmt])
        return (KVScales(fmt, tuple(groups)),)


class _Ranging(Forward):
    """Notes keys and values on their way into attention."""

    layers: list[LayerRanges]

    def _attention(self, op: Attention, qkv: Float32) -> Float32:
        heads = qkv.reshape(len(qkv), -1, op.head_dim)
        _, k, v = np.split(heads, [op.heads, op.heads + op.kv_heads], axis=1)
        k = self._head_norm(k, op.k_norm)
        keys = np.concatenate([ops.rotate(k[text], *self._rope(op, text)) for text in self._texts])
        together = hadamard_width(KVFormat.INT8_STATIC, op.head_dim)
        turned = [ops.hadamard(part, together) for part in (keys, v)]
        k, v, turned_k, turned_v = (np.abs(part).max(axis=(0, 2)).tolist() for part in (keys, v, *turned))
        self.layers.append(LayerRanges(k, v, turned_k, turned_v, together))
        return super()._attention(op, qkv)


def measure_ranges(checkpoint: Checkpoint, texts: Sequence[Sequence[int]]) -> Ranges:
    """The ranges over ``texts``, token ids from each text's first position on.

    Holds one matrix in memory at a time. Raises ``UnsupportedError`` for a model whose cache is not keys and values.
    """
    cfg = read_config(checkpoint)
    program = build_program(cfg)
    if not all(isinstance(cache, HeadsCache) for group in program.groups for cache in group.caches):
        raise UnsupportedError(f"{cfg.family} caches latents, and pages of latents have no static format")
    weights = StreamedWeights(logical_tensors(checkpoint), checkpoint.kind, cfg, program, checkpoint.release)
    forward = _Ranging(program, weights, texts)
    forward.layers = []
    forward.run()
    return Ranges(checkpoint.sampled, sum(map(len, texts)), forward.layers)


def default_path(digest: str) -> Path:
    """Where the ranges of the model with this digest lie unless somebody says otherwise: in the cache."""
    return environment.home() / "kv-ranges" / f"{digest}.json"


def write_ranges(path: Path, ranges: Ranges) -> None:
    """Writes the file whole or not at all; raises ``ConfigError`` when it cannot be written."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(ranges), indent=1))
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def read_ranges(path: Path, digest: str) -> Ranges:
    """The ranges in a file; raises ``ConfigError`` when it is missing, damaged, or of a model with another digest."""
    try:
        if path.stat().st_size > _MOST_FILE:
            raise ConfigError(f"{path} is too large to be ranges of keys and values")
        ranges = msgspec.json.decode(path.read_bytes(), type=Ranges)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{path} holds no ranges of keys and values ({error}); `trimaran calibrate` writes them"
        ) from None
    if ranges.model != digest:
        raise ConfigError(f"{path} was made for another model: run `trimaran calibrate` for this one")
    return ranges


def scales_for(
    fmt: KVFormat, checkpoint: Checkpoint, program: Program, path: str | Path | None
) -> tuple[KVScales, ...]:
    """What pages of ``fmt`` need beside them: nothing, or the scales in the file at ``path``, else those in the
    checkpoint, else those in the cache.

    Raises ``ConfigError`` that names ``trimaran calibrate`` when there are none, and when a file is given in vain.
    """
    if not fmt.static:
        if path is not None:
            raise ConfigError(f"kv_cache_scales: {fmt} pages have scales of their own; only static formats take a file")
        return ()
    if path is not None:
        return read_ranges(Path(path), checkpoint.sampled).scales(fmt, program)
    if fmt is KVFormat.FP8_STATIC and (stored := stored_scales(checkpoint, program)) is not None:
        return (stored,)
    kept = default_path(checkpoint.sampled)
    if not kept.is_file():
        model = checkpoint.path if checkpoint.kind == "gguf" else checkpoint.directory
        raise ConfigError(
            f"{fmt} pages have no scales of their own and there are none for this model: run `trimaran calibrate "
            f"{model}` once, or name a file with kv_cache_scales"
        )
    return read_ranges(kept, checkpoint.sampled).scales(fmt, program)
