"""``https://``: one GGUF file at an address."""

from pathlib import PurePosixPath

import httpx

from trimaran.checkpoint import cache
from trimaran.checkpoint.download import Remote, download
from trimaran.checkpoint.http_client import open_client
from trimaran.checkpoint.source_spec import Pins, UrlSource


def pull_url(text: str, source: UrlSource, pins: Pins) -> cache.CachedModel:
    """Downloads the file into the cache; raises ``SourceError``."""
    name = PurePosixPath(httpx.URL(source.url).path).name
    directory = cache.staging(text)
    with open_client() as client:
        record = download(client, Remote(source.url, pins.file or source.sha256), directory / name)
    return cache.publish(directory, text, [record], main=name)
