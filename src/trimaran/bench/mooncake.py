"""A trace in Mooncake's format, scaled down, as prompts that share prefixes where its requests do.

One JSON object a line: ``timestamp`` in ms, ``input_length`` and ``output_length`` in tokens, and ``hash_ids``, a
number for each 512 tokens of the input, the same for the same tokens after the same beginning (Mooncake, arXiv
2407.00079; github.com/kvcache-ai/Mooncake). A trace tells no tokens: block 7 becomes the same random tokens wherever
it stands.
"""

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from trimaran.base.errors import ConfigError
from trimaran.bench.closed_loop import Job

BLOCK = 512  # tokens that a hash id stands for


class _Line(msgspec.Struct):
    """One request as the file has it."""

    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]


@dataclass(frozen=True)
class Trace:
    """The first requests of a trace whose scaled lengths fit a context."""

    requests: tuple[_Line, ...]
    scale: float  # of lengths
    block: int  # tokens of a scaled block
    left_out: int  # requests that were too long

    def jobs(self, vocab: int, seed: int, time_scale: float) -> list[Job]:
        """Prompts of random tokens below ``vocab``; another ``seed`` makes other ones. Due times are the trace's times
        ``time_scale``."""
        began = self.requests[0].timestamp
        jobs = []
        for number, line in enumerate(self.requests):
            prompt: list[int] = []
            length = _scaled(line.input_length, self.scale)
            for block in line.hash_ids[: -(-length // self.block)]:
                prompt += np.random.default_rng((seed, 0, block)).integers(3, vocab, self.block).tolist()
            missing = length - len(prompt)  # by rounding, or where a line has too few blocks
            if missing > 0:
                prompt += np.random.default_rng((seed, 1, number)).integers(3, vocab, missing).tolist()
            due = (line.timestamp - began) * 1e-3 * time_scale
            jobs.append(Job(prompt[:length], _scaled(line.output_length, self.scale), due))
        return jobs


def read_trace(path: Path, limit: int, scale: float, context: int) -> Trace:
    """The first ``limit`` requests that fit ``context`` tokens once lengths are ``scale`` times theirs.

    Raises ``ConfigError`` when the file cannot be read, a line is no request, or none fits.
    """
    requests: list[_Line] = []
    left_out = 0
    try:
        with path.open("rb") as file:
            for number, text in enumerate(file, 1):
                line = _line(path, number, text)
                if _scaled(line.input_length, scale) + _scaled(line.output_length, scale) > context:
                    left_out += 1
                    continue
                requests.append(line)
                if len(requests) == limit:
                    break
    except OSError as error:
        raise ConfigError(f"the trace {path} cannot be read: {error}") from error
    if not requests:
        raise ConfigError(f"no request of the trace {path} fits {context} tokens; lower --scale")
    return Trace(tuple(requests), scale, max(1, round(BLOCK * scale)), left_out)


def _line(path: Path, number: int, text: bytes) -> _Line:
    try:
        line = msgspec.json.decode(text, type=_Line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"line {number} of the trace {path} is no request: {error}") from error
    if min(line.input_length, line.output_length, *line.hash_ids) < 0:
        raise ConfigError(f"line {number} of the trace {path} is no request: it has a negative number")
    return line


def _scaled(tokens: int, scale: float) -> int:
    return max(1, round(tokens * scale))
