"""``/v1/rerank`` and ``/v1/score``: cosines of a tiny BERT's vectors, and logits of a tiny BERT that reads pairs."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from tests.models.running import load_path
from tests.models.tiny_bert import SCORER, write_bert

from trimaran.base.errors import CheckpointError
from trimaran.base.messages import Embed, Embedded
from trimaran.engine.config import EngineConfig
from trimaran.engine.encoder import Encoder
from trimaran.engine.load import load_any
from trimaran.server.assembly import load_text
from trimaran.server.options import ServeOptions
from trimaran.server.scoring import cosines as exact_cosines

from .batching import begun, client_of, ended, line, results
from .running import NAME, Running, running, serving
from .word_tokenizer import WORDS, write_words

QUERY = "w1 w2 w3"
DOCUMENTS = ["w4 w5", "w1 w2 w9", "w60", "w1 w2 w3", "w7 " * 30]
LONG = " ".join(WORDS[:200])


def served(folder: Path, executor: str, **options: Any) -> Any:
    engine = EngineConfig(model=str(folder), served_name=NAME, executor=executor, max_num_seqs=4, threads=1)
    return serving(folder, ServeOptions(max_num_seqs=4, **options), engine)


@pytest.fixture(scope="module")
def vectors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose model makes vectors."""
    with served(write_words(write_bert(tmp_path_factory.mktemp("bert"))), "native") as server:
        yield server


@pytest.fixture(scope="module")
def scorer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_words(write_bert(tmp_path_factory.mktemp("scorer"), SCORER))


@pytest.fixture(scope="module", params=["native", "reference"])
def pairs(request: pytest.FixtureRequest, scorer: Path) -> Iterator[Running]:
    """A server whose model reads pairs."""
    with served(scorer, request.param) as server:
        yield server


@pytest.fixture(scope="module")
def logits(scorer: Path) -> Iterator[Any]:
    """Logits of pairs that are written out as the model reads them, by the reference executor."""
    encoder = load_any(EngineConfig(model=str(scorer), executor="reference"))
    assert isinstance(encoder, Encoder)

    def run(pairs: list[tuple[str, str]]) -> list[float]:
        framed = [([2, *ids(first), 3], [*ids(second), 3]) for first, second in pairs]
        texts, seconds = [first + second for first, second in framed], [len(first) for first, _ in framed]
        encoder.submit(Embed("a", texts, seconds=seconds))
        messages = []
        while not encoder.idle:
            messages += encoder.step()
        (answer,) = messages
        assert isinstance(answer, Embedded)
        return np.frombuffer(answer.vectors, "<f4").tolist()

    yield run
    encoder.close()


def ids(text: str) -> list[int]:
    return [int(word[1:]) + 10 for word in text.split()]


def ask(server: Running, path: str, **body: Any) -> dict[str, Any]:
    answer = post(server, path, **body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(server: Running, path: str, **body: Any) -> httpx.Response:
    return server.http.post(path, json={"model": NAME, **body})


def scores_of(answer: dict[str, Any]) -> list[float]:
    return [each["score"] for each in answer["data"]]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def cosines(server: Running, pairs: list[tuple[str, str]]) -> list[float]:
    """Of vectors that ``/v1/embeddings`` gives for each text alone."""
    made = []
    for pair in pairs:
        one, other = (
            np.array(ask(server, "/v1/embeddings", input=text)["data"][0]["embedding"], np.float64) for text in pair
        )
        made.append(float(one @ other / np.linalg.norm(one) / np.linalg.norm(other)))
    return made


def test_ranks_are_by_cosine(vectors: Running) -> None:
    wanted = cosines(vectors, [(QUERY, document) for document in DOCUMENTS])
    answer = ask(vectors, "/v1/rerank", query=QUERY, documents=DOCUMENTS)
    assert answer["id"].startswith("rerank-")
    assert answer["model"] == NAME
    order = [each["index"] for each in answer["results"]]
    assert order == sorted(range(5), key=lambda number: -wanted[number])
    assert order[0] == 3, "the query itself"
    for each in answer["results"]:
        assert each["document"] == {"text": DOCUMENTS[each["index"]]}
        assert each["relevance_score"] == pytest.approx(wanted[each["index"]], abs=1e-6)
    read = {QUERY, *DOCUMENTS}  # each once, with two control tokens
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] == sum(len(t.split()) + 2 for t in read)


