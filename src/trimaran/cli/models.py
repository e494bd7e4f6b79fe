"""``trimaran models``: what the catalogue offers and what the cache holds."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Annotated

import typer


@dataclass(frozen=True)
class ModelRow:
    """One line of the listing. ``size`` is in bytes; ``path`` and ``date`` are None while it is not in the cache."""

    name: str
    source: str
    size: int
    licence: str | None = None
    context: int | None = None
    description: str | None = None
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
        row = ModelRow(entry.name, entry.source, entry.size, entry.licence, entry.context, entry.description)
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

    table = Table("model", "size", "context", "licence", "in the cache", "what it is", box=None, pad_edge=False)
    for row in rows:
        table.add_row(
            row.name,
            f"{row.size / 1e6:.1f} MB",
            str(row.context or ""),
            row.licence or "",
            row.date[:10] if row.date else "no",
            row.description or "",
        )
    Console().print(table)
