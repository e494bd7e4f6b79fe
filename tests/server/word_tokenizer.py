"""A tokenizer for the tiny BERTs, whose tokens are words: ids 0 to 9 are unknown, padding and the control tokens."""

import json
from pathlib import Path

WORDS = [f"w{number}" for number in range(190)]


def write_words(folder: Path) -> Path:
    """Adds ``tokenizer.json`` to a checkpoint."""
    control = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *(f"[unused{i}]" for i in range(6))]
    vocab = {word: number for number, word in enumerate([*control, *WORDS])}
    special = {name: {"id": name, "ids": [vocab[name]], "tokens": [name]} for name in ("[CLS]", "[SEP]")}
    frame = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    frame.append({"SpecialToken": {"id": "[SEP]", "type_id": 0}})
    second = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    file = {
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": {
            "strategy": {"Fixed": 8},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "[PAD]",
        },
        "added_tokens": [{"id": number, "content": text, **added} for number, text in enumerate(control)],
        "normalizer": {"type": "Lowercase"},
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": frame,
            "pair": frame + second,
            "special_tokens": special,
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": vocab,
        },
    }
    (folder / "tokenizer.json").write_text(json.dumps(file), "utf-8")
    return folder