def test_no_cosine_is_beyond_one() -> None:
    rows = np.random.default_rng(0).standard_normal((100, 64), np.float32)
    both = np.concatenate([rows, -rows])
    same = exact_cosines(both, [(row, row) for row in range(100)])
    opposite = exact_cosines(both, [(row, row + 100) for row in range(100)])
    assert same == [-cosine for cosine in opposite]
    assert 0.999999 < min(same) <= max(same) <= 1


@pytest.mark.parametrize("path", ["/rerank", "/v2/rerank"])
def test_documents_as_objects_the_best_alone_and_other_routes(vectors: Running, path: str) -> None:
    whole = ask(vectors, "/v1/rerank", query=QUERY, documents=DOCUMENTS)["results"]
    objects = [DOCUMENTS[0], *({"text": document} for document in DOCUMENTS[1:])]
    best = ask(vectors, path, query=QUERY, documents=objects, top_n=2, return_documents=False)["results"]
    assert best == [{key: each[key] for key in ("index", "relevance_score")} for each in whole[:2]]
    for top_n in (0, 5, 1000):
        assert ask(vectors, path, query=QUERY, documents=objects, top_n=top_n)["results"] == whole


def test_equal_scores_keep_their_order(vectors: Running) -> None:
    results = ask(vectors, "/v1/rerank", query=QUERY, documents=["w5", "w9", "w5", "w5"])["results"]
    assert [each["index"] for each in results if each["index"] != 1] == [0, 2, 3]
    assert len({each["relevance_score"] for each in results}) == 2


def test_scores_are_of_one_with_one_one_with_all_and_each_with_its_own(vectors: Running) -> None:
    many = [f"w{number} w{number * 7 % 90}" for number in range(40)]
    all_of_one = ask(vectors, "/v1/score", text_1=QUERY, text_2=many)
    assert (all_of_one["object"], all_of_one["data"][3]["object"]) == ("list", "score")
    assert [each["index"] for each in all_of_one["data"]] == list(range(40))
    assert scores_of(all_of_one) == pytest.approx(cosines(vectors, [(QUERY, text) for text in many]), abs=1e-6)
    alone = [scores_of(ask(vectors, "/score", text_1=QUERY, text_2=text)) for text in many]
    assert scores_of(all_of_one) == [score for (score,) in alone], "the same bits whatever the company"
    own = ask(vectors, "/v1/score", text_1=many, text_2=many[1:] + many[:1])
    assert scores_of(own)[5] == scores_of(ask(vectors, "/v1/score", text_1=[many[5]], text_2=[many[6]]))[0]
    for names in (("queries", "items"), ("queries", "documents"), ("data_1", "data_2")):
        assert scores_of(ask(vectors, "/v1/score", **dict(zip(names, (QUERY, many), strict=True)))) == scores_of(
            all_of_one
        )


def test_a_text_is_cut_where_that_is_asked_for(vectors: Running) -> None:
    cut = ask(vectors, "/v1/score", text_1="w8", text_2=LONG, truncate_prompt_tokens=12)
    assert scores_of(cut) == scores_of(ask(vectors, "/v1/score", text_1="w8", text_2=" ".join(WORDS[:10])))
    assert cut["usage"]["prompt_tokens"] == 3 + 12
    longest = ask(vectors, "/v1/score", text_1="w8", text_2=LONG, truncate_prompt_tokens=-1)
    assert longest["usage"]["prompt_tokens"] == 3 + 160


