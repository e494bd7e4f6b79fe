"""``trimaran models``: what the catalogue offers and what the cache holds."""

import json
import sys
from typing import Annotated, TypedDict

import typer


class ModelRow(TypedDict):
    """One line of the listing. ``path`` is None while the model is not in the cache; ``size`` is in bytes."""

    name: str
    source: str
    size: int
    licence: str | None
    context: int | None
    description: str | None
    path: str | None
    date: str | None


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
        json.dump(rows, sys.stdout, indent=2)
        print()
    else:
        _print_table(rows)


def list_rows() -> list[ModelRow]:
    """The catalogue by name, then whatever else has been pulled."""
    from trimaran.checkpoint.cache import list_models
    from trimaran.checkpoint.catalog import load_catalog
    from trimaran.checkpoint.sources import cached

    rows: list[ModelRow] = []
    for entry in load_catalog().values():
        here = cached(entry.name)
        rows.append(
            {
                "name": entry.name,
                "source": entry.source,
                "size": here.record.size if here else entry.size,
                "licence": entry.licence,
                "context": entry.context,
                "description": entry.description,
                "path": str(here.path) if here else None,
                "date": here.record.date if here else None,
            }
        )
    known = {row["source"] for row in rows}
    for model in list_models():
        if model.record.source not in known:
            rows.append(
                {
                    "name": model.record.source,
                    "source": model.record.source,
                    "size": model.record.size,
                    "licence": None,
                    "context": None,
                    "description": None,
                    "path": str(model.path),
                    "date": model.record.date,
                }
            )
    return rows


def _print_table(rows: list[ModelRow]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("model", "size", "context", "licence", "in the cache", "what it is", box=None, pad_edge=False)
    for row in rows:
        table.add_row(
            row["name"],
            f"{row['size'] / 1e6:.1f} MB",
            str(row["context"] or ""),
            row["licence"] or "",
            row["date"][:10] if row["date"] else "no",
            row["description"] or "",
        )
    Console().print(table)
