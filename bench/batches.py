"""What a client waits for while a batch runs in the background, and how fast the batch is.

    python bench/batches.py smollm2
    python bench/batches.py smollm2 --serve-flags "--batch-concurrency 8"

One client streams answers, one after the other: alone, beside lines that generate, and beside lines with long prompts.
Then the lines run without it. Times are seen at the client's socket.
"""

import argparse
import asyncio
import json
import shlex
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimaran.base.errors import TrimaranError
from trimaran.bench.served import Served

WORDS = Path(__file__).resolve().parent.joinpath("calibration", "prose.txt").read_text("utf-8").split()
LINES = 2000  # of a batch: more than are answered while it is measured
WARM_SECONDS = 1.5  # after a batch has begun
LOADS = {"lines that generate": (8, 400), "lines with long prompts": (600, 2)}  # words of a prompt, tokens of an answer


@dataclass
class Waits:
    """Seconds of one client."""

    first: list[float] = field(default_factory=list)
    between: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        between = sorted(self.between)
        times = statistics.median(self.first), statistics.median(between), between[int(len(between) * 0.95)]
        return "{:>12.1f}{:>14.2f}{:>14.2f}".format(*(1e3 * seconds for seconds in times))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path of a model")
    parser.add_argument("--answers", type=int, default=3, help="that the client streams in each case")
    parser.add_argument("--tokens", type=int, default=64, help="of each")
    parser.add_argument("--serve-flags", type=shlex.split, default=[], metavar="FLAGS", help="for `trimaran serve`")
    given = parser.parse_args(arguments)
    asyncio.run(compare(given.model, given.answers, given.tokens, given.serve_flags))
    return 0


async def compare(model: str, answers: int, tokens: int, flags: Sequence[str]) -> None:
    """Prints a line for each load."""
    print(f"{'beside':<26}{'first, ms':>12}{'between, ms':>14}{'p95, ms':>14}{'lines without it, tokens/s':>30}")
    with tempfile.TemporaryDirectory() as folder:
        async with Served(model, [*flags, "--files-dir", folder]) as server:
            await stream(server, 1, tokens)
            print(f"{'nothing':<26}{await stream(server, answers, tokens)}")
            for load, (words, answer) in LOADS.items():
                batch = await begin(server, words, answer)
                await asyncio.sleep(WARM_SECONDS)
                waits = await stream(server, answers, tokens)
                speed = await throughput(server)
                (await server.client.post(f"/v1/batches/{batch}/cancel")).raise_for_status()
                print(f"{load:<26}{waits}{speed:>30.0f}")
                await asyncio.sleep(WARM_SECONDS)


async def stream(server: Served, answers: int, tokens: int) -> Waits:
    """What a client of ``answers`` answers has waited for."""
    waits = Waits()
    for _ in range(answers):
        body = {"model": server.name, "prompt": "Once upon a time", "max_tokens": tokens, "ignore_eos": True}
        asked = last = time.perf_counter()
        async with server.client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                now = time.perf_counter()
                (waits.first if last == asked else waits.between).append(now - last)
                last = now
    return waits


async def begin(server: Served, words: int, tokens: int) -> str:
    """The id of a batch that has begun."""
    lines = []
    for number in range(LINES):
        first = number * 7 % len(WORDS)
        prompt = " ".join((WORDS[first:] + WORDS)[:words])
        body: dict[str, Any] = {"model": server.name, "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        lines.append({"custom_id": str(number), "method": "POST", "url": "/v1/completions", "body": body})
    content = "\n".join(map(json.dumps, lines)).encode()
    files = {"file": ("input.jsonl", content)}
    sent = await server.client.post("/v1/files", files=files, data={"purpose": "batch"})
    asked = {
        "input_file_id": sent.raise_for_status().json()["id"],
        "endpoint": "/v1/completions",
        "completion_window": "1h",
    }
    made: str = (await server.client.post("/v1/batches", json=asked)).raise_for_status().json()["id"]
    return made


async def throughput(server: Served, seconds: float = 3.0) -> float:
    """Tokens a second, of prompts and of answers together, that the engine gets through."""
    names = ("trimaran_prompt_tokens_total", "trimaran_generated_tokens_total")
    before, begun = await server.metrics(), time.perf_counter()
    await asyncio.sleep(seconds)
    after = await server.metrics()
    return sum(after[name] - before[name] for name in names) / (time.perf_counter() - begun)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(str(error))
