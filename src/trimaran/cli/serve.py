"""``trimaran serve``: the OpenAI API over one model.

Flags are made from ``server/options.py``, so that flags, variables and configuration files cannot disagree.
"""

import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trimaran.base.config import is_list, option_types, resolve, scalar_types
from trimaran.base.errors import ConfigError
from trimaran.server.options import ServeOptions

if TYPE_CHECKING:
    from trimaran.engine.config import EngineConfig
    from trimaran.server.launch import Launch

_FORMATS = {"auto": None, "bfloat16": "bf16", "float32": "fp32"}
_ENGINE_NAMES = {
    "kv_cache_dtype_skip_layers": "--kv-cache-dtype-skip-layers",
    "kv_cache_scales": "--kv-cache-scales",
    "kv_memory_bytes": "--kv-cache-memory-bytes",
    "max_model_len": "--max-model-len",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "max_num_seqs": "--max-num-seqs",
    "page_size": "--block-size",
    "prefill_weight_format": "--prefill-weights",
    "speculative_ngram": "--speculative-ngram",
}


def _serve(config: Path | None, **flags: Any) -> None:
    """Serve MODEL over the OpenAI API until SIGTERM or Ctrl-C.

    An option is taken from its flag, else from its variable (TRIMARAN_MAX_MODEL_LEN for --max-model-len), else from
    the YAML file given with --config, else from its default.

    \b
    Examples:
      trimaran serve smollm2
      trimaran serve smollm2 --port 9000 --max-model-len 2k --api-key "$KEY"
      trimaran serve ./model.gguf --served-model-name small --kv-cache-memory-bytes 2G
      trimaran serve smollm2 --prefill-weights int8 --decode-weights int4z
      trimaran serve smollm2 --pools prefill=1,decode=1 --prefill-kv bf16 --decode-weights int4 --decode-kv fp8
      TRIMARAN_API_KEY=$KEY trimaran serve --config prod.yaml --host 0.0.0.0

    \b
    Then:
      curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' \\
        -d '{"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}]}'
    """
    options = resolve(ServeOptions, flags=flags, environ=os.environ, file=config)
    if not options.model:
        raise ConfigError("name a model to serve, such as: trimaran serve smollm2")
    raise typer.Exit(start(options))


