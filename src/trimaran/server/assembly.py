"""Puts the parts of a server together once its engine has started."""

from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp

from trimaran.base.errors import IntegrityError
from trimaran.base.messages import Started
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.environment import home
from trimaran.checkpoint.model_files import AS_THEY_ARE, ModelFiles
from trimaran.server.admission import Admission
from trimaran.server.app import Access, EmbeddingService, Service, Version, create_app
from trimaran.server.batches.file_store import FileLimits
from trimaran.server.batches.runner import Runner
from trimaran.server.batches.storage import Storage
from trimaran.server.dataplane import DataPlane, Limits
from trimaran.server.embedding import EmbeddingPlane, EncoderLimits
from trimaran.server.engine import Backend, EngineLink
from trimaran.server.metrics import Metrics
from trimaran.server.openai.identity import ModelCard
from trimaran.server.options import ServeOptions
from trimaran.server.response_store import ResponseStore
from trimaran.server.tenants import Tenants
from trimaran.text.encoder_tokenizer import EncoderTokenizer, is_encoder, reads_pairs
from trimaran.text.template import ChatTemplate, open_template
from trimaran.text.tokenizer import Tokenizer, open_tokenizer
from trimaran.text.tools.answer_format import find_format


@dataclass(frozen=True)
class Text:
    """A model's tokenizer and chat template."""

    tokenizer: Tokenizer
    template: ChatTemplate
    sampled: str = ""  # of a model that holds both in one file with its weights: see ``Checkpoint.sampled``

    def require(self, started: Started) -> None:
        """Raises ``IntegrityError`` when the engine has read other files."""
        if self.sampled and started.sampled not in ("", self.sampled):
            raise IntegrityError("the model's file was changed while it was loaded; start again")


@dataclass(frozen=True)
class EncoderText:
    """An encoder's tokenizer."""

    tokenizer: EncoderTokenizer
    pairs: bool = False  # of texts are what the model reads

    def require(self, started: Started) -> None:
        """Raises ``IntegrityError`` when the engine has read another kind of model."""
        if started.embedding_width is None or self.pairs != (started.score is not None):
            raise IntegrityError("the model's files were changed while it was loaded; start again")


def load_text(path: Path, chat_template: Path | None = None, files: ModelFiles = AS_THEY_ARE) -> Text | EncoderText:
    """Reads both from the checkpoint at ``path``, or the template from a file of its own; ``files`` says how the
    checkpoint's files are opened.

    Raises ``CheckpointError`` or ``UnsupportedError``.
    """
    checkpoint = open_checkpoint(path, files)
    try:
        if is_encoder(checkpoint):
            encoder = EncoderTokenizer(checkpoint.directory / "tokenizer.json", checkpoint.read)
            if pairs := reads_pairs(checkpoint):
                encoder.require_pairs()
            return EncoderText(encoder, pairs=pairs)
        tokenizer = open_tokenizer(checkpoint)
        sampled = checkpoint.sampled if checkpoint.kind == "gguf" else ""
        return Text(tokenizer, open_template(checkpoint, tokenizer, chat_template), sampled)
    finally:
        checkpoint.release()
        checkpoint.close()


def assemble(
    options: ServeOptions,
    tenants: Tenants,
    names: tuple[str, ...],
    version: str,
    link: Backend,
    metrics: Metrics,
    started: Started,
    text: Text | EncoderText,
) -> tuple[ASGIApp, Admission, Runner]:
    """The application that serves ``link`` under ``names``, its data plane and what runs batches; each part gets its
    options.

    Raises ``ConfigError`` when a file or folder that was named cannot be used.
    """
    access = Access(
        tenants=tenants,
        allowed_origins=options.allowed_origins,
        max_body_bytes=options.max_body_bytes,
        body_seconds=options.timeout_body,
    )
    about = Version(version, started.executor, started.isa, started.threads, started.weight_format, started.kv_format)
    card = ModelCard(names, started, version)
    if isinstance(text, EncoderText):
        encoder = _encoder_plane(options, link, metrics, started, text.tokenizer)
        runner = _runner(options, tenants, names, encoder)
        return create_app(EmbeddingService(encoder, card, about), access, runner), encoder, runner
    limits = Limits(
        max_inflight=options.max_num_seqs + options.max_waiting,
        max_running=options.max_num_seqs,
        context=started.context,
        vocab=started.vocab,
        deadline=options.timeout_request,
    )
    plane = DataPlane(link, text.tokenizer, limits, metrics)
    formats = find_format(text.tokenizer, text.template.source, options.tool_call_parser, options.reasoning_parser)
    file = None if options.responses_file is None else Path(options.responses_file)
    store = ResponseStore(file, options.responses_ttl)
    service = Service(plane, text.template, formats, card, about, store)
    runner = _runner(options, tenants, names, plane)
    return create_app(service, access, runner), plane, runner


def _runner(options: ServeOptions, tenants: Tenants, names: tuple[str, ...], plane: Admission) -> Runner:
    """What runs batches; a folder for it that was not named is taken when it is needed."""
    limits = FileLimits(options.max_file_bytes, options.max_files_bytes, options.files_ttl)
    storage = Storage(home() / "files" if options.files_dir is None else Path(options.files_dir), limits)
    if options.files_dir is not None:
        storage.open_now()
    concurrency, body_bytes = options.batch_concurrency, options.max_body_bytes
    runner = Runner(storage, plane, tenants, names, concurrency=concurrency, body_bytes=body_bytes)
    plane.before_drain(runner.stop)
    return runner


def _encoder_plane(
    options: ServeOptions, link: Backend, metrics: Metrics, started: Started, tokenizer: EncoderTokenizer
) -> EmbeddingPlane:
    assert isinstance(link, EngineLink), "an encoder has no pools"
    assert started.embedding_width is not None, started
    limits = EncoderLimits(
        max_inflight=options.max_num_seqs + options.max_waiting,
        max_running=options.max_num_seqs,
        context=started.context,
        vocab=started.vocab,
        width=started.embedding_width,
        score=started.score,
        deadline=options.timeout_request,
    )
    return EmbeddingPlane(link, tokenizer, limits, metrics)
