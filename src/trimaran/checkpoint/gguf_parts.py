"""Names of GGUF files that are parts of one model: ``NAME-00001-of-00003.gguf`` (``llama-gguf-split``)."""

import re

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


def part_names(name: str) -> list[str]:
    """The names of all parts of the model that ``name`` is a part of, in order; ``name`` alone if it is none."""
    match = _PART.fullmatch(name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]):
        return [name]
    return [f"{match['stem']}-{number:05}-of-{match['count']}.gguf" for number in range(1, int(match["count"]) + 1)]


def is_later_part(name: str) -> bool:
    """True for a part that is not the first."""
    return part_names(name)[0] != name
