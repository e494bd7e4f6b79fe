"""Puts the parts of a server together once its engine has started."""

from dataclasses import dataclass
from pathlib import Path

from starlette.types import ASGIApp

from trimaran.base.errors import IntegrityError
from trimaran.base.messages import Started
from trimaran.checkpoint import open_checkpoint
from trimaran.checkpoint.model_files import AS_THEY_ARE, ModelFiles
from trimaran.server.admission import Admission
from trimaran.server.app import Access, EmbeddingService, Service, Version, create_app
from trimaran.server.dataplane import DataPlane, Limits
from trimaran.server.embedding import EmbeddingPlane, EncoderLimits
from trimaran.server.engine import Backend, EngineLink
from trimaran.server.metrics import Metrics
from trimaran.server.openai.identity import ModelCard
from trimaran.server.options import ServeOptions
from trimaran.server.response_store import ResponseStore
from trimaran.server.tenants import Tenants
from trimaran.text.encoder_tokenizer import EncoderTokenizer, is_encoder
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

    def require(self, started: Started) -> None:
        """Raises ``IntegrityError`` when the engine has read another kind of model."""
        if started.embedding_width is None:
            raise IntegrityError("the model's files were changed while it was loaded; start again")


def load_text(path: Path, chat_template: Path | None = None, files: ModelFiles = AS_THEY_ARE) -> Text | EncoderText:
    """Reads both from the checkpoint at ``path``, or the template from a file of its own; ``files`` says how the
    checkpoint's files are opened.

    Raises ``CheckpointError`` or ``UnsupportedError``.
    """
    checkpoint = open_checkpoint(path, files)
    try:
        if is_encoder(checkpoint):
            return EncoderText(EncoderTokenizer(checkpoint.directory / "tokenizer.json", checkpoint.read))
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
) -> tuple[ASGIApp, Admission]:
    """The application that serves ``link`` under ``names``, and its data plane; each part gets its options."""
    access = Access(
        tenants=tenants,
        allowed_origins=options.allowed_origins,
        max_body_bytes=options.max_body_bytes,
        body_seconds=options.timeout_body,
    )
    about = Version(version, started.executor, started.isa, started.threads, started.weight_format, started.kv_format)
    card = ModelCard(names, started, version)
    if isinstance(text, EncoderText):
        return _assemble_encoder(options, link, metrics, started, text.tokenizer, card, about, access)
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
    return create_app(service, access), plane


def _assemble_encoder(
    options: ServeOptions,
    link: Backend,
    metrics: Metrics,
    started: Started,
    tokenizer: EncoderTokenizer,
    card: ModelCard,
    about: Version,
    access: Access,
) -> tuple[ASGIApp, Admission]:
    assert isinstance(link, EngineLink), "an encoder has no pools"
    assert started.embedding_width is not None, started
    limits = EncoderLimits(
        max_inflight=options.max_num_seqs + options.max_waiting,
        max_running=options.max_num_seqs,
        context=started.context,
        vocab=started.vocab,
        width=started.embedding_width,
        deadline=options.timeout_request,
    )
    plane = EmbeddingPlane(link, tokenizer, limits, metrics)
    return create_app(EmbeddingService(plane, card, about), access), plane
