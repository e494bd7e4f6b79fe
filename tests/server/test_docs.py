"""``docs/server.md`` names every option, metric and supported field, and no option that is not there."""

import dataclasses
import math
import re
from pathlib import Path

import msgspec
import pytest

from trimaran.base.errors import RequestError
from trimaran.base.messages import Beat, CachePages
from trimaran.base.sampling import SamplingParams
from trimaran.server.metrics import Metrics
from trimaran.server.openai.schema import ChatRequest, CompletionRequest
from trimaran.server.options import ServeOptions
from trimaran.server.pool_metrics import PoolMetrics

NUMBERS = (int, float, int | None)
DOC = (Path(__file__).parents[2] / "docs" / "server.md").read_text()


def test_options():
    flags = {"--" + field.name.replace("_", "-") for field in dataclasses.fields(ServeOptions) if field.name != "model"}
    assert set(re.findall(r"^\| `(--[a-z-]+)`", DOC, re.MULTILINE)) == flags


def test_metrics():
    metrics = Metrics()
    metrics.requests.labels("/health", "200").inc()  # a family with labels has no sample before
    metrics.errors.labels("invalid_value").inc()
    metrics.tool_calls.labels("parsed").inc()
    metrics.engine.start_took({"load": 0.1}, 0.2)
    metrics.engine.observe(Beat(pages=[CachePages(None, 1, 1, 0)], transfers_failed={"link": 1}))
    metrics.engine.start_took({"map": 0.1}, 0.5)
    exported = {}
    for family in metrics.registry.collect():
        name = family.name + ("_total" if family.type == "counter" else "")
        exported[name] = family.type, [label for label in family.samples[0].labels if label != "le"]
    rows = re.findall(r"^\| `(trimaran_\w+)` \| (\w+) \|(.*?)\|", DOC, re.MULTILINE)
    assert {name: (kind, re.findall(r"`(\w+)`", labels)) for name, kind, labels in rows} == exported
    assert len(rows) == len(exported)


def test_values_of_labels():
    for value in ("other", "499", "/v1/models/{model}"):
        assert f"`{value}`" in DOC


def test_ranges():
    """What the table allows is taken and what is next to it refused."""
    rows = re.findall(r"^\| `(\w+)` \| (-?\d\S*) \| ([^|]+) \| ([^|]+) \|$", DOC, re.MULTILINE)
    kinds = {field.name: field.type for field in msgspec.structs.fields(SamplingParams)}
    assert {name for name, *_ in rows} == {name for name, kind in kinds.items() if kind in NUMBERS}
    for name, least, most, default in rows:
        number = float if kinds[name] is float else int
        value = getattr(SamplingParams(), name)
        assert default == "see below" or value == (None if default == "none" else number(default.partition(":")[0]))
        bounds = [number(least)] + ([number(most)] if most[-1].isdigit() else [])
        for bound, step in zip(bounds, (-1, 1), strict=False):
            assert getattr(SamplingParams(**{name: bound}), name) == bound
            beyond = math.nextafter(bound, step * math.inf) if number is float else bound + step
            with pytest.raises(RequestError):
                SamplingParams(**{name: beyond})


def test_fields():
    fields = {*ChatRequest.model_fields, *CompletionRequest.model_fields} - {"stream_options"}
    assert {name for name in fields if f"`{name}`" not in DOC} == set()


def test_options_and_metrics_of_pools():
    metrics = Metrics()
    shown = PoolMetrics(metrics.registry)
    shown.load.labels("prefill", "0").set(1)
    shown.retries.labels("EngineDiedError").inc()
    exported = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in metrics.registry.collect()
        if family.name.startswith(("trimaran_router", "trimaran_handoff"))
    }
    doc = (Path(__file__).parents[2] / "docs" / "pools.md").read_text()
    assert dict(re.findall(r"^\| `(trimaran_\w+)` \| (\w+) \|", doc, re.MULTILINE)) == exported
    named = set(re.findall(r"`(--(?:pool|prefill|decode|timeout-queue|timeout-handoff)[a-z-]*)", doc))
    assert named <= set(re.findall(r"`(--[a-z-]+)`", DOC)) | {"--no-pool-self-test"}
