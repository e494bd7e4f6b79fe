"""``trimaran version``: what is installed, and what this machine can run."""

import json
import os
import platform
from typing import Annotated, TypedDict

import typer


class Versions(TypedDict):
    """``executors`` maps each to the instruction set it would use here, or to None when it was not built."""

    version: str
    python: str
    system: str
    cores: int
    executors: dict[str, str | None]


def version(as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object.")] = False) -> None:
    """Print the version and what this machine can run.

    TRIMARAN_ISA=avx2 or =generic makes the native executor do without the newer instructions.

    \b
    Examples:
      trimaran version
      trimaran version --json | jq -r .executors.native
    """
    found = versions()
    if as_json:
        print(json.dumps(found, indent=2))
        return
    print(f"trimaran {found['version']}")
    print(f"Python {found['python']} on {found['system']}, {found['cores']} cores")
    print("executors:", ", ".join(f"{name} ({isa or 'not built'})" for name, isa in found["executors"].items()))


def versions() -> Versions:
    """Raises ``ConfigError`` when ``TRIMARAN_ISA`` names an instruction set that this machine does not have."""
    from trimaran import __version__

    return {
        "version": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "executors": {"native": _native_isa(), "reference": "numpy", "null": "none"},
    }


def _native_isa() -> str | None:
    from trimaran.base.errors import UnsupportedError

    try:
        from trimaran.kernels.native import choose_isa
    except UnsupportedError:
        return None
    return choose_isa(os.environ)
