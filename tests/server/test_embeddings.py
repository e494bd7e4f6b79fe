"""``/v1/embeddings`` through the official client: a tiny BERT on the reference executor, against transformers."""

import base64
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest
from tests.models.tiny_bert import BERT, write_bert

from trimaran.engine.config import EngineConfig
from trimaran.server.options import ServeOptions

from .batching import begun, client_of, ended, line, results
from .running import NAME, Running, serving
from .word_tokenizer import WORDS, write_words


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words(write_bert(tmp_path_factory.mktemp("bert")))


@pytest.fixture(scope="module")
def server(encoder: Path) -> Iterator[Running]:
    engine = EngineConfig(model=str(encoder), served_name=NAME, executor="reference", max_num_seqs=4)
    with serving(encoder, ServeOptions(max_num_seqs=4), engine) as server:
        yield server


def rows(answer: openai.types.CreateEmbeddingResponse) -> np.ndarray:
    return np.array([each.embedding for each in answer.data], np.float32)


def test_vectors_are_those_of_transformers(client: openai.OpenAI) -> None:
    with np.load(BERT / "golden.npz") as golden:
        texts, wanted = np.split(golden["tokens"], np.cumsum(golden["lengths"])[:-1]), golden["mean"]
    answer = client.embeddings.create(model=NAME, input=[text.tolist() for text in texts])
    got = rows(answer)
    assert [each.index for each in answer.data] == list(range(len(texts)))
    np.testing.assert_allclose(np.linalg.norm(got, axis=1), 1, atol=1e-6)
    cosine = (got * wanted).sum(1) / np.linalg.norm(wanted, axis=1)
    assert cosine.min() >= 0.999999
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, texts))


def test_a_text_is_framed_never_cut_or_padded_and_its_control_tokens_are_text(client: openai.OpenAI) -> None:
    text = " ".join(WORDS[:100])
    ids = [2, *range(10, 110), 3]
    by_text, by_ids = (client.embeddings.create(model=NAME, input=given) for given in (text, ids))
    assert by_text.usage.prompt_tokens == 102
    np.testing.assert_array_equal(rows(by_text), rows(by_ids))
    plain = client.embeddings.create(model=NAME, input="w1 [SEP] W2")
    np.testing.assert_array_equal(rows(plain), rows(client.embeddings.create(model=NAME, input=[2, 11, 1, 12, 3])))


def test_a_text_gets_the_same_vector_whatever_its_company(client: openai.OpenAI) -> None:
    texts = ["w3", "w4 w5 w6", " ".join(WORDS[:150]), "w7 " * 40, "w3"]
    together = rows(client.embeddings.create(model=NAME, input=texts * 3))
    alone = np.concatenate([rows(client.embeddings.create(model=NAME, input=text)) for text in texts])
    np.testing.assert_array_equal(together, np.concatenate([alone] * 3))


def test_numbers_and_base64_are_the_same(server: Running) -> None:
    body = {"model": NAME, "input": ["w1 w2", "w9"]}
    numbers, coded = (
        server.http.post("/v1/embeddings", json={**body, "encoding_format": how}).json()["data"]
        for how in ("float", "base64")
    )
    for number, code in zip(numbers, coded, strict=True):
        assert number["object"] == code["object"] == "embedding"
        assert np.frombuffer(base64.b64decode(code["embedding"]), "<f4").tolist() == number["embedding"]


def test_fewer_dimensions_are_the_first_ones_as_long_as_all(client: openai.OpenAI) -> None:
    whole, cut = (rows(client.embeddings.create(model=NAME, input="w1", dimensions=n)) for n in (64, 10))
    np.testing.assert_allclose(cut, whole[:, :10] / np.linalg.norm(whole[:, :10]), atol=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": []}, "input", "invalid_value"),
        ({"input": [[]]}, "input", "invalid_value"),
        ({"input": "w1 " * 200}, "input", "context_length_exceeded"),
        ({"input": ["w1", "w1 " * 200]}, "input[1]", "context_length_exceeded"),
        ({"input": [200]}, "input", "invalid_value"),
        ({"input": [[1, -1]]}, "input", "invalid_value"),
        ({"input": [[1], [1, -1]]}, "input[1]", "invalid_value"),
        ({"input": ["w1"] * 2049}, "input", "invalid_value"),
        ({"input": {"text": "w1"}}, "input", "invalid_type"),
        ({}, "input", "missing_required_parameter"),
        ({"input": "w1", "dimensions": 65}, "dimensions", "invalid_value"),
        ({"input": "w1", "dimensions": 0}, "dimensions", "invalid_value"),
        ({"input": "w1", "dimensions": "9"}, "dimensions", "invalid_type"),
        ({"input": "w1", "encoding_format": "int8"}, "encoding_format", "invalid_value"),
        ({"input": "w1", "encoding_format": 8}, "encoding_format", "invalid_type"),
        ({"input": "w1", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "unsupported_parameter"),
        ({"input": "w1", "task": "query"}, "task", "unknown_parameter"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    server: Running, body: dict[str, object], param: str, code: str
) -> None:
    answer = server.http.post("/v1/embeddings", json={"model": NAME, **body})
    assert answer.status_code == 400
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == (param, code)


def test_another_model_is_not_found(server: Running) -> None:
    answer = server.http.post("/v1/embeddings", json={"model": "other", "input": "w1"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/responses", {"input": "hi"}),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/tokenize", {"prompt": "hi"}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
def test_an_encoder_makes_no_text(server: Running, path: str, body: dict[str, object]) -> None:
    answer = server.http.post(path, json={"model": NAME, **body})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported")
    assert "/v1/embeddings" in answer.json()["error"]["message"]
    assert server.http.post(path, json={"model": "other", **body}).status_code == 404


def test_it_is_ready_and_counts(server: Running) -> None:
    assert server.http.get("/ready").status_code == 200
    assert server.http.get("/v1/models").json()["data"][0]["max_model_len"] == 160
    assert "trimaran_prompt_tokens_total" in server.http.get("/metrics").text


def test_a_batch_of_texts(encoder: Path, tmp_path: Path) -> None:
    options = ServeOptions(model=str(encoder), files_dir=str(tmp_path))
    config = EngineConfig(model=str(encoder), executor="reference")
    url, inputs = "/v1/embeddings", [f"w{number} w{number + 1}" for number in range(20)]
    with serving(encoder, options, config) as server, client_of(server) as client:
        made = begun(client, [line(text, url, input=text, encoding_format="float") for text in inputs], url)
        batch = ended(client, made.id)
        assert (batch.status, batch.request_counts.completed) == ("completed", 20)
        assert batch.usage.input_tokens == 20 * 4
        alone = client.embeddings.create(model=NAME, input=inputs, encoding_format="float")
        answers = results(client, batch.output_file_id)
        vectors = [one["response"]["body"]["data"][0]["embedding"] for one in answers]
        assert vectors == [one.embedding for one in alone.data]
        with pytest.raises(openai.BadRequestError) as caught:
            begun(client, [line("a", "/v1/completions", prompt="x")])
        assert caught.value.param == "endpoint"
