"""Clients that people use, each in its main flow, against the real small model: LangChain, instructor and llm.

The model was never shown tools or schemas: what it writes is its own, how it writes it the grammar's.
"""

import gc
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import instructor
import numpy as np
import openai
import pytest
from click.testing import CliRunner
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from llm.cli import cli
from pydantic import BaseModel
from tests.models.tiny_bert import write_bert

from trimaran.cli.serve import engine_config
from trimaran.engine.config import EngineConfig
from trimaran.server.options import ServeOptions

from .running import NAME, Running, serving
from .word_tokenizer import write_words

TEMPLATE = Path(__file__).resolve().parents[1] / "data" / "templates" / "qwen2.5.jinja"
QUESTION = "Who wrote Hamlet, and what is it about?"


class Sky(BaseModel):
    """What the sky looks like."""

    city: Literal["Bern", "Rome"]
    clouds: Literal[0, 1, 2]


ASKED: dict[str, Any] = {
    "model": NAME,
    "messages": [{"role": "user", "content": "The sky over Bern?"}],
    "response_model": Sky,
    "temperature": 0,
    "max_tokens": 80,
    "max_retries": 0,
}


@tool
def look(city: Literal["Bern", "Rome"]) -> str:
    """Looks at the sky of a city."""
    return f"clear over {city}"


@pytest.fixture(scope="module")
def server(smollm2: Path) -> Iterator[Running]:
    options = ServeOptions(kv_cache_memory_bytes=2**27, max_model_len=2048, chat_template=str(TEMPLATE))
    with serving(smollm2, options, engine_config(options, smollm2, NAME)) as server:
        yield server


@pytest.fixture
def options() -> Iterator[dict[str, Any]]:
    """Of LangChain's clients. What they send with is ours, to be closed."""
    with httpx.Client() as client:
        yield {"model": NAME, "api_key": "unused", "max_retries": 0, "http_client": client}


@pytest.fixture
def chat(server: Running, options: dict[str, Any]) -> ChatOpenAI:
    return ChatOpenAI(base_url=server.url + "/v1", temperature=0, max_tokens=40, **options)


def test_langchain_invokes_and_streams(chat: ChatOpenAI) -> None:
    whole = chat.invoke(QUESTION)
    assert len(whole.text) > 40
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] > 0
    chunks = list(chat.stream(QUESTION, stream_usage=True))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert len(chunks) > 3
    (usage,) = [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata]
    assert usage["output_tokens"] == whole.usage_metadata["output_tokens"]


async def test_langchain_does_not_block(server: Running, options: dict[str, Any]) -> None:
    async with httpx.AsyncClient() as client:
        chat = ChatOpenAI(
            base_url=server.url + "/v1", temperature=0, max_tokens=20, http_async_client=client, **options
        )
        answers = await chat.abatch([QUESTION, "Name a color."])
        alone = await chat.ainvoke(QUESTION)
    assert answers[0].text == alone.text


def test_langchain_runs_a_tool_and_gives_back_what_it_said(chat: ChatOpenAI) -> None:
    question = HumanMessage("The sky over Bern?")
    asked = chat.bind_tools([look], tool_choice="look", parallel_tool_calls=False).invoke([question])
    (call,) = asked.tool_calls
    assert call["name"] == "look"
    assert call["args"]["city"] in ("Bern", "Rome")
    result = look.invoke(call)
    assert isinstance(result, ToolMessage)
    answer = chat.bind_tools([look], tool_choice="none").invoke([question, asked, result])
    assert answer.text
    streamed = chat.bind_tools([look], tool_choice="look", parallel_tool_calls=False).stream([question])
    pieces = [piece for chunk in streamed for piece in chunk.tool_call_chunks]
    assert json.loads("".join(piece["args"] or "" for piece in pieces)) == call["args"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_langchain_gives_structured_output(chat: ChatOpenAI, method: Any) -> None:
    made = chat.with_structured_output(Sky, method=method).invoke("The sky over Bern?")
    assert isinstance(made, Sky)


def test_langchain_embeds(tmp_path: Path, options: dict[str, Any]) -> None:
    folder = write_words(write_bert(tmp_path))
    engine = EngineConfig(model=str(folder), served_name=NAME, executor="native", threads=1)
    with serving(folder, ServeOptions(), engine) as server:
        url = server.url + "/v1"
        embeddings = OpenAIEmbeddings(base_url=url, check_embedding_ctx_length=False, **options)
        documents = embeddings.embed_documents(["w1 w2", "w3"])
        assert np.array(documents).shape == (2, 64)
        assert embeddings.embed_query("w3") == documents[1]


@pytest.fixture
def instructed(server: Running) -> Iterator[instructor.Instructor]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client:
        yield instructor.from_openai(client)


def test_instructor_makes_objects(instructed: instructor.Instructor) -> None:
    sky, answer = instructed.create_with_completion(**ASKED)
    assert isinstance(sky, Sky)
    assert answer.usage.completion_tokens > 0
    *_, last = instructed.create_partial(**ASKED)  # its prompt names another tool, so it may be another answer
    assert isinstance(Sky.model_validate(last.model_dump()), Sky)
    *_, again = instructed.create_partial(**ASKED)
    assert again.model_dump() == last.model_dump()


def test_instructor_by_a_schema(server: Running) -> None:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client:
        instructed = instructor.from_openai(client, mode=instructor.Mode.JSON_SCHEMA)
        assert isinstance(instructed.create(**ASKED), Sky)


@pytest.fixture
def run_llm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The command ``llm``, told of a server by its ``extra-openai-models.yaml``."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))

    def run(server: Running, *arguments: str, **settings: Any) -> str:
        model = {"model_id": "ours", "model_name": NAME, "api_base": server.url + "/v1", **settings}
        (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))
        result = CliRunner().invoke(cli, ["-m", "ours", *arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout.strip()

    yield run
    with warnings.catch_warnings(category=ResourceWarning, action="ignore"):
        gc.collect()  # of the connections and files that a command leaves to the end of its process


LIMITS = ("-o", "temperature", "0", "-o", "max_tokens", "24")


def test_llm_prompts_and_continues(server: Running, run_llm: Any) -> None:
    whole = run_llm(server, QUESTION, "--no-stream", *LIMITS)
    assert len(whole) > 20
    assert run_llm(server, "-n", QUESTION, *LIMITS) == whole
    assert run_llm(server, "-c", "Who else?", *LIMITS)


def test_llm_has_schemas_and_tools(server: Running, run_llm: Any) -> None:
    schema = json.dumps(Sky.model_json_schema())
    Sky.model_validate_json(run_llm(server, "-n", "--schema", schema, "The sky?", *LIMITS, supports_schema=True))
    code = 'def now() -> str:\n    """The time."""\n    return "noon"\n'
    assert run_llm(server, "-n", "--functions", code, "What time is it?", *LIMITS, supports_tools=True)


def test_llm_asks_for_responses(tooled: Running, run_llm: Any) -> None:
    """By a model that comes to an end by itself: for these ``llm`` has no limits."""
    assert run_llm(tooled, QUESTION, responses=True)
    assert run_llm(tooled, "-c", "Who else?", "--no-stream", responses=True)
