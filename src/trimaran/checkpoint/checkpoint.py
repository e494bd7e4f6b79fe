"""A model's files, opened: metadata and tensors behind one face, whatever the file format."""

import hashlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.checkpoint.mapping import OpenFile
from trimaran.checkpoint.model_files import AS_THEY_ARE, ModelFiles
from trimaran.checkpoint.tensors import CheckpointTensor, TensorSpan

Kind = Literal["gguf", "safetensors"]

_SAMPLE = 4096  # bytes of a tensor that the digest reads at its start, middle and end


class Checkpoint:
    """Mapped model files. Owns the mappings: close it, or use it as a context manager.

    ``metadata`` holds GGUF's key-value pairs, or the parsed ``config.json`` of a safetensors model, as plain Python
    values. ``directory`` is where tokenizer files lie, if the model has any. ``fingerprint`` is the readers' hash of
    all that is not tensor data.
    """

    def __init__(
        self,
        kind: Kind,
        path: Path,
        metadata: dict[str, Any],
        fingerprint: bytes,
        files: Sequence[OpenFile],
        spans: Sequence[TensorSpan],
        opener: ModelFiles = AS_THEY_ARE,
    ) -> None:
        self.kind = kind
        self.path = path
        self.directory = path if path.is_dir() else path.parent
        self.metadata = metadata
        self._fingerprint = fingerprint
        self._files = files
        self._spans = spans
        self._opener = opener

    def tensors(self) -> Iterator[CheckpointTensor]:
        """Yields every tensor once, in the order in which they lie in the files."""
        for span in self._spans:
            data = self._files[span.file].view(span.offset, span.size).reshape(span.rows, span.row_bytes)
            yield CheckpointTensor(span.name, span.shape, span.fmt, data)

    def read(self, path: Path) -> bytes:
        """A small file of the model's, whole, such as its tokenizer; where files are verified, it is the right one.

        Raises ``IntegrityError`` when it is not, ``FileNotFoundError`` and other ``OSError``.
        """
        return self._opener.read(path)

    @property
    def names(self) -> list[str]:
        """The tensors' names, in file order."""
        return [span.name for span in self._spans]

    @property
    def tensor_bytes(self) -> int:
        """Bytes that the tensors take in the files."""
        return sum(span.size for span in self._spans)

    @property
    def digest(self) -> str:
        """SHA-256 (hex) that names the model: the manifest's digest where files are verified, else ``sampled``."""
        return self.sampled if self._opener.digest is None else self._opener.digest

    @property
    def verified(self) -> bool:
        """True when ``digest`` stands for every byte of the files, once ``verify`` has returned."""
        return self._opener.digest is not None

    @cached_property
    def sampled(self) -> str:
        """SHA-256 (hex) that tells models apart without reading them whole, verified or not.

        It covers all metadata, every tensor's name, shape, format and place, and 4 KiB at the start, the middle and
        the end of each tensor. It does not prove that a file is undamaged.
        """
        sha = hashlib.sha256(self._fingerprint)
        for span in self._spans:
            file = self._files[span.file]
            if span.size <= 3 * _SAMPLE:
                sha.update(file.buffer[span.offset : span.end])
            else:
                for at in (span.offset, span.offset + (span.size - _SAMPLE) // 2, span.end - _SAMPLE):
                    sha.update(file.buffer[at : at + _SAMPLE])
        return sha.hexdigest()

    def verify(self) -> None:
        """Waits until all files have been hashed, where there is a manifest to be held against.

        Raises ``IntegrityError`` naming the files that differ: nothing that was read of the model may be used then.
        """
        self._opener.check()

    def release(self) -> None:
        """Drops what was read from this process's resident memory; views stay valid and read from the file again."""
        for file in self._files:
            file.release()

    def close(self) -> None:
        """Closes the mappings; views that are still held stay valid. Idempotent."""
        for file in self._files:
            file.close()
        self._opener.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if isinstance(error, CheckpointError | UnsupportedError):
                self.verify()  # that a file was tampered with says more than what is wrong in it
        finally:
            self.close()


def check_spans(path: Path, spans: Sequence[TensorSpan], start: int, end: int) -> None:
    """Raises ``CheckpointError`` when tensors of one file share a name, overlap, or leave the bytes ``start:end``."""
    seen: set[str] = set()
    for span in spans:
        if span.name in seen:
            raise CheckpointError(f"{path}: tensor {span.name!r} occurs twice")
        seen.add(span.name)
        if span.offset < start or span.end > end:
            raise CheckpointError(
                f"{path}: tensor {span.name!r} takes bytes {span.offset} to {span.end}, but data lies from {start} to"
                f" {end}: the file is cut short or damaged"
            )
    ordered = sorted(spans, key=lambda span: (span.offset, span.end))
    for before, after in pairwise(ordered):
        if before.end > after.offset:
            raise CheckpointError(f"{path}: tensors {before.name!r} and {after.name!r} overlap at byte {after.offset}")
