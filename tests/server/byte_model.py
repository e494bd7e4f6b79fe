"""A model on disk that is all tokenizer: one token per ASCII character, ChatML, and a tensor that nobody reads."""

import json
import struct
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from trimaran.text.byte_level import ALPHABET

CHARACTERS = [chr(code) for code in range(0x20, 0x7F)] + ["\n"]  # a character's place is its token id
START, END = len(CHARACTERS), len(CHARACTERS) + 1  # <|im_start|> and <|im_end|>
VOCAB = len(CHARACTERS) + 2

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if shout %}!{% endif %}{% if reasoning_effort == 'low' %}?{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_byte_model(directory: Path) -> Path:
    """Writes the files of a checkpoint in the Hugging Face layout and returns ``directory``."""
    tokenizer = Tokenizer(models.BPE({ALPHABET[ord(char)]: id_ for id_, char in enumerate(CHARACTERS)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    options = {"eos_token": "<|im_end|>", "chat_template": CHAT_TEMPLATE, "add_bos_token": False}
    (directory / "tokenizer_config.json").write_text(json.dumps(options))
    (directory / "config.json").write_text(json.dumps({"model_type": "bytes"}))
    header = json.dumps({"nothing": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    return directory
