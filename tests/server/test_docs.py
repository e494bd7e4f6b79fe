"""``docs/server.md`` names every option, metric and supported field, and no option that is not there."""

import dataclasses
import re
from pathlib import Path

from trimaran.server.openai.schema import ChatRequest, CompletionRequest
from trimaran.server.options import ServeOptions

from .test_probes import METRICS

DOC = (Path(__file__).parents[2] / "docs" / "server.md").read_text()


def test_options():
    flags = {"--" + field.name.replace("_", "-") for field in dataclasses.fields(ServeOptions) if field.name != "model"}
    assert set(re.findall(r"^\| `(--[a-z-]+)`", DOC, re.MULTILINE)) == flags


def test_metrics():
    assert set(re.findall(r"`(trimaran_\w+)`", DOC)) == set(METRICS)


def test_fields():
    fields = {*ChatRequest.model_fields, *CompletionRequest.model_fields} - {"stream_options"}
    assert {name for name in fields if f"`{name}`" not in DOC} == set()
