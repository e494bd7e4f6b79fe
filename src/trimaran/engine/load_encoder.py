"""From a model that makes vectors to an engine that has made one."""

from pathlib import Path

from msgspec import structs

from trimaran.base.errors import ConfigError
from trimaran.base.formats import KVFormat
from trimaran.base.messages import Started
from trimaran.checkpoint import Checkpoint
from trimaran.engine.canary import prove
from trimaran.engine.config import EngineConfig
from trimaran.engine.encoder import Encoder
from trimaran.engine.known_answer import KnownAnswer
from trimaran.engine.phases import Phases
from trimaran.kernels.open import checked, open_executor
from trimaran.kernels.program import Program
from trimaran.kernels.step import ExecutorOptions
from trimaran.kernels.weights import describe_formats
from trimaran.models.config import EncoderConfig
from trimaran.models.load import WeightReader


def load_encoder(
    config: EngineConfig,
    checkpoint: Checkpoint,
    encoder: EncoderConfig,
    program: Program,
    reader: WeightReader,
    phases: Phases,
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
    executor = open_executor(config.executor, program, reader.weights, options, reader.read)
    weight_format = describe_formats(reader.weights)
    checkpoint.release()
    phases.lap("pack")
    checked(checkpoint.verify, executor)
    phases.lap("hash")
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
        score=encoder.score,
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
        phases.lap("warm-up")
        if config.canary_interval:
            meaning = (info.digest, weight_format, config.activations, executor.name, executor.isa, "vectors")
            verified = checkpoint.verified and executor.name == "native"
            known = KnownAnswer("\0".join(map(str, meaning)).encode()) if verified else None
            info = structs.replace(info, canary=prove(engine, known))
            phases.lap("canary")
        engine.info = structs.replace(info, phases=dict(phases.seconds))
    except BaseException:
        engine.close()
        raise
    return engine
