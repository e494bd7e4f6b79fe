"""From an ``EngineConfig`` to an engine that has produced its first token."""

import hashlib
import logging
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from trimaran.base.errors import ConfigError, NumericsError, UnsupportedError
from trimaran.base.formats import KVFormat
from trimaran.base.messages import CachePages, Failed, FromEngine, Role, Started, Submit
from trimaran.base.sampling import SamplingParams
from trimaran.checkpoint.packs import PackDamagedError
from trimaran.engine.canary import prove
from trimaran.engine.config import EngineConfig
from trimaran.engine.constraints.tokens import TokenTable, read_token_table
from trimaran.engine.decoding import DecodeEngine
from trimaran.engine.encoder import Encoder
from trimaran.engine.engine import Engine
from trimaran.engine.known_answer import KnownAnswer
from trimaran.engine.limits import SchedulerLimits
from trimaran.engine.memory import available_memory
from trimaran.engine.phases import Phases
from trimaran.engine.prefilling import PrefillEngine
from trimaran.engine.sizing import Sizes, kv_format_beside, resolve_sizes
from trimaran.kernels.null import NullExecutor
from trimaran.kernels.open import EXECUTORS, checked, open_executor
from trimaran.kernels.prefill_ops import merge_weights, split_weights, with_prefill_ops
from trimaran.kernels.program import Program
from trimaran.kernels.step import Executor, ExecutorOptions
from trimaran.kernels.weights import ReadWeight, Weight, describe_formats
from trimaran.kernels.wide_layers import describe_pages, keep_wide

if TYPE_CHECKING:
    from trimaran.engine.packed import FoundPack, PackKeeper

log = logging.getLogger(__name__)


def load_engine(config: EngineConfig) -> Engine:
    """As ``load_any``, of a model that makes text; raises ``UnsupportedError`` for an encoder."""
    engine = load_any(config)
    if isinstance(engine, Encoder):
        engine.close()
        raise UnsupportedError(
            f"{engine.info.model} makes vectors of texts, and no text: `trimaran serve` has /v1/embeddings for it"
        )
    return engine


def load_any(config: EngineConfig, phases: Phases | None = None) -> Engine | Encoder:
    """Reads the model, or packed weights of it, sizes the pools of pages, and produces a token, or an encoder's vector.

    ``phases`` goes on counting what it has begun. Raises ``ConfigError``, ``CheckpointError`` or ``UnsupportedError``;
    then nothing is left open.
    """
    if config.executor not in EXECUTORS:
        raise ConfigError(f"unknown executor {config.executor!r}; choose one of {', '.join(EXECUTORS)}")
    phases = phases or Phases()
    return _load_null(config, phases) if config.executor == "null" else _load_model(config, phases)


def _load_null(config: EngineConfig, phases: Phases) -> Engine:
    program = keep_wide(config.null.program(), config.kv_cache_dtype_skip_layers)
    kv_format = config.kv_format or KVFormat.BF16
    sizes = resolve_sizes(config, program.groups, kv_format, program.context, available_memory())
    executor = NullExecutor(program, {}, _options(config, sizes), config.null)
    eos_ids = frozenset() if config.null.eos_id is None else frozenset({config.null.eos_id})
    phases.lap("open")
    return _start(
        config, _Loaded(executor, program, sizes, eos_ids, "none", "null", "", verified=False), phases, "null"
    )


def _token_table(config: EngineConfig, vocab: int, eos_ids: frozenset[int]) -> Callable[[], TokenTable] | None:
    """Reads the vocabulary when it is called; None where there is none, as the null executor needs no model."""
    if not config.model:
        return None
    from trimaran.checkpoint.verify import text_files

    path = Path(config.model)
    return partial(
        read_token_table, path, vocab, eos_ids, partial(text_files, path, config.verify, config.manifest_key)
    )


@dataclass(frozen=True)
class _Loaded:
    """An executor, and what is known of its model. ``verified``: the digest stands for all bytes of the model."""

    executor: Executor
    program: Program
    sizes: Sizes
    eos_ids: frozenset[int]
    weight_format: str
    digest: str
    sampled: str  # see ``Checkpoint.sampled``
    verified: bool


def _load_model(config: EngineConfig, phases: Phases) -> Engine | Encoder:
    from trimaran.engine.packed import keeper_for

    formats = (config.kv_format, config.export_format)
    static = any(fmt is not None and fmt.static for fmt in formats)  # their scales are in files of their own
    keeper = None if static else keeper_for(config)
    phases.lap("imports")
    if keeper is not None:
        try:
            if (found := keeper.find()) is not None:
                return _load_packed(config, found, phases)
        except PackDamagedError as error:
            log.warning("%s; packing them again", error)
    return _load_files(config, keeper, phases)


def _load_packed(config: EngineConfig, found: "FoundPack", phases: Phases) -> Engine:
    """Raises ``PackDamagedError`` where the model's files have to be read instead."""
    from trimaran.kernels.native import NativeExecutor
    from trimaran.models.build import build_program

    with closing(found):
        program = with_prefill_ops(build_program(found.model), found.weights)
        program = keep_wide(program, config.kv_cache_dtype_skip_layers)
        program, options, sizes = _size(config, program, found.weights)
        executor = NativeExecutor(program, found.weights, options, found.packed)
        phases.lap("map")
        checked(found.check, executor)
        phases.lap("hash")
    eos_ids, weight_format = found.model.eos_ids, _describe(found.weights)
    loaded = _Loaded(
        executor, program, sizes, eos_ids, weight_format, found.digest, found.sampled, verified=found.verified
    )
    return _start(config, loaded, phases)


