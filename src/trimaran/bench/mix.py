"""Many kinds of requests for a server under load, drawn at random but from a seed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TEXT = """
the river a boat sails under old bridges while three hulls turn slowly into morning wind and nobody on board knows how
many cups of tea were counted before sunrise because numbers like 7 or 42 float away with salt rope canvas
"""
WORDS = TEXT.split()
PREFIX = " ".join(WORDS[i * i % len(WORDS)] for i in range(200))  # long enough for the prefix cache to be worth it


@dataclass(frozen=True)
class Request:
    """One HTTP request and what is done with it."""

    path: str
    body: dict[str, Any]
    status: int = 200  # what it must be answered with
    cancel_events: int | None = None  # hang up after this many streamed events
    cancel_seconds: float | None = None  # hang up after this long
    expected: tuple[str, ...] | None = field(default=None, compare=False)  # the texts it must bring, when known

    @property
    def streams(self) -> bool:
        return bool(self.body.get("stream"))


def probes(model: str) -> list[Request]:
    """Requests whose answer is a function of the request alone: greedy ones, and sampled ones with a seed."""
    prompts = [
        "The capital of France is",
        "Count from one to twenty: one, two, three,",
        "Write a haiku about the sea.",
        "def fibonacci(n):",
        "My favourite colour is",
        f"{PREFIX} and then",
        f"{PREFIX} but never",
        " ".join(WORDS * 12),
    ]
    found = []
    for i, prompt in enumerate(prompts):
        path = CHAT if i % 2 else COMPLETIONS
        for sampling in ({"temperature": 0}, {"temperature": 0.9, "top_p": 0.95, "seed": 1000 + i}):
            found.append(Request(path, {**_prompt(path, prompt), "model": model, "max_tokens": 16 + 4 * i, **sampling}))
    return found


def draw(random: Random, model: str, known: Sequence[Request]) -> Request:
    """The next request: about a third are ``known`` ones, a fifth is hung up on, one in fifty is invalid."""
    kind = random.random()
    if kind < 0.02:
        return Request(COMPLETIONS, {"model": model, "prompt": "x", "temperature": -1}, status=400)
    if kind < 0.35:
        probe = random.choice(known)
        return Request(probe.path, {**probe.body, "stream": random.random() < 0.5}, expected=probe.expected)
    path = random.choice((CHAT, COMPLETIONS))
    body: dict[str, Any] = {**_prompt(path, _text(random)), "model": model, **_options(random, path)}
    if kind < 0.8:
        return Request(path, body)
    if body["stream"]:
        return Request(path, body, cancel_events=random.randint(0, 12))
    return Request(path, body, cancel_seconds=random.choice((0.0, 0.05, 0.3, 1.0)))


def _prompt(path: str, text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}


def _text(random: Random) -> str:
    own = " ".join(random.choices(WORDS, k=random.choice((3, 10, 60, 250, 700))))
    return f"{PREFIX} {own}" if random.random() < 0.3 else own


def _options(random: Random, path: str) -> dict[str, Any]:
    options: dict[str, Any] = {"max_tokens": random.choice((1, 5, 20, 60, 200)), "stream": random.random() < 0.5}
    choices: dict[str, Any] = {
        "temperature": random.choice((0, 0.3, 1.0, 1.5)),
        "top_p": random.choice((0.5, 0.9, 1.0)),
        "top_k": random.choice((1, 5, 50)),
        "min_p": random.choice((0.0, 0.05, 0.2)),
        "repetition_penalty": 1.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "logit_bias": {"42": -100, "7": 5},
        "seed": random.randint(0, 10**6),
        "stop": random.choice((".", ["\n\n", " the"], "salt")),
        "n": 2,
        "logprobs": True if path == CHAT else 3,
        "ignore_eos": True,
    }
    for name in random.sample(list(choices), k=random.randint(0, 4)):
        options[name] = choices[name]
    return options
