"""Health, readiness, version, models and the names of metrics."""

import trimaran
from trimaran.kernels.null import NullModel

from .byte_model import VOCAB
from .running import NAME, eventually, running

METRICS = {
    "trimaran_engine_restarts": "counter",
    "trimaran_engine_up": "gauge",
    "trimaran_canary_checks": "counter",
    "trimaran_canary_deviations": "counter",
    "trimaran_cached_tokens": "counter",
    "trimaran_batches_unfinished": "gauge",
    "trimaran_batch_requests": "counter",
    "trimaran_batch_requests_retried": "counter",
    "trimaran_batch_requests_running": "gauge",
    "trimaran_generated_tokens": "counter",
    "trimaran_drafted_tokens": "counter",
    "trimaran_accepted_tokens": "counter",
    "trimaran_inter_token_seconds": "histogram",
    "trimaran_page_leases": "gauge",
    "trimaran_page_leases_expired": "counter",
    "trimaran_links_rejected": "counter",
    "trimaran_transfers_failed": "counter",
    "trimaran_pages": "gauge",
    "trimaran_pages_cached": "gauge",
    "trimaran_pages_distrusted": "counter",
    "trimaran_pages_free": "gauge",
    "trimaran_page_faults": "counter",
    "trimaran_pages_quarantined": "gauge",
    "trimaran_pages_scattered_ratio": "gauge",
    "trimaran_pages_unused_ratio": "gauge",
    "trimaran_constrained_requests": "counter",
    "trimaran_grammars_compiled": "counter",
    "trimaran_grammar_seconds": "counter",
    "trimaran_mask_seconds": "counter",
    "trimaran_preemptions": "counter",
    "trimaran_prompt_tokens": "counter",
    "trimaran_request_seconds": "histogram",
    "trimaran_requests": "counter",
    "trimaran_errors": "counter",
    "trimaran_requests_cancelled": "counter",
    "trimaran_sequences_running": "gauge",
    "trimaran_sequences_waiting": "gauge",
    "trimaran_executor_seconds": "counter",
    "trimaran_step_seconds": "counter",
    "trimaran_start_seconds": "gauge",
    "trimaran_steps": "counter",
    "trimaran_tool_calls": "counter",
    "trimaran_conversations_continued": "counter",
    "trimaran_conversations_rewritten": "counter",
    "trimaran_time_to_first_token_seconds": "histogram",
}


def test_health_and_ready(server):
    assert server.http.get("/health").json() == {"status": "live"}
    assert server.http.get("/ready").json() == {"status": "ready"}


def test_version(server):
    assert server.http.get("/version").json() == {
        "version": trimaran.__version__,
        "executor": "null",
        "isa": "none",
        "threads": 1,
        "weight_format": "none",
        "kv_format": "bf16",
    }


def test_models(client):
    models = client.models.list().data
    assert [model.id for model in models] == [NAME, "alias"]
    model = client.models.retrieve(NAME)
    assert model == models[0]
    assert (model.max_model_len, model.weight_format, model.kv_format) == (2048, "none", "bf16")


def test_metric_names_are_a_contract(server):
    response = server.http.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    types = dict(line.split()[2:4] for line in response.text.splitlines() if line.startswith("# TYPE"))
    assert {name.removesuffix("_total"): kind for name, kind in types.items()} == METRICS


def test_metrics_count(server, client):
    def count(line):
        lines = server.http.get("/metrics").text.splitlines()
        return next((float(each.split()[-1]) for each in lines if each.startswith(line + " ")), 0.0)

    answered = 'trimaran_requests_total{endpoint="/v1/completions",status="200"}'
    names = [
        answered,
        "trimaran_time_to_first_token_seconds_count",
        "trimaran_inter_token_seconds_count",
        "trimaran_request_seconds_count",
    ]
    before = [count(name) for name in names]
    client.completions.create(model=NAME, prompt="x", max_tokens=5, extra_body={"ignore_eos": True})
    after = [count(name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 4, 1]


def test_paths_do_not_multiply_metrics(server):
    for path in ("/a", "/b", "/v1/models/a", "/v1/models/b/c"):
        server.http.get(path)
    labels = [
        line for line in server.http.get("/metrics").text.splitlines() if line.startswith("trimaran_requests_total")
    ]
    assert not any('"/a"' in line or "/b" in line for line in labels)
    assert any('endpoint="other",status="404"' in line for line in labels)
    assert any('endpoint="/v1/models/{model}",status="404"' in line for line in labels)


def test_the_log_has_the_path(server, caplog):
    caplog.set_level("INFO", logger="trimaran.access")
    server.http.get("/no%0Awhere?key=secret")
    server.http.get("/" + "x" * 1000)
    server.http.get("/v1/models/a")
    eventually(lambda: len(caplog.messages) == 3)
    lines = [message.rpartition(" 404 ")[0] for message in caplog.messages]
    assert lines == ["GET /no%0Awhere", "GET /" + "x" * 199, "GET /v1/models/a"]


def test_openapi_describes_the_routes(server):
    paths = server.http.get("/openapi.json").json()["paths"]
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models"} <= set(paths)


def test_pages_of_layers_with_a_window_are_told_apart(byte_model, capfd):
    null = NullModel(vocab=VOCAB, context=2048, windows=(64, None))
    with running(byte_model, null=null) as server:
        eventually(lambda: 'trimaran_pages{window="64"}' in server.http.get("/metrics").text)
        text = server.http.get("/metrics").text
    values = {line.split()[0]: int(float(line.split()[1])) for line in text.splitlines() if "window=" in line}
    whole, windowed = (values[f'trimaran_pages{{window="{window}"}}'] for window in ("none", "64"))
    assert f"KV bf16, {whole} pages of 16 and {windowed} with a window of 64;" in capfd.readouterr().err
    assert windowed < whole
