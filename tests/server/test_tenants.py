"""What one key may have: requests and tokens a minute, requests at once, a cache of its own."""

from typing import Any

import openai
import pytest

from trimaran.kernels.null import NullModel
from trimaran.server.tenants import RateLimitError, Tenant, TenantLimits

from .byte_model import VOCAB
from .running import NAME, Running, eventually, running

SLOW = NullModel(vocab=VOCAB, context=2048, step_seconds=0.005)
KEYS = "one name=one requests=2\ntwo name=two concurrency=1\nthree name=three tokens=20\n"
PROMPT = "a text that is longer than a page of the cache, and then some"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_requests_tokens_and_concurrency():
    clock = Clock()
    tenant = Tenant("x", TenantLimits(requests_per_minute=60, tokens_per_minute=600, concurrency=2), clock=clock)
    tenant.enter()
    tenant.enter()
    with pytest.raises(RateLimitError) as caught:
        tenant.enter()
    assert (caught.value.code, caught.value.retry_after) == ("concurrency", 1)
    tenant.leave()
    tenant.spend(605)
    with pytest.raises(RateLimitError) as caught:
        tenant.enter()
    assert (caught.value.code, caught.value.retry_after) == ("token_rate", pytest.approx(0.6))
    clock.now += 0.7
    for _ in range(58):
        tenant.enter()
        tenant.leave()
    with pytest.raises(RateLimitError) as caught:
        tenant.enter()
    assert caught.value.code == "request_rate"
    assert "60 requests a minute" in str(caught.value)
    clock.now += 1
    tenant.enter()


def test_no_limits():
    tenant = Tenant("x", TenantLimits())
    for _ in range(1000):
        tenant.enter()
        tenant.spend(10**9)


def client(server: Running, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)


def metrics(server: Running) -> str:
    return server.http.get("/metrics", headers={"authorization": "Bearer one"}).text


def write_keys(path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def is_answered(client: openai.OpenAI, ask: dict[str, Any]) -> bool:
    try:
        client.completions.create(**ask)
    except openai.RateLimitError:
        return False
    return True


def test_a_busy_key_is_told_when_to_come_back_and_others_go_on(byte_model, tmp_path):
    file = write_keys(tmp_path / "keys", KEYS)
    with (
        running(byte_model, null=SLOW, api_key_file=file) as server,
        client(server, "one") as one,
        client(server, "two") as two,
        client(server, "three") as three,
    ):
        ask = {"model": NAME, "prompt": "x", "max_tokens": 2}
        for _ in range(2):
            one.completions.create(**ask)
        with pytest.raises(openai.RateLimitError) as caught:
            one.completions.create(**ask)
        assert caught.value.code == "request_rate"
        assert caught.value.type == "rate_limit_error"
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 30
        assert one.models.list().data, "only what works is counted"

        stream = two.completions.create(**{**ask, "max_tokens": 500}, stream=True, extra_body={"ignore_eos": True})
        next(iter(stream))
        with pytest.raises(openai.RateLimitError) as caught:
            two.completions.create(**ask)
        assert caught.value.code == "concurrency"
        assert 'trimaran_errors_total{code="concurrency"} 1.0' in metrics(server)
        stream.close()
        eventually(lambda: is_answered(two, ask))  # the server notices a moment later that the client has left

        three.completions.create(**{**ask, "prompt": "x" * 15, "max_tokens": 10}, extra_body={"ignore_eos": True})
        with pytest.raises(openai.RateLimitError) as caught:
            three.completions.create(**ask)
        assert caught.value.code == "token_rate"
        for code in ("request_rate", "token_rate"):
            assert f'trimaran_errors_total{{code="{code}"}} 1.0' in metrics(server)


def test_without_keys_the_limits_are_everybodys(byte_model):
    with running(byte_model, max_requests_per_minute=1) as server:
        ask = {"model": NAME, "prompt": "x", "max_tokens": 1}
        assert server.http.post("/v1/completions", json=ask).status_code == 200
        assert server.http.post("/v1/completions", json=ask).status_code == 429


@pytest.mark.parametrize("own", [False, True])
def test_a_cache_of_ones_own(byte_model, tmp_path, own):
    file = write_keys(tmp_path / "keys", "a name=alice\nb name=alice\nc name=bob\n")

    def cached(server: Running, key: str, **more) -> int:
        with client(server, key) as asking:
            answer = asking.completions.create(model=NAME, prompt=PROMPT, max_tokens=1, extra_body=more)
        return answer.usage.prompt_tokens_details.cached_tokens

    with running(byte_model, api_key_file=file, cache_salt_per_key=own) as server:
        assert cached(server, "a") == 0
        assert cached(server, "b") > 0
        assert (cached(server, "c") > 0) == (not own)
        assert cached(server, "a", cache_salt="s") == 0
        assert cached(server, "b", cache_salt="s") > 0
        assert (cached(server, "c", cache_salt="s") > 0) == (not own)
