"""Kills a server again and again while it runs batches, and looks at what comes out.

    python bench/kill_server.py smollm2
    python bench/kill_server.py smollm2 --kills 100 --seed 7

The server, with the null executor, is killed by SIGKILL at random moments after it has become ready, and started anew
on the same folder until it has been killed so often; then it may finish. Ends with status 1 when a line of a batch was
lost, answered twice, answered otherwise than without the kills, or counted wrongly, or when a file is left that nobody
knows.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from trimaran.base.errors import TrimaranError
from trimaran.bench.served import Served

BATCHES = 3
BAD = 97  # every so many lines one is refused
URL = "/v1/completions"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path of a model, of which only the vocabulary is used")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--lines", type=int, default=800, help=f"of each of {BATCHES} batches")
    parser.add_argument("--longest", type=float, default=0.7, help="seconds that a server lives at most")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    chance = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        wrong = asyncio.run(campaign(given.model, Path(folder), given.kills, given.lines, given.longest, chance))
    for text in wrong:
        print(text)
    print(f"{given.kills} kills, {BATCHES} batches of {given.lines} lines: {len(wrong)} things wrong")
    return 1 if wrong else 0


async def campaign(
    model: str, folder: Path, kills: int, count: int, longest: float, chance: random.Random
) -> list[str]:
    """What was wrong."""
    flags = ["--executor", "null", "--files-dir", str(folder), "--batch-concurrency", "4"]
    inputs: dict[str, list[dict[str, Any]]] = {}
    for number in range(kills + 1):
        async with Served(model, flags) as server:
            if not inputs:
                for batch in range(BATCHES):
                    lines = [line(server.name, batch, place) for place in range(count)]
                    inputs[await begin(server.client, lines)] = lines
            if number < kills:
                await asyncio.sleep(chance.uniform(0.02, longest))
                server.kill()
                continue
            wrong: list[str] = []
            for batch_id, lines in inputs.items():
                wrong += await looked_at(server.client, batch_id, lines)
            known = {file["id"] for file in (await get(server.client, "/v1/files"))["data"]}
            there = {path.name for kind in ("content", "arriving") for path in (folder / kind).iterdir()}
            return wrong + [f"{name} is in one place only" for name in known ^ there]
    raise AssertionError("the last server is not killed")


def line(model: str, batch: int, place: int) -> dict[str, Any]:
    temperature = 1000 if place % BAD == 5 else 0
    body = {"model": model, "prompt": f"text {place} of {batch}", "max_tokens": 1 + place % 40, "ignore_eos": True}
    return {"custom_id": f"{place}", "method": "POST", "url": URL, "body": {**body, "temperature": temperature}}


async def begin(client: httpx.AsyncClient, lines: list[dict[str, Any]]) -> str:
    """The id of a batch of these lines."""
    files = {"file": ("input.jsonl", "\n".join(map(json.dumps, lines)).encode())}
    file = (await client.post("/v1/files", files=files, data={"purpose": "batch"})).raise_for_status().json()["id"]
    asked = {"input_file_id": file, "endpoint": URL, "completion_window": "1h"}
    made: str = (await client.post("/v1/batches", json=asked)).raise_for_status().json()["id"]
    return made


async def looked_at(client: httpx.AsyncClient, batch_id: str, lines: list[dict[str, Any]]) -> list[str]:
    """What is wrong with a batch that may end now."""
    ended = ("completed", "failed", "expired", "cancelled")
    while (batch := await get(client, f"/v1/batches/{batch_id}"))["status"] not in ended:  # noqa: ASYNC110, another's
        await asyncio.sleep(0.2)
    if batch["status"] != "completed":
        return [f"{batch_id} is {batch['status']}"]
    answers, errors = [await results(client, batch[f"{kind}_file_id"]) for kind in ("output", "error")]
    wrong = []
    places = sorted(int(one["custom_id"]) for one in answers + errors)
    if places != list(range(len(lines))):
        wrong.append(f"{batch_id} has answers for {len(set(places))} of {len(lines)} lines, {len(places)} in all")
    counts = {"total": len(lines), "completed": len(answers), "failed": len(errors)}
    if batch["request_counts"] != counts:
        wrong.append(f"{batch_id} counts {batch['request_counts']} where there are {counts}")
    tokens = sum(one["response"]["body"]["usage"]["total_tokens"] for one in answers)
    if batch["usage"]["total_tokens"] != tokens:
        wrong.append(f"{batch_id} counts {batch['usage']['total_tokens']} tokens where there are {tokens}")
    for one in answers[:: max(1, len(answers) // 20)]:
        alone = await client.post(URL, json=lines[int(one["custom_id"])]["body"])
        if alone.json()["choices"] != one["response"]["body"]["choices"]:
            wrong.append(f"line {one['custom_id']} of {batch_id} was answered otherwise")
    return wrong


async def results(client: httpx.AsyncClient, file_id: str) -> list[dict[str, Any]]:
    content = (await client.get(f"/v1/files/{file_id}/content")).raise_for_status().text
    return [json.loads(text) for text in content.splitlines()]


async def get(client: httpx.AsyncClient, path: str) -> Any:
    return (await client.get(path)).raise_for_status().json()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(str(error))
