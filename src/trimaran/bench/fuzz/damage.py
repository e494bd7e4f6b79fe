"""Valid inputs made wrong in small ways, drawn from a seeded generator."""

import copy
import json
import struct
from collections.abc import Sequence
from random import Random
from typing import Any

NUMBERS = (0, 1, 2, 3, 7, 31, 32, 127, 255, 1023, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**64 - 1)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, -0.0, 1e308, -1e-308, 2**31, -(2**31), 2**63 - 1, 2**64, 10**30, "", "\0", "0",
    "a" * 3000, "\U0001f600", "\u202e", "<|im_end|>", "../../etc/passwd", "%s%n{0}{{", [], {}, [[]], [None], [0] * 300,
    {"": ""}, {"type": "text", "text": "x"}, "auto", "none",
)  # fmt: skip
MAX_DEPTH = 200  # of nests that are made


def damaged_bytes(random: Random, data: bytes, head: int | None = None) -> bytes:
    """``data`` with one to four damages, most of them within its first ``head`` bytes."""
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        end = min(len(data), head or len(data)) if random.random() < 0.9 else len(data)
        data = _damaged_once(random, data, random.randrange(max(1, end)))
    return data


def _damaged_once(random: Random, data: bytes, at: int) -> bytes:
    size = random.choice((1, 2, 4, 8, 64, 500))
    match random.randrange(8):
        case 0 if data:  # one bit
            return data[:at] + bytes([data[min(at, len(data) - 1)] ^ 1 << random.randrange(8)]) + data[at + 1 :]
        case 1:  # a number
            number = random.choice(NUMBERS) + random.choice((0, 0, 1, -1))
            kind = random.choice(("<B", "<H", "<I", "<Q"))
            raw = struct.pack(kind, number % (1 << 8 * struct.calcsize(kind)))
            return data[:at] + raw + data[at + len(raw) :]
        case 2:
            return data[:at]
        case 3:
            return data[:at] + data[at + size :]
        case 4:
            return data[:at] + data[at : at + size] * random.choice((2, 2, 50)) + data[at + size :]
        case 5:
            return data[:at] + random.randbytes(size) + data[at:]
        case 6:  # a part of another place
            other = random.randrange(max(1, len(data)))
            return data[:at] + data[other : other + size] + data[at + size :]
        case _:
            return data[:at] + random.randbytes(size) + data[at + size :]


def damaged_json(random: Random, value: Any) -> Any:
    """A copy of ``value`` with one to three of its nodes changed, taken away, renamed, copied or nested."""
    root = [copy.deepcopy(value)]
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        nodes = list(_nodes(root))
        _change(random, *random.choice(nodes), nodes)
    return root[0]


def json_bytes(random: Random, value: Any) -> bytes:
    """``value`` as JSON, now and then broken as text: what stands for a number may be NaN, a key may come twice."""
    data = json.dumps(value, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")
    return damaged_bytes(random, data) if random.random() < 0.1 else data


def damaged_text(random: Random, text: str, words: Sequence[str]) -> str:
    """``text`` with some parts taken away, doubled, moved or replaced by one of ``words``."""
    for _ in range(random.choice((1, 2, 2, 4, 8))):
        at, size = random.randrange(len(text) + 1), random.choice((1, 3, 10, 40))
        part = text[at : at + size]
        new = random.choice((random.choice(words), random.choice(words), part * 2, "", text[::-1][:size]))
        keep = random.random() < 0.6
        text = text[:at] + new + text[at + (0 if keep else size) :]
    return text


def _nodes(root: list[Any]) -> list[tuple[Any, Any]]:
    """Every (container, key) below ``root``, at most some thousands of them."""
    found: list[tuple[Any, Any]] = []
    waiting: list[Any] = [root]
    while waiting and len(found) < 5000:
        box = waiting.pop()
        items = list(box.items() if isinstance(box, dict) else enumerate(box))
        found += [(box, key) for key, _ in items]
        waiting += [item for _, item in items if isinstance(item, dict | list)]
    return found


def _change(random: Random, box: Any, key: Any, nodes: list[tuple[Any, Any]]) -> None:
    """Changes the node ``key`` of ``box``; lists keep their length, so that other nodes stay where they are."""
    old = box[key]
    match random.randrange(8):
        case 0 | 1:
            box[key] = copy.deepcopy(random.choice(VALUES))
        case 2 if isinstance(box, dict):
            del box[key]
        case 3 if isinstance(box, dict):
            box[random.choice((str(key) + "x", "", str(key).upper()))] = box.pop(key)
        case 4:
            other, at = random.choice(nodes)
            if isinstance(other, list) or at in other:
                box[key] = copy.deepcopy(other[at])
        case 5:
            for _ in range(random.choice((1, 2, 50, MAX_DEPTH))):
                old = [old] if random.random() < 0.5 else {"a": old}
            box[key] = old
        case 6 if isinstance(old, list | str):
            box[key] = old * random.choice((0, 2, 2, 100)) if len(old) < 10_000 else old[:3]
        case 7 if isinstance(old, int | float) and not isinstance(old, bool):
            box[key] = random.choice((-old, old + 1, old * 2, old * 2**40, old / 3, float(old), old - 1, str(old)))
        case _:
            box[key] = random.choice(NUMBERS)
