"""Flags that several commands share: which model, how it runs, how tokens are chosen."""

from enum import StrEnum
from typing import Annotated, Any

import typer


class Weights(StrEnum):
    AUTO = "auto"
    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"
    INT4Z = "int4z"
    FP8 = "fp8"
    CODEBOOK4 = "codebook4"
    CODEBOOK3 = "codebook3"


class Pages(StrEnum):
    AUTO = "auto"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    INT8_INT4 = "int8/int4"
    INT4 = "int4"
    FP8_STATIC = "fp8-static"
    INT8_STATIC = "int8-static"
    FP32 = "fp32"


Model = Annotated[str, typer.Argument(help="A name from `trimaran models`, a source or a path.", show_default=False)]

MaxTokens = Annotated[int | None, typer.Option(min=1, metavar="N", help="Most tokens to generate.")]
Temperature = Annotated[float, typer.Option(min=0, help="0 always takes the likeliest token.")]
TopP = Annotated[float, typer.Option(help="Choose among the likeliest tokens of this total probability.")]
TopK = Annotated[int, typer.Option(help="Choose among the K likeliest tokens; 0: all.")]
MinP = Annotated[float, typer.Option(help="Drop tokens below this share of the likeliest one.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1: tokens seen before become less likely.")]
Seed = Annotated[int | None, typer.Option(help="Makes the result repeatable.", show_default=False)]
Stop = Annotated[
    list[str] | None, typer.Option(metavar="TEXT", help="End before this text (repeatable).", show_default=False)
]

Executor = Annotated[str, typer.Option(help="What computes: native, reference or null.")]
Threads = Annotated[int, typer.Option(min=0, help="Compute threads; 0: one per core.")]
WeightFormat = Annotated[Weights, typer.Option(help="How weights are held; auto: as in the file, FP8 as int8.")]
KVCacheDtype = Annotated[
    Pages,
    typer.Option(
        "--kv-cache-dtype",
        help="How keys and values are held; auto: int8 beside quantised weights (heads of 128 at most), else bf16.",
    ),
]
KVCacheScales = Annotated[
    str | None,
    typer.Option(
        "--kv-cache-scales",
        metavar="FILE",
        help="Scales for the static formats; default: the model's, else what `trimaran calibrate` left in the cache.",
        show_default=False,
    ),
]
KVSkipLayers = Annotated[
    str,
    typer.Option(
        "--kv-cache-dtype-skip-layers",
        metavar="LAYERS",
        help="Layers that stay bf16 whatever the format, such as 0,1,sliding.",
        show_default=False,
    ),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        metavar="FILE", help="Jinja file to use as the chat template; default: the model's.", show_default=False
    ),
]
MaxModelLen = Annotated[
    int | None, typer.Option(min=2, metavar="TOKENS", help="Context length; default: the model's.", show_default=False)
]
Offline = Annotated[bool, typer.Option("--offline", help="Open no socket: take the model from the cache or fail.")]


def engine_options(
    executor: str,
    threads: int,
    weights: Weights,
    pages: Pages,
    max_model_len: int | None,
    *,
    scales: str | None,
    skip_layers: str,
) -> dict[str, Any]:
    """The flags as options of ``LLM``, for one user: a sequence runs at a time, with as many choices as fit a step."""
    from trimaran.kernels.wide_layers import parse_layers

    return {
        "executor": executor,
        "threads": threads,
        "weight_format": None if weights is Weights.AUTO else weights.value,
        "kv_format": None if pages is Pages.AUTO else pages.value,
        "kv_cache_scales": scales,
        "kv_cache_dtype_skip_layers": parse_layers(skip_layers),
        "max_model_len": max_model_len,
        "max_num_seqs": 4,
    }
