"""What a load asks for and when: requests of one size or those of a trace, at Poisson times or at the trace's."""

import csv
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from trimaran.base.errors import ConfigError

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


@dataclass(frozen=True)
class Job:
    """One request to send: its lengths in tokens, and when it is due in seconds from the start of the load."""

    prompt: int
    output: int
    due: float = 0.0


def poisson(jobs: Sequence[Job], rate: float, seed: int) -> list[Job]:
    """``jobs`` at Poisson times, ``rate`` a second on average, the first at once; a seed fixes the times."""
    draw, due, timed = random.Random(seed), 0.0, []
    for job in jobs:
        timed.append(replace(job, due=due))
        due += draw.expovariate(rate)
    return timed


def read_trace(path: Path, limit: int, time_scale: float = 1.0) -> list[Job]:
    """The first ``limit`` requests of a CSV trace with the columns ``COLUMNS``; raises ``ConfigError``.

    This is the format of the Azure LLM inference traces of 2023 (github.com/Azure/AzurePublicDataset). A time is a date
    or a number of seconds; the first request is due at once and ``time_scale`` multiplies the times of the others.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            if missing := [name for name in COLUMNS if name not in (reader.fieldnames or ())]:
                raise ConfigError(f"the trace {path} has no column {missing[0]}; it needs {','.join(COLUMNS)}")
            rows = [_row(path, reader.line_num, row) for row in islice(reader, limit)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"the trace {path} cannot be read: {error}") from error
    if not rows:
        raise ConfigError(f"the trace {path} holds no request")
    began = min(row.due for row in rows)
    return sorted((replace(row, due=(row.due - began) * time_scale) for row in rows), key=lambda row: row.due)


def _row(path: Path, line: int, row: dict[str, str]) -> Job:
    time, prompt, output = (row[name] or "" for name in COLUMNS)
    try:
        return Job(max(1, int(prompt)), max(1, int(output)), _seconds(time))
    except (ValueError, OverflowError) as error:
        raise ConfigError(f"line {line} of the trace {path} is no request: {error}") from error


def _seconds(time: str) -> float:
    try:
        seconds = float(time)
    except ValueError:
        moment = datetime.fromisoformat(time)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    if not math.isfinite(seconds):
        raise ValueError(f"a time of {time}")
    return seconds