def test_pairs_are_read_as_such(pairs: Running, logits: Any) -> None:
    wanted = logits([(QUERY, document) for document in DOCUMENTS])
    answer = ask(pairs, "/v1/score", text_1=QUERY, text_2=DOCUMENTS)
    assert scores_of(answer) == pytest.approx([sigmoid(logit) for logit in wanted], abs=1e-6)
    assert answer["usage"]["prompt_tokens"] == sum(len(f"{QUERY} {text}".split()) + 3 for text in DOCUMENTS)
    turned = ask(pairs, "/v1/score", text_1=DOCUMENTS, text_2=[QUERY] * 5)
    assert scores_of(turned) != pytest.approx(scores_of(answer), abs=1e-3), "which of the two is first counts"
    raw = ask(pairs, "/v1/score", text_1=QUERY, text_2=DOCUMENTS, use_activation=False)
    assert scores_of(raw) == pytest.approx(wanted, abs=1e-5)
    ranked = ask(pairs, "/v1/rerank", query=QUERY, documents=DOCUMENTS, use_activation=True)["results"]
    assert [each["relevance_score"] for each in ranked] == sorted(scores_of(answer), reverse=True)


def test_a_pair_gets_the_same_bits_whatever_its_company(pairs: Running) -> None:
    many = ["w1 " * (1 + number * 37 % 120) + f"w{number}" for number in range(30)]
    together = scores_of(ask(pairs, "/v1/score", text_1=QUERY, text_2=many))
    assert together == [scores_of(ask(pairs, "/v1/score", text_1=QUERY, text_2=text))[0] for text in many]


@pytest.mark.parametrize(
    ("first", "second", "kept"), [(2, 100, (2, 17)), (100, 2, (17, 2)), (100, 90, (10, 9)), (90, 100, (9, 10))]
)
def test_the_longer_text_of_a_pair_is_cut(pairs: Running, first: int, second: int, kept: tuple[int, int]) -> None:
    one, other = WORDS[:first], WORDS[50 : 50 + second]
    cut = ask(pairs, "/v1/score", text_1=" ".join(one), text_2=" ".join(other), truncate_prompt_tokens=22)
    assert cut["usage"]["prompt_tokens"] == 22
    by_hand = ask(pairs, "/v1/score", text_1=" ".join(one[: kept[0]]), text_2=" ".join(other[: kept[1]]))
    assert scores_of(cut) == scores_of(by_hand)


