"""From an ``EngineConfig`` to an engine that has produced its first token."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from trimaran.base.errors import ConfigError, NumericsError, UnsupportedError
from trimaran.base.formats import KVFormat
from trimaran.base.messages import CachePages, Failed, FromEngine, Role, Started, Submit
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint import Checkpoint
from trimaran.engine.canary import prove
from trimaran.engine.config import EngineConfig
from trimaran.engine.constraints.tokens import TokenTable, read_token_table
from trimaran.engine.decoding import DecodeEngine
from trimaran.engine.encoder import Encoder
from trimaran.engine.engine import Engine
from trimaran.engine.known_answer import KnownAnswer
from trimaran.engine.limits import SchedulerLimits
from trimaran.engine.memory import available_memory
from trimaran.engine.prefilling import PrefillEngine
from trimaran.engine.sizing import Sizes, kv_format_beside, resolve_sizes
from trimaran.kernels.null import NullExecutor
from trimaran.kernels.open import EXECUTORS, open_executor
from trimaran.kernels.program import Program
from trimaran.kernels.step import Executor, ExecutorOptions
from trimaran.kernels.weights import Weight
from trimaran.kernels.wide_layers import describe_pages, keep_wide

if TYPE_CHECKING:
    from trimaran.models.config import EncoderConfig


def load_engine(config: EngineConfig) -> Engine:
    """As ``load_any``, of a model that makes text; raises ``UnsupportedError`` for an encoder."""
    engine = load_any(config)
    if isinstance(engine, Encoder):
        engine.close()
        raise UnsupportedError(
            f"{engine.info.model} makes vectors of texts, and no text: `trimaran serve` has /v1/embeddings for it"
        )
    return engine


def load_any(config: EngineConfig) -> Engine | Encoder:
    """Reads the model, sizes the pools of pages, and produces one token, or an encoder's vector.

    Raises ``ConfigError``, ``CheckpointError`` or ``UnsupportedError``; then nothing is left open.
    """
    if config.executor not in EXECUTORS:
        raise ConfigError(f"unknown executor {config.executor!r}; choose one of {', '.join(EXECUTORS)}")
    return _load_null(config) if config.executor == "null" else _load_model(config)


def _load_null(config: EngineConfig) -> Engine:
    program = keep_wide(config.null.program(), config.kv_cache_dtype_skip_layers)
    kv_format = config.kv_format or KVFormat.BF16
    sizes = resolve_sizes(config, program.groups, kv_format, program.context, available_memory())
    executor = NullExecutor(program, {}, _options(config, sizes), config.null)
    eos_ids = frozenset() if config.null.eos_id is None else frozenset({config.null.eos_id})
    return _start(
        config, sizes, executor, program, eos_ids, name="null", digest="null", weight_format="none", verified=False
    )


def _token_table(config: EngineConfig, vocab: int, eos_ids: frozenset[int]) -> Callable[[], TokenTable] | None:
    """Reads the vocabulary when it is called; None where there is none, as the null executor needs no model."""
    return partial(read_token_table, Path(config.model), vocab, eos_ids) if config.model else None


def _load_model(config: EngineConfig) -> Engine | Encoder:
    from trimaran.calibration.kv_ranges import scales_for
    from trimaran.checkpoint import open_checkpoint
    from trimaran.checkpoint.verify import model_files
    from trimaran.models.load import load_weights
    from trimaran.models.registry import build_program, read_config

    path = Path(config.model)
    with open_checkpoint(path, model_files(path, config.verify, config.manifest_key)) as checkpoint:
        model = read_config(checkpoint)
        program = keep_wide(build_program(model), config.kv_cache_dtype_skip_layers)
        weights = load_weights(checkpoint, model, program, config.weight_format)
        if model.encoder is not None:
            return _load_encoder(config, checkpoint, model.encoder, program, weights)
        kv_format = config.kv_format or kv_format_beside(weights, config.activations, program.groups)
        scales = scales_for(kv_format, checkpoint, program, config.kv_cache_scales)
        if config.export_format not in (None, kv_format):
            scales += scales_for(config.export_format, checkpoint, program, config.kv_cache_scales)
        sizes = resolve_sizes(config, program.groups, kv_format, program.context, available_memory())
        program = replace(program, context=sizes.context)
        options = replace(_options(config, sizes), kv_scales=scales)
        executor = open_executor(config.executor, program, weights, options)
        weight_format = _describe(weights)
        del weights  # views of the mapped file; the executor has its own copy
        checkpoint.release()
        _verify(checkpoint, executor)
        digest, verified = checkpoint.digest, checkpoint.verified
    name = config.served_name or path.stem
    return _start(
        config,
        sizes,
        executor,
        program,
        model.eos_ids,
        name=name,
        digest=digest,
        weight_format=weight_format,
        verified=verified,
    )


def _load_encoder(
    config: EngineConfig, checkpoint: Checkpoint, encoder: "EncoderConfig", program: Program, weights: dict[str, Weight]
) -> Encoder:
    """Pages hold the keys and values of one step, as they are; what is said about caches is for decoders."""
    if config.role != "both":
        raise ConfigError("an encoder has no pools of prefill and decode: it reads a text in one step")
    max_rows, max_texts = max(config.max_num_batched_tokens, program.context), config.max_num_seqs
    options = ExecutorOptions(
        kv_format=KVFormat.FP32,
        activations=config.activations,
        num_pages=1 + max_rows // config.page_size + max_texts,
        page_size=config.page_size,
        page_tags=False,
        max_rows=max_rows,
        max_sequences=max_texts,
        threads=config.threads,
        pin_threads=config.pin_threads,
    )
    executor = open_executor(config.executor, program, weights, options)
    weight_format = _describe(weights)
    weights.clear()  # views of the mapped file; the executor has its own copy
    checkpoint.release()
    _verify(checkpoint, executor)
    info = Started(
        model=config.served_name or Path(config.model).stem,
        digest=checkpoint.digest,
        context=program.context,
        vocab=program.vocab,
        weight_format=weight_format,
        kv_format="none",
        executor=executor.name,
        isa=executor.isa,
        threads=executor.threads,
        pages=[],
        page_size=config.page_size,
        weight_bytes=executor.weight_bytes,
        kv_bytes=executor.kv_bytes,
        identity=checkpoint.digest,
        embedding_width=program.result,
    )
    engine = Encoder(
        executor,
        info,
        max_rows=max_rows,
        max_texts=max_texts,
        max_waiting=config.max_waiting,
        normalised=encoder.normalised,
    )
    try:
        engine.warm_up()
    except BaseException:
        engine.close()
        raise
    return engine


def _verify(checkpoint: Checkpoint, executor: Executor) -> None:
    """Waits for the hashes of the bytes that were packed; frees the executor if they are wrong."""
    try:
        checkpoint.verify()
    except BaseException:
        executor.close()
        raise


def _options(config: EngineConfig, sizes: Sizes) -> ExecutorOptions:
    return ExecutorOptions(
        kv_format=sizes.kv_format,
        activations=config.activations,
        num_pages=sizes.num_pages,
        page_size=config.page_size,
        page_tags=config.page_tags,
        max_rows=config.max_num_batched_tokens,
        max_sequences=config.max_num_seqs,
        threads=config.threads,
        share_prefixes=config.share_prefixes,
        pin_threads=config.pin_threads,
    )


def _start(
    config: EngineConfig,
    sizes: Sizes,
    executor: Executor,
    program: Program,
    eos_ids: frozenset[int],
    *,
    name: str,
    digest: str,
    weight_format: str,
    verified: bool,
) -> Engine:
    """``verified``: the digest stands for all bytes of the model."""
    meaning = (
        digest,
        weight_format,
        config.activations,
        sizes.kv_format,
        executor.layout.groups,
        executor.layout.scales,
        executor.name,
        executor.isa,
        config.page_size,
    )
    identity = "\0".join(map(str, meaning)).encode()
    info = Started(
        model=config.served_name or name,
        digest=digest,
        context=sizes.context,
        vocab=program.vocab,
        weight_format=weight_format,
        kv_format=describe_pages(sizes.kv_format, program.groups),
        executor=executor.name,
        isa=executor.isa,
        threads=executor.threads,
        pages=[
            CachePages(group.window, pages - 1, free=pages - 1, cached=0)
            for group, pages in zip(program.groups, sizes.num_pages, strict=True)
        ],
        page_size=config.page_size,
        weight_bytes=executor.weight_bytes,
        kv_bytes=executor.kv_bytes,
        identity=hashlib.sha256(identity).hexdigest(),
    )
    limits = SchedulerLimits(
        context=sizes.context,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_waiting=config.max_waiting,
        page_size=config.page_size,
    )
    engine = _KINDS[config.role](
        executor,
        program.groups,
        limits,
        info=info,
        eos_ids=eos_ids,
        identity=identity,
        prefix_caching=config.prefix_caching,
        seed=config.seed,
        overlap=config.overlap,
        parking=config.role == "decode",
        token_table=_token_table(config, program.vocab, eos_ids),
    )
    try:
        _warm_up(engine)
        if config.canary_interval:
            known = KnownAnswer(identity) if verified and executor.name == "native" else None
            engine.info = structs.replace(engine.info, canary=prove(engine, known))
    except BaseException:
        engine.close()
        raise
    return engine


_KINDS: dict[Role, type[Engine]] = {"both": Engine, "prefill": PrefillEngine, "decode": DecodeEngine}


def _warm_up(engine: Engine) -> None:
    """Produces a token the way every request does, then forgets that it did; raises what went wrong."""
    engine.submit(Submit("warm-up", [0], SamplingParams(max_tokens=1, ignore_eos=True)))
    messages: list[FromEngine] = []
    while not engine.idle:
        messages += engine.step()
    engine.forget_counts()
    for message in messages:
        if isinstance(message, Failed):
            raise NumericsError(f"the model cannot produce a token: {message.message}")


def _describe(weights: Mapping[str, Weight]) -> str:
    """The formats of the matrices, the most bytes first, such as ``int4z+int8``."""
    sizes: dict[str, int] = {}
    for weight in weights.values():
        if len(weight.shape) == 2:
            sizes[weight.fmt] = sizes.get(weight.fmt, 0) + weight.data.nbytes
    return "+".join(sorted(sizes, key=lambda fmt: -sizes[fmt]))
