"""One server for each test module, unless a test needs another kind."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from .byte_model import write_byte_model
from .running import Running, running

TEMPLATES = Path(__file__).resolve().parents[1] / "data" / "templates"


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def server(byte_model: Path) -> Iterator[Running]:
    with running(byte_model) as server:
        yield server


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def tooled(byte_model: Path) -> Iterator[Running]:
    """A server whose model is shown tools and may think, as Qwen3 is and does."""
    with running(byte_model, chat_template=str(TEMPLATES / "qwen3.jinja")) as server:
        yield server
