"""``https://``: one GGUF file at an address."""

from trimaran.checkpoint import cache
from trimaran.checkpoint.download import Remote, download
from trimaran.checkpoint.environment import CONNECTIONS
from trimaran.checkpoint.http_client import open_client
from trimaran.checkpoint.source_spec import Pins, UrlSource


def pull_url(text: str, source: UrlSource, pins: Pins, connections: int = CONNECTIONS) -> cache.CachedModel:
    """Downloads the file into the cache; raises ``SourceError``."""
    directory = cache.staging(text)
    with open_client() as client:
        remote = Remote(source.url, pins.file or source.sha256)
        record = download(client, remote, directory / source.file, connections)
    return cache.publish(directory, text, [record], main=record.name)
