"""HTTPS: which versions, which files, and clients that are slow to begin."""

import datetime
import ipaddress
import socket
import ssl
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from trimaran.base.errors import ConfigError
from trimaran.server.tls import tls_context

from .running import NAME, running


def write_certificate(folder: Path, name: str, password: bytes | None = None) -> tuple[str, str]:
    """A certificate that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    hidden = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden)
    certfile, keyfile = folder / f"{name}.pem", folder / f"{name}.key"
    certfile.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    keyfile.write_bytes(pem)
    keyfile.chmod(0o600)
    return str(certfile), str(keyfile)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> tuple[str, str]:
    return write_certificate(tmp_path_factory.mktemp("tls"), "server")


def test_answers_and_streams(byte_model, files):
    certfile, keyfile = files
    with running(byte_model, ssl_certfile=certfile, ssl_keyfile=keyfile, timeout_body=0.5) as server:
        assert server.url.startswith("https://")
        assert server.http.get("/v1/models").status_code == 200
        body = {"model": NAME, "prompt": "x", "max_tokens": 200, "stream": True, "ignore_eos": True}
        assert server.http.post("/v1/completions", json=body).text.endswith("data: [DONE]\n\n")
        host, port = server.url.removeprefix("https://").split(":")
        with pytest.raises(httpx.RemoteProtocolError):
            httpx.get(f"http://{host}:{port}/health")
        with socket.create_connection((host, int(port)), timeout=20) as raw:
            assert raw.recv(1) == b"", "who does not begin is not waited for"


def test_clients_with_certificates(byte_model, files, tmp_path):
    certfile, keyfile = files
    client, client_key = write_certificate(tmp_path, "client")
    with running(
        byte_model, ssl_certfile=certfile, ssl_keyfile=keyfile, ssl_ca_certs=client, certificate=(client, client_key)
    ) as server:
        assert server.http.get("/health").status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(server.url + "/health", verify=ssl.create_default_context(cafile=certfile))


def test_wrong_files(files, tmp_path):
    certfile, keyfile = files
    other, other_key = write_certificate(tmp_path, "other")
    hidden, hidden_key = write_certificate(tmp_path, "hidden", password=b"secret")
    for arguments, says in [
        ((None, keyfile, None), "need --ssl-certfile"),
        ((None, None, other), "need --ssl-certfile"),
        ((certfile, other_key, None), "cannot be used"),
        ((certfile, str(tmp_path / "none"), None), "--ssl-keyfile: cannot read"),
        ((keyfile, keyfile, None), "cannot be used"),
        ((certfile, keyfile, keyfile), "--ssl-ca-certs"),
        ((hidden, hidden_key, None), "password"),
    ]:
        with pytest.raises(ConfigError, match=says):
            tls_context(*arguments)
    Path(other_key).chmod(0o644)
    with pytest.raises(ConfigError, match="others may read or write"):
        tls_context(other, other_key, None)


def test_the_oldest_version(files):
    context = tls_context(*files, None)
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_none():
    assert tls_context(None, None, None) is None
