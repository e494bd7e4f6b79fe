"""Signatures of manifests: ed25519 keys as OpenSSL writes them, 64 raw bytes in hex beside the manifest.

A manifest tells damage; only its signature tells who made it, since whoever changes a file can change the manifest.
"""

from pathlib import Path

from trimaran.base.errors import ConfigError, IntegrityError
from trimaran.checkpoint.file_record import MANIFEST, SIGNATURE

_MAX_KEY = 10_000  # bytes


def sign_manifest(folder: Path, private_key: Path) -> Path:
    """Signs the folder's manifest with a PEM key and returns the signature's path; raises ``ConfigError``."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(private_key), password=None)
    except (TypeError, ValueError):  # a password is needed, or it is no key
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{private_key} holds no ed25519 private key in PEM form without a password")
    path = folder / SIGNATURE
    path.write_text(key.sign((folder / MANIFEST).read_bytes()).hex() + "\n")
    return path


def check_signature(folder: Path, manifest: bytes, public_key: Path) -> None:
    """Raises ``IntegrityError`` unless the folder has a signature of ``manifest`` by the key in the PEM file."""
    require_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(_read(public_key))
    except ValueError:
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{public_key} holds no ed25519 public key in PEM form")
    path = folder / SIGNATURE
    try:
        signature = bytes.fromhex(path.read_text(encoding="ascii")) if path.stat().st_size < 1000 else b""
    except FileNotFoundError:
        raise IntegrityError(f"{path} is missing: {MANIFEST} is not signed") from None
    except (OSError, ValueError):
        signature = b""
    try:
        key.verify(signature, manifest)
    except InvalidSignature:
        raise IntegrityError(f"{path} is not a signature of {MANIFEST} by the key in {public_key}") from None


def require_cryptography() -> None:
    """Raises ``ConfigError`` where the library that signatures need is not installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise ConfigError("signatures need the cryptography library: pip install 'trimaran[signing]'") from None


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_MAX_KEY)
    except OSError as error:
        raise ConfigError(f"cannot read the key {path}: {error.strerror}") from error
