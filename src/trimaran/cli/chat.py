"""``trimaran chat``: a conversation in the terminal."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from trimaran.cli import flags
from trimaran.cli.flags import Pages, Weights

if TYPE_CHECKING:
    from trimaran.base.sampling import SamplingParams
    from trimaran.llm import LLM

HELP = "/reset forgets the conversation · /exit (or Ctrl-D) leaves · Ctrl-C stops an answer"


def chat(
    model: flags.Model,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Instructions that begin the conversation.", show_default=False)
    ] = None,
    max_tokens: flags.MaxTokens = None,
    temperature: flags.Temperature = 0.7,
    top_p: flags.TopP = 0.95,
    top_k: flags.TopK = 0,
    min_p: flags.MinP = 0.0,
    repetition_penalty: flags.RepetitionPenalty = 1.0,
    seed: flags.Seed = None,
    stop: flags.Stop = None,
    executor: flags.Executor = "native",
    threads: flags.Threads = 0,
    weight_format: flags.WeightFormat = Weights.AUTO,
    kv_cache_dtype: flags.KVCacheDtype = Pages.AUTO,
    kv_cache_scales: flags.KVCacheScales = None,
    kv_cache_dtype_skip_layers: flags.KVSkipLayers = "",
    max_model_len: flags.MaxModelLen = None,
    chat_template: flags.ChatTemplate = None,
    offline: flags.Offline = False,
) -> None:
    """Talk to MODEL in the terminal; answers appear as they are generated.

    Lines starting with / are commands: /reset, /exit, /help. When stdin is not a terminal, each line of it is a message
    of the same conversation and only the answers are printed.

    \b
    Examples:
      trimaran chat smollm2
      trimaran chat smollm2 --system "You are a pirate." --temperature 1
      printf 'My name is Ann.\\nWhat is my name?\\n' | trimaran chat smollm2 --temperature 0
    """
    from trimaran.base.sampling import SamplingParams
    from trimaran.llm import LLM

    params = SamplingParams(
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        min_p=min_p,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=tuple(stop or ()),
    )
    options = flags.engine_options(
        executor,
        threads,
        weight_format,
        kv_cache_dtype,
        max_model_len,
        scales=kv_cache_scales,
        skip_layers=kv_cache_dtype_skip_layers,
    )
    interactive = sys.stdin.isatty()
    with LLM(model, offline=offline, chat_template=chat_template, **options) as llm:
        if interactive:
            info = llm.info
            print(
                f"{info.model}: {info.weight_format} weights, {info.context} tokens of context\n{HELP}", file=sys.stderr
            )
        talk(Conversation(llm, params, system), interactive)


class Conversation:
    """What has been said, and the next answer to it."""

    def __init__(self, llm: "LLM", params: "SamplingParams", system: str | None) -> None:
        self._llm = llm
        self._params = params
        self._beginning = [{"role": "system", "content": system}] if system else []
        self.messages = list(self._beginning)

    def reset(self) -> None:
        """Forgets all but the system message."""
        self.messages = list(self._beginning)

    def answer(self, text: str) -> Iterator[str]:
        """Says ``text`` and yields the answer. What was said of it stays, also when the iteration is given up; after
        an error, the conversation is as before."""
        asked = [*self.messages, {"role": "user", "content": text}]
        said: list[str] = []
        try:
            for delta in self._llm.chat(asked, self._params, stream=True):
                said.append(delta.text)
                yield delta.text
        finally:
            if said:
                self.messages = [*asked, {"role": "assistant", "content": "".join(said)}]


def talk(conversation: Conversation, interactive: bool) -> None:
    """Reads lines until the input ends, and answers each."""
    from trimaran.base.errors import ContextLengthError

    for line in _lines(interactive):
        if line == "/exit":
            return
        if line == "/reset":
            conversation.reset()
        elif line.startswith("/") and " " not in line:
            print(HELP if line == "/help" else f"{line} is not a command. {HELP}", file=sys.stderr)
        elif line:
            try:
                for text in conversation.answer(line):
                    print(text, end="", flush=True)
                print()
            except KeyboardInterrupt:
                if not interactive:
                    raise
                print(" …")
            except ContextLengthError as error:
                if not interactive:
                    raise
                print(f"{error}\n/reset forgets the conversation", file=sys.stderr)


def _lines(interactive: bool) -> Iterator[str]:
    if not interactive:
        yield from (line.strip() for line in sys.stdin)
        return
    import readline  # noqa: F401  (gives input() editing and a history)

    while True:
        try:
            yield input("> ").strip()
        except EOFError:
            print()
            return
