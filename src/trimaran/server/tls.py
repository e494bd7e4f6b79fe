"""TLS for the listening socket: 1.2 or newer, HTTP/1.1 only."""

import ssl
from pathlib import Path

from trimaran.base.errors import ConfigError
from trimaran.server.secret_file import require_secret


def tls_context(certfile: str | None, keyfile: str | None, ca_certs: str | None) -> ssl.SSLContext | None:
    """The server's side of TLS, or ``None`` where no certificate is given; raises ``ConfigError``.

    ``keyfile`` may be in ``certfile``. With ``ca_certs`` clients must show a certificate of one of these authorities.
    """
    if certfile is None:
        if keyfile is not None or ca_certs is not None:
            raise ConfigError("--ssl-keyfile and --ssl-ca-certs need --ssl-certfile")
        return None
    key = certfile if keyfile is None else keyfile
    require_secret(Path(key), "--ssl-certfile" if keyfile is None else "--ssl-keyfile")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certfile, keyfile, password=_no_password)
    except (OSError, ssl.SSLError, ValueError) as error:
        said = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ConfigError(f"--ssl-certfile {certfile} and its key {key} cannot be used: {said}") from error
    if ca_certs is not None:
        try:
            context.load_verify_locations(ca_certs)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"--ssl-ca-certs {ca_certs} cannot be used: {error}") from error
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> str:
    raise ValueError("the key has a password; nobody is there to type it")