def _load_files(config: EngineConfig, keeper: "PackKeeper | None", phases: Phases) -> Engine | Encoder:
    from trimaran.calibration.kv_ranges import scales_for
    from trimaran.checkpoint import open_checkpoint
    from trimaran.checkpoint.verify import model_files
    from trimaran.kernels.native import NativeExecutor
    from trimaran.kernels.packed_weights import shapes_of
    from trimaran.models.load import WeightReader, load_weights
    from trimaran.models.registry import build_program, read_config

    path = Path(config.model)
    phases.lap("imports")
    with open_checkpoint(path, model_files(path, config.verify, config.manifest_key)) as checkpoint:
        model = read_config(checkpoint)
        program = keep_wide(build_program(model), config.kv_cache_dtype_skip_layers)
        phases.lap("open")
        if config.apart and model.encoder is not None:
            raise ConfigError("prefill_weight_format is of no use to an encoder: it decodes nothing")
        reader = WeightReader(checkpoint, model, program, config.weight_format)
        weights: Mapping[str, Weight] = reader.weights
        read: ReadWeight = reader.read
        if config.apart:  # whole: only numbers tell which weights both formats hold alike
            prompts = load_weights(checkpoint, model, program, config.prefill_format)
            weights = merge_weights(reader.read_all(), prompts)
            del prompts
            read = weights.__getitem__
            program = with_prefill_ops(program, weights)
            if not program.prefill_ops:
                raise ConfigError("prefill_weight_format: prompts would meet the same weights without it; leave it out")
        phases.lap("read")
        if model.encoder is not None:
            from trimaran.engine.load_encoder import load_encoder

            return load_encoder(config, checkpoint, model.encoder, program, reader, phases)
        program, options, sizes = _size(config, program, weights)
        scales = scales_for(options.kv_format, checkpoint, program, config.kv_cache_scales)
        if config.export_format not in (None, options.kv_format):
            scales += scales_for(config.export_format, checkpoint, program, config.kv_cache_scales)
        executor = open_executor(config.executor, program, weights, replace(options, kv_scales=scales), read)
        weight_format, shapes = _describe(weights), shapes_of(weights)
        del weights, read, reader  # views of the mapped file; the executor has its own copy
        checkpoint.release()
        phases.lap("pack")
        checked(checkpoint.verify, executor)
        digest, sampled, verified = checkpoint.digest, checkpoint.sampled, checkpoint.verified
        phases.lap("hash")
    loaded = _Loaded(executor, program, sizes, model.eos_ids, weight_format, digest, sampled, verified=verified)
    engine = _start(config, loaded, phases)
    if keeper is not None and isinstance(executor, NativeExecutor):
        writer = keeper.keep(executor, model, shapes, sampled)
        if writer is not None:
            engine.at_close(writer.stop)
    return engine


def _size(
    config: EngineConfig, program: Program, weights: Mapping[str, Weight]
) -> tuple[Program, ExecutorOptions, Sizes]:
    """What the executor is opened with, but for static scales."""
    decode, _ = split_weights(weights)
    kv_format = config.kv_format or kv_format_beside(decode, config.activations, program.groups)
    sizes = resolve_sizes(config, program.groups, kv_format, program.context, available_memory())
    return replace(program, context=sizes.context), _options(config, sizes), sizes


def _describe(weights: Mapping[str, Weight]) -> str:
    """As two pools of these formats are described."""
    decode, prefill = split_weights(weights)
    held = describe_formats(decode)
    return held if len(decode) == len(weights) else f"prefill {describe_formats(prefill)}, decode {held}"


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


def _start(config: EngineConfig, loaded: _Loaded, phases: Phases, name: str | None = None) -> Engine:
    executor, program, sizes, digest = loaded.executor, loaded.program, loaded.sizes, loaded.digest
    meaning = (
        digest,
        loaded.weight_format,
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
        model=config.served_name or name or Path(config.model).stem,
        digest=digest,
        context=sizes.context,
        vocab=program.vocab,
        weight_format=loaded.weight_format,
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
        sampled=loaded.sampled,
    )
    limits = SchedulerLimits(
        context=sizes.context,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_waiting=config.max_waiting,
        page_size=config.page_size,
        apart=bool(program.prefill_ops),
    )
    engine = _KINDS[config.role](
        executor,
        program.groups,
        limits,
        info=info,
        eos_ids=loaded.eos_ids,
        identity=identity,
        prefix_caching=config.prefix_caching,
        seed=config.seed,
        overlap=config.overlap,
        draft_tokens=config.speculative_ngram,
        parking=config.role == "decode",
        token_table=_token_table(config, program.vocab, loaded.eos_ids),
    )
    try:
        _warm_up(engine)
        phases.lap("warm-up")
        if config.canary_interval:
            known = KnownAnswer(identity) if loaded.verified and executor.name == "native" else None
            engine.info = structs.replace(engine.info, canary=prove(engine, known))
            phases.lap("canary")
        engine.info = structs.replace(engine.info, phases=dict(phases.seconds))
    except BaseException:
        engine.close()
        raise
    return engine


_KINDS: dict[Role, type[Engine]] = {"both": Engine, "prefill": PrefillEngine, "decode": DecodeEngine}


def _warm_up(engine: Engine) -> None:
    """Produces a token the way every request does, then forgets that it did; raises what went wrong."""
    tokens = min(2, engine.info.context - 1)  # with weights of their own, prompts make the first one
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True, seed=0)  # a model that starts once starts again
    engine.submit(Submit("warm-up", [0], sampling))
    messages: list[FromEngine] = []
    while not engine.idle:
        messages += engine.step()
    engine.forget_counts()
    for message in messages:
        if isinstance(message, Failed):
            raise NumericsError(f"the model cannot produce a token: {message.message}")