def test_a_model_may_say_that_its_logits_are_its_scores(tmp_path: Path, logits: Any) -> None:
    identity = {"activation_fn": "torch.nn.modules.linear.Identity"}
    with served(write_words(write_bert(tmp_path, SCORER, sentence_transformers=identity)), "native") as server:
        answer = ask(server, "/v1/score", text_1=QUERY, text_2="w9")
    assert scores_of(answer) == pytest.approx(logits([(QUERY, "w9")]), abs=1e-5)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"documents": ["w1"]}, "query", "missing_required_parameter"),
        ({"query": "w1"}, "documents", "missing_required_parameter"),
        ({"query": "w1", "documents": []}, "documents", "invalid_value"),
        ({"query": "w1", "documents": ["w1"] * 2049}, "documents", "invalid_value"),
        ({"query": "w1", "documents": ["w1", 2]}, "documents[1]", "invalid_type"),
        ({"query": "w1", "documents": [{"title": "w1"}]}, "documents[0].title", "unknown_parameter"),
        ({"query": ["w1"], "documents": ["w1"]}, "query", "invalid_type"),
        ({"query": "w1", "documents": ["w1"], "top_n": -1}, "top_n", "invalid_value"),
        ({"query": LONG, "documents": ["w1"]}, "query", "context_length_exceeded"),
        ({"query": "w1", "documents": ["w1", LONG]}, "documents[1]", "context_length_exceeded"),
        ({"query": "w1", "documents": ["w1"], "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "invalid_value"),
        ({"query": "w1", "documents": ["w1"], "truncate_prompt_tokens": 2}, "truncate_prompt_tokens", "invalid_value"),
        ({"query": "w1", "documents": ["w1"], "truncate_prompt_tokens": 161}, "truncate_prompt_tokens", None),
        ({"query": "w1", "documents": ["w1"], "use_activation": True}, "use_activation", "invalid_value"),
        ({"query": "w1", "documents": ["w1"], "max_tokens_per_doc": 9}, "max_tokens_per_doc", "unsupported_parameter"),
        ({"query": "w1", "documents": ["w1"], "topn": 9}, "topn", "unknown_parameter"),
        ({}, "text_1", "missing_required_parameter"),
        ({"text_1": "w1"}, "text_2", "missing_required_parameter"),
        ({"queries": "w1"}, "items", "missing_required_parameter"),
        ({"text_2": "w1", "items": "w1"}, "items", "invalid_value"),
        ({"queries": "w1", "items": "w1", "documents": "w1"}, "documents", "invalid_value"),
        ({"text_1": ["w1", "w2"], "text_2": "w1"}, "text_1", "invalid_value"),
        ({"text_1": [], "text_2": "w1"}, "text_1", "invalid_value"),
        ({"text_1": "w1", "text_2": ["w1"] * 2049}, "text_2", "invalid_value"),
        ({"text_1": "w1", "text_2": LONG}, "text_2", "context_length_exceeded"),
        ({"text_1": "w1", "text_2": "w1", "activation": True}, "activation", "unsupported_parameter"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(
    vectors: Running, body: dict[str, Any], param: str, code: str | None
) -> None:
    path = "/v1/rerank" if "query" in body or body == {"documents": ["w1"]} else "/v1/score"
    answer = post(vectors, path, **body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert code in (None, error["code"])


def test_a_pair_that_is_too_long_is_refused(pairs: Running) -> None:
    halves = [" ".join(WORDS[:80]), " ".join(WORDS[:100])]
    answer = post(pairs, "/v1/rerank", query=halves[0], documents=["w1", halves[1]])
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "documents[1] with query has 183 tokens" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "documents[1]"
    answer = post(pairs, "/v1/rerank", query="w1", documents=["w1"], truncate_prompt_tokens=3)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "truncate_prompt_tokens")


def test_a_model_of_another_kind_says_what_it_has(pairs: Running, byte_model: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    for path, body in (("/v1/embeddings", {"input": "w1"}), ("/v1/chat/completions", chat)):
        error = post(pairs, path, **body).json()["error"]
        assert error["code"] == "unsupported"
        assert "/v1/rerank and /v1/score" in error["message"]
    with running(byte_model) as text:
        for path, body in (
            ("/v1/rerank", {"query": "a", "documents": ["b"]}),
            ("/score", {"text_1": "a", "text_2": "b"}),
        ):
            answer = post(text, path, **body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported")
            assert "makes text, and no scores" in answer.json()["error"]["message"]
            assert post(text, path, **{**body, "model": "other"}).status_code == 404


def test_what_was_read_is_counted_against_the_tenant(vectors: Running, tmp_path: Path) -> None:
    assert vectors.metric("trimaran_prompt_tokens_total") > 0
    folder = write_words(write_bert(tmp_path))
    with served(folder, "native", max_tokens_per_minute=20) as server:
        body = {"query": "w1", "documents": [DOCUMENTS[4], "w2"]}
        assert post(server, "/v1/rerank", **body).status_code == 200
        assert post(server, "/v1/rerank", **body).status_code == 429


def test_a_tokenizer_that_joins_texts_is_no_tokenizer_of_pairs(tmp_path: Path) -> None:
    file = write_words(write_bert(tmp_path, SCORER)) / "tokenizer.json"
    file.write_text(file.read_text().replace('"type_id": 1', '"type_id": 0'))
    with pytest.raises(CheckpointError, match="pair of texts"):
        load_text(tmp_path)


def test_formats_of_weights(scorer: Path) -> None:
    """The two small matrices behind the layers are not rounded to four bits."""
    weights = load_path(scorer, None).program.weights
    assert {name for name, spec in weights.items() if spec.least is not None} >= {"pooler.dense", "classifier"}


def test_a_batch_of_pairs(scorer: Path, tmp_path: Path) -> None:
    with served(scorer, "native", files_dir=str(tmp_path)) as server, client_of(server) as client:
        body = {"query": QUERY, "documents": DOCUMENTS}
        batch = ended(client, begun(client, [line("a", "/v1/rerank", **body)], "/v1/rerank").id)
        [answer] = results(client, batch.output_file_id)
        assert answer["response"]["body"]["results"] == ask(server, "/v1/rerank", **body)["results"]
        with pytest.raises(openai.BadRequestError) as caught:
            begun(client, [line("a", "/v1/embeddings", input="x")], "/v1/embeddings")
        assert caught.value.param == "endpoint"
