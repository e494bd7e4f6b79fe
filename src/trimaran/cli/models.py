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
            {fmt.value: size for fmt, size in entry.weight_bytes.items()},
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
    from rich.console import Console
    from rich.table import Table

    table = Table(
        *("model", "on disk", "in memory", "context", "licence", "tested", "in the cache", "what it is"),
        box=None,
        pad_edge=False,
    )
    for row in rows:
        table.add_row(
            row.name,
            _bytes(row.size),
            _in_memory(row),
            str(row.context or ""),
            (row.licence or "").removeprefix("LicenseRef-"),
            row.tested or "",
            row.date[:10] if row.date else "no",
            row.description or "",
        )
    Console().print(table)


def _in_memory(row: ModelRow) -> str:
    """Bytes of the weights in the format that decoding is recommended to use."""
    fmt = (row.decode or {}).get("weights")
    size = (row.weight_bytes or {}).get(fmt or "")
    return f"{_bytes(size)} {fmt}" if size else ""


def _bytes(size: int | None) -> str:
    if size is None:
        return ""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
