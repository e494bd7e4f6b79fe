"""``trimaran manifest`` and ``trimaran verify``: a model's files listed with their hashes, and held against that."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from trimaran.checkpoint.hashing import Progress
    from trimaran.checkpoint.manifest import Manifest

Where = Annotated[str, typer.Argument(metavar="MODEL", help="A model's folder, its file, or a pulled model's name.")]


def manifest(
    model: Where,
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEY.pem", help="Sign it with this ed25519 key.", show_default=False),
    ] = None,
) -> None:
    """Write `trimaran.manifest.json`: size and SHA-256 of every file in a model's folder.

    All of the folder counts, at any depth, also where the model is a single file: give such a file a folder of its own.
    From then on the model is verified whenever it is loaded, and refused if a file is missing, too many or changed.
    `pull` and `compress` write manifests by themselves.

    \b
    Examples:
      trimaran manifest ./my-model
      openssl genpkey -algorithm ed25519 -out key.pem && openssl pkey -in key.pem -pubout -out public.pem
      trimaran manifest ./my-model --sign key.pem
    """
    import sys

    from trimaran.checkpoint.open import require_model
    from trimaran.checkpoint.signature import require_cryptography, sign_manifest
    from trimaran.checkpoint.verify import folder_of, write_model_manifest

    if sign is not None:
        require_cryptography()
    path = _path(model)
    require_model(path)
    folder = folder_of(path)
    print(f"all files in {folder} belong to the manifest", file=sys.stderr)
    with _reading(folder) as progress:
        written = write_model_manifest(folder, progress=progress)
    if sign is not None:
        sign_manifest(folder, sign)
    print(_summary(written))


def verify(
    model: Where,
    key: Annotated[
        Path | None,
        typer.Option(
            "--key", metavar="PUBLIC.pem", help="Ask for a signature by this ed25519 key.", show_default=False
        ),
    ] = None,
) -> None:
    """Read all files of a model and hold them against its manifest.

    Exit status 1 when a file is missing, too many, cut short or changed, or when there is no manifest; the files are
    named. Without --key this tells damage; whoever can change files can change the manifest too.

    \b
    Examples:
      trimaran verify smollm2
      trimaran verify ./my-model --key public.pem
    """
    from trimaran.checkpoint.verify import verify_model_integrity

    path = _path(model)
    with _reading(path) as progress:
        found = verify_model_integrity(path, public_key=key, progress=progress)
    print(_summary(found) + (", signed" if key else ""))


def _path(model: str) -> Path:
    from trimaran.checkpoint.sources import resolve

    return Path(model) if Path(model).exists() else resolve(model, offline=True).path


@contextmanager
def _reading(path: Path) -> "Iterator[Progress]":
    from trimaran.checkpoint.progress import progress

    lock, total = Lock(), 0
    with progress(str(path), "Hash") as report:
        report(0, None)

        def count(size: int) -> None:
            nonlocal total
            with lock:
                total += size
                report(total, None)

        yield count


def _summary(manifest: "Manifest") -> str:
    from trimaran.checkpoint.progress import megabytes

    size = megabytes(sum(file.size for file in manifest.files))
    return f"{len(manifest.files)} files, {size}: sha256 {manifest.digest}"
