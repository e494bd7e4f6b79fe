"""Agents of a framework that people use, over tools and schemas, by a model that knows nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import openai
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from .running import NAME, Running


class Sky(BaseModel):
    city: Literal["Bern", "Rome"]
    clouds: Literal[0, 1, 2]


@asynccontextmanager
async def agent_over(server: Running, output: Any, **settings: Any) -> AsyncIterator[Agent[None, Sky]]:
    quiet = {"chat_template_kwargs": {"enable_thinking": False}}
    async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client:
        model = OpenAIChatModel(NAME, provider=OpenAIProvider(openai_client=client))
        yield Agent(model, output_type=output, model_settings={"max_tokens": 300, "extra_body": quiet, **settings})


async def test_output_by_a_tool(tooled):
    async with agent_over(tooled, Sky, parallel_tool_calls=False) as agent:
        assert isinstance((await agent.run("The sky?")).output, Sky)


async def test_output_by_a_schema(tooled):
    async with agent_over(tooled, NativeOutput(Sky)) as agent:
        assert isinstance((await agent.run("The sky?")).output, Sky)


async def test_streamed_output(tooled):
    async with (
        agent_over(tooled, Sky, parallel_tool_calls=False) as agent,
        agent.run_stream("The sky?") as stream,
    ):
        assert isinstance(await stream.get_output(), Sky)


async def test_a_tool_is_run_and_its_result_comes_back(tooled):
    asked = []
    async with agent_over(tooled, Sky, parallel_tool_calls=False) as agent:

        @agent.tool_plain
        def look(city: Literal["Bern", "Rome"]) -> str:
            """Looks at the sky of a city."""
            asked.append(city)
            return f"clear over {city}"

        for seed in range(8):
            result = await agent.run("The sky?", model_settings={"seed": seed})
            assert isinstance(result.output, Sky)
    assert asked
    assert set(asked) <= {"Bern", "Rome"}
