"""What was measured, as a table, as JSON, and as a verdict."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import msgspec

from trimaran.evaluate.divergence import Summary
from trimaran.evaluate.paired import Loss
from trimaran.evaluate.run import Cost

Line = tuple[str, str, str]  # what it is, the reference's figure, ours


@dataclass(frozen=True)
class Limits:
    """The most that a configuration may cost: ``loss`` is of the upper 95 % bound of the accuracy lost in all tasks
    together, in percentage points; ``kl`` of the mean in nats, None: any number."""

    loss: float = 0.8
    kl: float | None = None

    def misses(self, cost: Cost) -> list[str]:
        """What ``cost`` exceeds, in words."""
        found = []
        if (summary := cost.divergence) is not None:
            if not isfinite(summary.mean):
                found.append("the KL is not a finite number")
            elif self.kl is not None and summary.mean > self.kl:
                found.append(f"mean KL {summary.mean:.4f} > {self.kl:g}")
        if (tasks := cost.tasks.get("all")) is not None and not tasks.bound <= self.loss:
            found.append(f"the accuracy lost may be {tasks.bound:.2f} points > {self.loss:g}")
        return found


def to_json(setup: Mapping[str, Any], costs: Sequence[Cost], limits: Limits) -> dict[str, Any]:
    """All figures; shares are between 0 and 1, losses in percentage points, KL in nats."""
    known: dict[str, Any] = msgspec.to_builtins(setup, enc_hook=str)  # paths
    return known | {"limits": asdict(limits), "costs": [_cost_json(cost, limits) for cost in costs]}


def _cost_json(cost: Cost, limits: Limits) -> dict[str, Any]:
    values = asdict(cost)
    for loss, into in [
        *((loss, values["tasks"][name]) for name, loss in cost.tasks.items()),
        (cost.needle, values["needle"]),
        (cost.code, values["code"]),
    ]:
        if loss is not None:
            into |= {"points": loss.points, "bound": loss.bound}
    if cost.divergence is not None:
        values["divergence"]["ratio"] = cost.divergence.ratio
    return values | {"misses": limits.misses(cost)}


def to_text(costs: Sequence[Cost], limits: Limits) -> str:
    """A column for the reference and one for each configuration."""
    columns = [list(_lines(cost)) for cost in costs]
    rows = [("", "reference", *(cost.name for cost in costs))]
    for lines in zip(*columns, strict=True):
        label, reference, _ = lines[0]
        rows.append((label, reference, *(ours for _, _, ours in lines)))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = [
        "  ".join([label.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))])
        for label, *cells in rows
    ]
    missed = [f"MISSED by {cost.name}: {miss}" for cost in costs for miss in limits.misses(cost)]
    return "\n".join([line.rstrip() for line in shown] + missed)


def _lines(cost: Cost) -> Iterator[Line]:
    if cost.divergence is not None:
        yield from _divergence(cost.divergence)
    for name, loss in cost.tasks.items():
        yield from _loss(name, loss, bound=True)
    if cost.needle is not None:
        yield from _loss("needle", cost.needle)
        for length, recital in cost.needle_lengths.items():
            yield f"  recited, {length:,} tokens", f"{recital.reference:.0%}", f"{recital.ours:.0%}"
        for depth, recital in cost.needle_depths.items():
            yield f"  recited, at {depth:.0%}", f"{recital.reference:.0%}", f"{recital.ours:.0%}"
    for kind, each in cost.validity.items():
        yield f"{kind}, {each.prompts} prompts: parses", f"{each.reference_parses:.0%}", f"{each.parses:.0%}"
        yield "  fits", f"{each.reference_fits:.0%}", f"{each.fits:.0%}"
        yield "  same answer", "", f"{each.same:.0%}"
    if cost.code is not None:
        yield from _loss("code", cost.code)


def _divergence(found: Summary) -> Iterator[Line]:
    yield "KL, mean", "", f"{found.mean:.4f}"
    yield "KL, 99th percentile", "", f"{found.p99:.4f}"
    yield "KL, largest", "", f"{found.max:.4f}"
    for name, kl in found.texts.items():
        yield f"  {name}", "", f"{kl:.4f}"
    for position, kl in found.positions.items():
        yield f"  from token {position:,} on", "", f"{kl:.4f}"
    yield "same likeliest token", "", f"{found.top1:.2%}"
    if found.first_mean is not None and found.first_top1 is not None:
        yield "KL of the first decode step", "", f"{found.first_mean:.4f}"
        yield "  same likeliest token", "", f"{found.first_top1:.0%}"
    yield "perplexity", f"{found.reference_perplexity:.3f}", f"{found.perplexity:.3f}"
    yield "  ratio", "", f"{found.ratio:.4f}"


def _loss(name: str, loss: Loss, *, bound: bool = False) -> Iterator[Line]:
    yield f"{name}, {loss.items:,} items: right", f"{loss.reference:.2%}", f"{loss.accuracy:.2%}"
    yield "  points lost", "", f"{loss.points:.2f}"
    if bound:
        yield "  at most, 95 %", "", f"{loss.bound:.2f}"
