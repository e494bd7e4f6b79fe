"""``trimaran models``: what the catalogue offers and what the cache holds."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer


@dataclass(frozen=True)
class ModelRow:
    """One line of the listing. ``size`` on disk and ``weight_bytes`` in memory by format are in bytes; ``path`` and
    ``date`` are None while it is not in the cache. What only the catalogue knows is None for other models.
    """

    name: str
    source: str
    size: int | None
    licence: str | None = None
    context: int | None = None
    description: str | None = None
    tested: str | None = None
    prefill: dict[str, str] | None = None
    decode: dict[str, str] | None = None
    weight_bytes: dict[str, int] | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    from_memory: list[str] | None = None
    path: str | None = None
    date: str | None = None


def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON array instead of a table.")] = False,
) -> None:
    """List the models of the catalogue and those in the cache.

    tested: real, this very model was run; tiny, only a small random one of its family; no, neither. in memory: its
    weights in the format named there; serve keeps those of the file unless --weight-format says otherwise.

    \b
    Examples:
      trimaran models
      trimaran models --json | jq -r '.[] | select(.path) | .name'
    """
    rows = list_rows()
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
    else:
        _print_table(rows)


def list_rows() -> list[ModelRow]:
    """The catalogue by name, then whatever else has been pulled."""
    from trimaran.checkpoint.cache import list_models
    from trimaran.checkpoint.catalog import load_catalog
    from trimaran.checkpoint.sources import cached
    from trimaran.plan.catalogue import held_bytes

    rows = []
    for entry in load_catalog().values():
        row = ModelRow(
            entry.name,
            entry.source,
            entry.size,
            entry.licence,
            entry.context,
            entry.description,
            entry.tested,
            {"weights": entry.prefill.weights.value, "cache": entry.prefill.cache.value},
            {"weights": entry.decode.weights.value, "cache": entry.decode.cache.value},
            {fmt.value: size for fmt, size in held_bytes(entry.name).items()},
            entry.tool_parser,
            entry.reasoning_parser,
            list(entry.from_memory),
        )
        if here := cached(entry.name):
            row = replace(row, size=here.record.size, path=str(here.path), date=here.record.date)
        rows.append(row)
    known = {row.source for row in rows}
    for model in list_models():
        record = model.record
        if record.source not in known:
            rows.append(ModelRow(record.source, record.source, record.size, path=str(model.path), date=record.date))
    return rows


def _print_table(rows: list[ModelRow]) -> None:
    """One line a model; on a terminal the last column ends where the terminal does."""
    import shutil
    import sys

    cells = [("model", "on disk", "in memory", "context", "tested", "cached", "what it is")]
    for row in rows:
        licence = (row.licence or "").removeprefix("LicenseRef-")
        cells.append(
            (
                row.name,
                _bytes(row.size),
                _in_memory(row),
                str(row.context or ""),
                row.tested or "",
                row.date[:10] if row.date else "no",
                "; ".join(part for part in (row.description, licence) if part),
            )
        )
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in cells:
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        print(text if room is None or len(text) <= room else f"{text[: room - 1]}…")


def _in_memory(row: ModelRow) -> str:
    """Bytes of the weights in the format that decoding is recommended to use."""
    fmt = (row.decode or {}).get("weights")
    size = (row.weight_bytes or {}).get(fmt or "")
    return f"{_bytes(size)} {fmt}" if size else ""


def _bytes(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
