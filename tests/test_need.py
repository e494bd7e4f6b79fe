"""scripts/need.sh names what a build would fail for the lack of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "need.sh"


def need(**variables: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "PYTHON": sys.executable, **variables}
    return subprocess.run(["sh", SCRIPT], env=environ, capture_output=True, text=True, check=False)


def test_nothing_is_missing_where_the_package_was_built() -> None:
    assert need().returncode == 0, need().stderr


def test_a_compiler_may_come_with_arguments() -> None:
    assert need(CXX="env c++").returncode == 0, need(CXX="env c++").stderr


def test_a_missing_python_is_named() -> None:
    run = need(PYTHON="python0.0")
    assert run.returncode == 1
    assert "missing: Python 3.11 or newer ('python0.0')" in run.stderr
    assert "apt-get install python3 " in run.stderr


@pytest.mark.parametrize("cxx", ["no-such-compiler", "no-such-compiler --fast"])
def test_a_missing_compiler_is_named(cxx: str) -> None:
    run = need(CXX=cxx)
    assert run.returncode == 1
    assert f"missing: a C++20 compiler ('{cxx}')" in run.stderr
    assert "apt-get install g++ " in run.stderr


def test_a_compiler_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = tmp_path / "g++-8"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "g++ 8.3.0" && exit\nexit 1\n')
    old.chmod(0o755)
    run = need(CXX=str(old))
    assert run.returncode == 1
    assert f"missing: a C++20 compiler with its library; '{old}' is g++ 8.3.0" in run.stderr
