"""``trimaran generate``: continue a prompt."""

import json
import sys
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from trimaran.cli import flags
from trimaran.cli.flags import Pages, Weights

if TYPE_CHECKING:
    from trimaran.completion import Completion


def generate(
    model: flags.Model,
    prompt: Annotated[str, typer.Argument(help="The text; - reads it from stdin.", show_default=False)],
    chat: Annotated[bool, typer.Option("--chat", help="The prompt is a message: use the chat template.")] = False,
    n: Annotated[int, typer.Option("-n", min=1, help="How many continuations.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object when all is done.")] = False,
    max_tokens: flags.MaxTokens = 128,
    temperature: flags.Temperature = 0.0,
    top_p: flags.TopP = 1.0,
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
    """Continue PROMPT with MODEL and print the text as it is generated.

    A prompt is taken as it is, control tokens included; with --chat it is one message of a user.

    \b
    Examples:
      trimaran generate smollm2 "The capital of France is" --max-tokens 8
      trimaran generate smollm2 --chat "Name three rivers." --stop "3."
      trimaran generate smollm2 "Once upon a time" -n 3 --temperature 0.8 --seed 1
      git diff | trimaran generate smollm2 - --json | jq -r '.choices[0].text'
    """
    from trimaran.base.errors import ConfigError
    from trimaran.base.sampling import SamplingParams
    from trimaran.llm import LLM

    if chat_template is not None and not chat:
        raise ConfigError("--chat-template is for --chat: without it the prompt is continued as it is")
    text = sys.stdin.read() if prompt == "-" else prompt
    params = SamplingParams(
        n=n,
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
    with LLM(model, offline=offline, chat_template=chat_template, **options) as llm:
        ask = partial(llm.chat, [{"role": "user", "content": text}]) if chat else partial(llm.generate, text)
        if n == 1 and not as_json:
            for delta in ask(params, stream=True):
                print(delta.text, end="", flush=True)
            print()
            return
        (completion,) = ask(params)
    print(_as_json(completion) if as_json else "\n---\n".join(output.text for output in completion.outputs))


def _as_json(completion: "Completion") -> str:
    fields = ("text", "token_ids", "finish_reason", "stop_reason")
    value = {
        "choices": [{key: asdict(output)[key] for key in fields} for output in completion.outputs],
        "prompt_tokens": len(completion.prompt_ids),
        "completion_tokens": sum(len(output.token_ids) for output in completion.outputs),
    }
    return json.dumps(value, ensure_ascii=False)
