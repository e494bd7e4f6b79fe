"""The HTTP client that fetches models, and what its errors mean for a download."""

import ipaddress
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version

import httpx

from trimaran.base.errors import ConfigError, SourceError
from trimaran.checkpoint.environment import certificates
from trimaran.checkpoint.patience import Patience, TransientError

TIMEOUT = httpx.Timeout(30.0, connect=10.0)  # seconds; each read waits at most this long for its next bytes
MAX_REDIRECTS = 10
MAX_DOCUMENT = 64 << 20  # bytes of an index page or an API answer

_HINTS = {
    401: ": it wants a login (for the model hub: set HF_TOKEN)",
    403: ": access is refused (a gated model needs its licence accepted on the hub, and HF_TOKEN)",
    404: ": there is no such file, name or revision",
    407: ": the proxy wants a login (see HTTPS_PROXY)",
}


def open_client() -> httpx.Client:
    """A client that follows redirects, but never to an address without TLS; close it after use."""
    return httpx.Client(
        verify=_trust(),
        timeout=TIMEOUT,
        follow_redirects=True,
        max_redirects=MAX_REDIRECTS,
        headers={"User-Agent": f"trimaran/{version('trimaran')}"},
        event_hooks={"request": [_demand_tls]},
    )


def shown(url: str | httpx.URL) -> str:
    """An address for people: without password and query, which may hold secrets."""
    try:
        return str(httpx.URL(url).copy_with(userinfo=b"", query=None, fragment=None))
    except httpx.InvalidURL:
        return "an address that is not valid"


@contextmanager
def translated_errors(url: str) -> Iterator[None]:
    """Turns httpx's errors into ``TransientError``, or ``SourceError`` where another try would end the same way."""
    try:
        yield
    except httpx.TransportError as error:
        reason = str(error) or type(error).__name__
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            raise SourceError(f"{shown(url)}: {reason}; name your own authority with SSL_CERT_FILE") from error
        raise TransientError(reason) from error
    except (httpx.TooManyRedirects, httpx.InvalidURL, httpx.DecodingError) as error:
        raise SourceError(f"cannot fetch {shown(url)}: {error}") from error


def check_status(response: httpx.Response) -> None:
    """Raises ``TransientError`` on a status that may pass, ``SourceError`` on every other one that is not a success."""
    if response.is_success:
        return
    status = response.status_code
    text = f"{shown(response.request.url)} answered {status} {response.reason_phrase}"
    if status in (408, 425, 429) or status >= 500:
        wait = response.headers.get("Retry-After", "")
        raise TransientError(text, pause=float(wait) if wait.isdecimal() else None)
    raise SourceError(f"{text}{_HINTS.get(status, '')}")


def get_document(client: httpx.Client, url: str, headers: Mapping[str, str]) -> httpx.Response:
    """Fetches a small document whole, trying again as ``Patience`` allows; raises ``SourceError``."""
    patience = Patience(f"cannot fetch {shown(url)}")
    while True:
        try:
            with translated_errors(url), client.stream("GET", url, headers=headers) as response:
                check_status(response)
                return _read(response)
        except TransientError as error:
            patience.failed(error)


def _read(response: httpx.Response) -> httpx.Response:
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > MAX_DOCUMENT:
            raise SourceError(f"{shown(response.request.url)} answered more than {MAX_DOCUMENT} bytes")
    plain = {"Content-Type": response.headers.get("Content-Type", "")}  # the body is decoded: no Content-Encoding
    return httpx.Response(200, headers=plain, content=bytes(body), request=response.request)


def _demand_tls(request: httpx.Request) -> None:
    scheme = request.url.scheme
    if scheme != "https" and not (scheme == "http" and _loopback(request.url.host)):
        raise SourceError(f"refusing {shown(request.url)}: without https:// anyone on the way could change the model")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _trust() -> ssl.SSLContext | bool:
    path = certificates()
    if path is None:
        return True
    try:
        if path.is_dir():
            return ssl.create_default_context(capath=str(path))
        return ssl.create_default_context(cafile=str(path))
    except OSError as error:  # an SSLError is one
        raise ConfigError(f"cannot read certificates from {path}: {error}") from error