def start(options: ServeOptions) -> int:
    """Runs the server that ``options`` describe; returns its exit code."""
    import asyncio
    import gc
    import logging

    import uvloop

    from trimaran import __version__
    from trimaran.checkpoint.sources import resolve as find_model
    from trimaran.server.run import Model, run

    gc.disable()  # until the server is ready: what is loaded stays
    logging.basicConfig(level=options.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", "httpcore", "asyncio", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    server = partial(importlib.import_module, "trimaran.server.assembly")  # which takes as long as a small engine
    model = find_model(options.model, offline=options.offline, meanwhile=server)
    names = options.served_model_name or (model.name,)
    launch = launch_of(options, engine_config(options, model.path, names[0]))
    with _flag_names(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(options, Model(model.path, names, __version__), launch))


def launch_of(options: ServeOptions, engine: "EngineConfig") -> "Launch":
    """What starts ``engine``, or pools of engines like it; raises ``ConfigError`` naming flags."""
    from trimaran.cli.pools import one_engine, pool_members, pool_workers
    from trimaran.server.launch import OneEngine
    from trimaran.server.launch_pools import TwoPools

    members = pool_members(options.pools)
    if members is None:
        return OneEngine(one_engine(options, engine).to_json())
    return TwoPools(*pool_workers(options, engine, *members))


def spelled(name: str) -> str | None:
    """A format's own name for one that the user may write; None for ``auto``."""
    return _FORMATS.get(name, name)


def engine_config(options: ServeOptions, path: Path, name: str) -> "EngineConfig":
    """The engine's part of ``options``; raises ``ConfigError`` on what it cannot be."""
    from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
    from trimaran.checkpoint.verification import Verification
    from trimaran.engine.config import EngineConfig
    from trimaran.kernels.wide_layers import parse_layers

    weights, kv = spelled(options.weight_format), spelled(options.kv_cache_dtype)
    more: dict[str, Any] = {"null": _null_model(options, path)} if options.executor == "null" else {}
    admitted = options.max_num_seqs + options.max_waiting  # the server counts at its door: all that it lets in fits
    with _flag_names():
        return EngineConfig(
            model=str(path),
            served_name=name,
            verify=Verification(options.verify),
            manifest_key=options.manifest_key,
            packed_cache_bytes=options.packed_cache_bytes,
            executor=options.executor,
            weight_format=None if weights is None else WeightFormat(weights),
            kv_format=None if kv is None else KVFormat(kv),
            kv_cache_scales=options.kv_cache_scales,
            kv_cache_dtype_skip_layers=parse_layers(options.kv_cache_dtype_skip_layers),
            activations=ActivationFormat(options.activations),
            max_model_len=options.max_model_len,
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            max_waiting=admitted,
            page_size=options.block_size,
            kv_memory_bytes=options.kv_cache_memory_bytes,
            prefix_caching=options.enable_prefix_caching,
            page_tags=options.page_tags,
            canary_interval=options.canary_interval,
            threads=options.threads,
            pin_threads=options.pin_threads,
            speculative_ngram=options.speculative_ngram,
            overlap=options.overlap,
            seed=options.seed,
            **more,
        )


@contextmanager
def _flag_names() -> Iterator[None]:
    """Errors of the engine name its options; here they get the names that the user typed."""
    try:
        yield
    except ConfigError as error:
        text = str(error)
        for ours, flag in _ENGINE_NAMES.items():
            text = re.sub(rf"\b{ours}\b", flag, text)
        raise ConfigError(text) from error


def _null_model(options: ServeOptions, path: Path) -> Any:
    """What the null executor plays: any text of the model's vocabulary, now and then the end of an answer."""
    from trimaran.checkpoint import open_checkpoint
    from trimaran.kernels.null_model import NullModel
    from trimaran.text.tokenizer import open_tokenizer

    checkpoint = open_checkpoint(path)
    try:
        tokenizer = open_tokenizer(checkpoint)
    finally:
        checkpoint.close()
    context = options.max_model_len or NullModel().context
    return NullModel(vocab=tokenizer.vocab_size, eos_id=min(tokenizer.eos_ids, default=None), context=context)


def _command() -> Callable[..., None]:
    """``_serve`` with one flag for every option, as typer reads it from a signature."""

    def serve(**flags: Any) -> None:
        _serve(flags.pop("config"), **flags)

    parameters = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in _annotations().items()
    ]
    serve.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # functions have one, mypy does not know
    serve.__annotations__ = _annotations()
    serve.__doc__ = _serve.__doc__
    return serve


def _annotations() -> dict[str, Any]:
    import dataclasses

    fields = {field.name: field for field in dataclasses.fields(ServeOptions)}
    annotations: dict[str, Any] = {}
    for name, kind in option_types(ServeOptions).items():
        field = fields[name]
        text, choices = field.metadata["help"], field.metadata["choices"]
        metavar = field.metadata["metavar"] or ("|".join(choices) if choices else None)
        flag = "--" + name.replace("_", "-")
        if name == "model":
            annotations[name] = Annotated[str | None, typer.Argument(help=text, metavar="MODEL", show_default=False)]
            annotations["config"] = Annotated[
                Path | None, typer.Option("--config", help="YAML file with options", metavar="FILE", show_default=False)
            ]
        elif scalar_types(kind) == {bool}:
            on_off = f"{flag}/--no-{flag.removeprefix('--')}" if field.default else flag
            annotations[name] = Annotated[bool | None, typer.Option(on_off, help=text, show_default=False)]
        elif is_list(kind):
            annotations[name] = Annotated[
                list[str] | None, typer.Option(flag, help=text, metavar=metavar, show_default=False)
            ]
        else:
            shown = text if field.default is None else f"{text} [default: {field.default}]"
            annotations[name] = Annotated[
                str | None, typer.Option(flag, help=shown, metavar=metavar, show_default=False)
            ]
    return annotations


serve = _command()
