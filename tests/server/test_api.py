"""The router: what FastAPI describes is what is served, and it is only imported to do so."""

import asyncio
import subprocess
import sys

import httpx
import pytest
from pydantic import BaseModel
from starlette.responses import Response

from trimaran.server.api import Api


class Thing(BaseModel):
    """What is posted."""

    size: int


@pytest.fixture
def client() -> httpx.AsyncClient:
    api = Api("Test", "1.2")

    @api.get("/things/{name:path}")
    async def show(name: str) -> Response:
        """Shows one."""
        return Response(name)

    @api.post("/things")
    async def add(request: object, body: Thing) -> Response:
        return Response(str(body.size))

    @api.exception_handler(ZeroDivisionError)
    async def divided(request: object, error: ZeroDivisionError) -> Response:
        return Response(str(error), 418)

    @api.get("/divide")
    async def divide() -> Response:
        raise ZeroDivisionError("by zero")

    return httpx.AsyncClient(transport=httpx.ASGITransport(api.build()), base_url="http://test")


def test_routes(client: httpx.AsyncClient) -> None:
    async def ask() -> None:
        assert (await client.get("/things/a/b")).text == "a/b"
        assert (await client.post("/things", json={"size": 3})).text == "3"
        assert (await client.get("/divide")).status_code == 418
        assert (await client.head("/divide")).status_code == 405
        assert (await client.get("/nothing")).status_code == 404
        assert (await client.get("/things")).status_code == 405

    asyncio.run(ask())


def test_the_description(client: httpx.AsyncClient) -> None:
    async def ask() -> None:
        for _ in range(2):
            described = (await client.get("/openapi.json")).json()
            assert described["info"] == {"title": "Test", "version": "1.2"}
            assert list(described["paths"]) == ["/things/{name}", "/things", "/divide"]
            assert described["paths"]["/things/{name}"]["get"]["description"] == "Shows one."
            assert described["components"]["schemas"]["Thing"]["required"] == ["size"]

    asyncio.run(ask())


def test_a_server_starts_without_what_is_slow_to_import() -> None:
    code = "import sys, trimaran.server.assembly; sys.exit(bool({'fastapi', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_engine_is_started_before_numpy_is_imported() -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from trimaran.cli.serve import engine_config, launch_of\n"
        "from trimaran.server.options import ServeOptions\n"
        "import trimaran.checkpoint.sources, trimaran.server.run\n"
        "launch_of(ServeOptions(), engine_config(ServeOptions(), Path('model'), 'name'))\n"
        "sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
