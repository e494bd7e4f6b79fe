import os
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from trimaran import __version__
from trimaran.base.errors import ConfigError, ContextLengthError, EngineDiedError, SourceError
from trimaran.cli import main
from trimaran.cli.app import COMMANDS, app

HEAVY = ("numpy", "tokenizers", "jinja2", "fastapi", "uvicorn", "httpx", "yaml", "rich", "asyncio")


def run(*arguments, **more):
    return CliRunner().invoke(app, arguments, **more)


def test_help_lists_every_command_with_examples():
    result = run("--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    for name, (_, text) in COMMANDS.items():
        assert f"  {name} " in result.stdout
        assert text in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_teaches_with_examples(name):
    result = run(name, "--help", env={"COLUMNS": "200"})
    assert result.exit_code == 0
    if name in (within := {"bench": "latency", "eval": "quality"}):
        result = run(name, within[name], "--help")
    assert "Examples:" in result.stdout
    assert f"trimaran {name} " in result.stdout


def test_no_command_shows_the_help():
    assert "Examples:" in run().output


def test_the_version_alone():
    assert run("--version").stdout == f"{__version__}\n"


def test_a_misspelt_command_gets_a_suggestion():
    assert "no command 'chta'; did you mean chat?" in run("chta").stderr
    assert "no command 'xyzzy'\n" in run("xyzzy").stderr


def test_an_unknown_command_or_flag_is_a_user_error():
    for arguments in (["serv"], ["version", "--jsn"], ["generate"]):
        result = run(*arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no such option"), 2),
        (ContextLengthError("too long"), 2),
        (SourceError("not found"), 1),
        (EngineDiedError("gone"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_end_in_one_line_and_an_exit_code(monkeypatch, error, code):
    def fail():
        raise error

    monkeypatch.setattr("trimaran.cli.version.versions", fail)
    result = run("version")
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr == (f"trimaran: {error}\n" if str(error) else "")


def test_a_bug_of_ours_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("trimaran.cli.version.versions", lambda: 1 / 0)
    assert isinstance(run("version").exception, ZeroDivisionError)


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["version", "--help"], ["generate", "--help"], ["chat", "--help"]]
)
def test_nothing_heavy_is_imported_to_say_how_it_works(arguments):
    script = (
        "import sys; from trimaran.cli import main\n"
        f"sys.argv = ['trimaran', *{arguments}]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    assert result.stderr.splitlines()[-1] == "[]"


def test_ctrl_c_during_the_imports_is_quiet():
    script = (
        "import os, signal, sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from trimaran.cli import main\n"
        "main()\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (-signal.SIGINT, "")


def test_the_interrupt_handler_comes_back(monkeypatch):
    seen = []
    monkeypatch.setattr("trimaran.cli.app.app", lambda: seen.append(signal.getsignal(signal.SIGINT)))
    main()
    assert seen == [signal.default_int_handler]
