"""The ``trimaran`` command: one module a subcommand, imported when it is used.

Errors end in one line on stderr: exit code 2 when the request or an option was wrong, 1 for everything else, 130 after
Ctrl-C.
"""

import importlib
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trimaran import __version__
from trimaran.base.env import nearest
from trimaran.base.errors import ConfigError, RequestError, TrimaranError
from trimaran.cli.vllm_flags import INSTEAD

COMMANDS = {  # name: (what runs it, one line for --help)
    "pull": ("trimaran.cli.pull:pull", "Fetch a model into the cache, verify it, and print its path."),
    "verify": ("trimaran.cli.verify:verify", "Hold a model's files against its manifest."),
    "manifest": ("trimaran.cli.verify:manifest", "List a model's files with their hashes, signed if you like."),
    "serve": ("trimaran.cli.serve:serve", "Serve a model over the OpenAI API."),
    "worker": ("trimaran.cli.worker:worker", "Prefill or decode for a server on another host."),
    "chat": ("trimaran.cli.chat:chat", "Talk to a model in the terminal."),
    "generate": ("trimaran.cli.generate:generate", "Continue a prompt and print the text."),
    "models": ("trimaran.cli.models:models", "List the models of the catalogue and those in the cache."),
    "plan": ("trimaran.cli.plan:plan", "Work out what fits on GPUs: weights, tokens, sequences."),
    "compress": ("trimaran.cli.compress:compress", "Write a smaller copy of a model, in int4 or FP8."),
    "calibrate": ("trimaran.cli.calibrate:calibrate", "Measure a model's keys and values, for static KV formats."),
    "eval": ("trimaran.cli.eval:app", "Measure what formats of weights and pages cost in quality."),
    "bench": ("trimaran.cli.bench:app", "Measure speed, with its share of the machine's floor."),
    "version": ("trimaran.cli.version:version", "Print the version and what this machine can run."),
}


class CommandGroup(TyperGroup):
    """Knows its commands by name and imports one when it is called; turns errors into exit codes."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002, as in the base class
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002, as in the base class
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        if isinstance(command, typer.Typer):
            app = command
        else:
            app = typer.Typer(add_completion=False)
            app.command(cmd_name)(command)
        app.rich_markup_mode = None
        built = typer.main.get_command(app)
        built.name = cmd_name
        return built

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in COMMANDS:
            ctx.fail(f"no command {args[0]!r}{nearest(args[0], COMMANDS)}")
        if args[0] == "serve":
            for flag in (argument.partition("=")[0] for argument in args):
                if flag in INSTEAD:
                    ctx.fail(f"no such option: {flag}; {INSTEAD[flag]}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002, as in the base class
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TrimaranError as error:
            print(f"trimaran: {error}", file=sys.stderr)
            raise SystemExit(2 if isinstance(error, ConfigError | RequestError) else 1) from error
        except KeyboardInterrupt as error:
            raise SystemExit(130) from error


app = typer.Typer(
    cls=CommandGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Serve language models on hardware you own.

    \b
    Examples:
      trimaran serve smollm2                 the OpenAI API on http://127.0.0.1:8000
      trimaran chat smollm2                  talk to it here
      trimaran generate smollm2 "Once upon"  continue a text
      trimaran COMMAND --help                more about one command

    MODEL is a name from `trimaran models`, a source (pypi:…, hf:ORG/NAME, https://…) or a path.
    """
