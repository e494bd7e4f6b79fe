"""``https://``: one GGUF file at an address."""

from trimaran.checkpoint import cache
from trimaran.checkpoint.download import Remote, download
from trimaran.checkpoint.http_client import open_client
from trimaran.checkpoint.source_spec import Pins, UrlSource


def pull_url(text: str, source: UrlSource, pins: Pins) -> cache.CachedModel:
    """Downloads the file into the cache; raises ``SourceError``."""
    directory = cache.staging(text)
    with open_client() as client:
        record = download(client, Remote(source.url, pins.file or source.sha256), directory / source.file)
    return cache.publish(directory, text, [record], main=record.name)
