"""A conversation of many turns, as an agent has it: how much of each prompt is computed again.

    python bench/agent_replay.py smollm2
    python bench/agent_replay.py smollm2 --turns 20 --words 200 --serve-flags "--block-size 32"

Every turn sends the whole conversation anew: the answers as they came, and one more message. What the turns before
have computed is in the cache then, also the tokens that the model made, so that only what is new need be computed. Ends
with status 1 when the turns from the second one on compute more than 1.05 times as many tokens as are new. The last
page of a turn is not full, hence not cached; and where a template writes an old turn otherwise than a new one, nothing
after it is.
"""

import argparse
import asyncio
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trimaran.base.errors import TrimaranError
from trimaran.bench.served import Served

MOST = 1.05  # times as many tokens computed as are new
WORDS = Path(__file__).resolve().parent.joinpath("calibration", "prose.txt").read_text("utf-8").split()


@dataclass(frozen=True)
class Turn:
    """Tokens of a turn: its prompt, how much of it was cached, and its answer."""

    prompt: int
    cached: int
    answer: int

    @property
    def computed(self) -> int:
        return self.prompt - self.cached


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path of a model that chats")
    parser.add_argument("--turns", type=int, default=20, help="at least 2")
    parser.add_argument("--words", type=int, default=200, help="of each message, as what a tool has found may be")
    parser.add_argument("--answer", type=int, default=64, help="most tokens of an answer")
    parser.add_argument("--serve-flags", type=shlex.split, default=[], metavar="FLAGS", help="for `trimaran serve`")
    given = parser.parse_args(arguments)
    turns = asyncio.run(replay(given.model, given.turns, given.words, given.answer, given.serve_flags))
    print(f"{'turn':>4}{'prompt':>9}{'new':>7}{'computed':>10}{'answer':>8}")
    before = new = computed = 0
    for number, turn in enumerate(turns, 1):
        fresh = turn.prompt - before
        print(f"{number:>4}{turn.prompt:>9}{fresh:>7}{turn.computed:>10}{turn.answer:>8}")
        before = turn.prompt + turn.answer
        new, computed = (new + fresh, computed + turn.computed) if number > 1 else (0, 0)
    print(f"\nfrom turn 2 on: {new} new tokens, {computed} computed, {computed / new:.3f} times as many")
    return 0 if computed <= MOST * new else 1


async def replay(model: str, turns: int, words: int, answer: int, flags: Sequence[str]) -> list[Turn]:
    """The turns of one conversation with a server of its own, which holds all of it in its cache."""
    messages: list[dict[str, str]] = []
    done: list[Turn] = []
    async with Served(model, flags) as server:
        for number in range(turns):
            first = number * words % len(WORDS)
            text = " ".join((WORDS[first:] + WORDS)[:words])
            messages.append({"role": "user", "content": f"Turn {number + 1}. {text}"})
            body = {"model": server.name, "messages": messages, "temperature": 0, "max_tokens": answer}
            reply = (await server.client.post("/v1/chat/completions", json=body)).raise_for_status().json()
            messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
            usage = reply["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            done.append(Turn(usage["prompt_tokens"], cached, usage["completion_tokens"]))
    return done


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(str(error))
