"""The vocabulary as grammars see it: the bytes that each token adds to an answer."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from trimaran.base.errors import UnsupportedError
from trimaran.checkpoint.model_files import AS_THEY_ARE, ModelFiles


@dataclass(frozen=True)
class TokenTable:
    """``tokens`` are the bytes of every token that the model can say, ``b""`` where padding stands for none.

    Tokens in ``control_ids`` and ``eos_ids`` are never text. ``encode`` gives the ids that the model would be shown
    for a text.
    """

    tokens: list[bytes]
    control_ids: frozenset[int]
    eos_ids: frozenset[int]
    encode: Callable[[str], list[int]]


def read_token_table(
    path: Path, vocab: int, eos_ids: frozenset[int], files: Callable[[], ModelFiles] = lambda: AS_THEY_ARE
) -> TokenTable:
    """The table of the checkpoint at ``path``, for a model of ``vocab`` logits that ends with ``eos_ids``; ``files``
    says how its files are opened.

    Raises ``CheckpointError`` or ``UnsupportedError``.
    """
    from trimaran.checkpoint import open_checkpoint  # an engine without constraints does not need them
    from trimaran.text.tokenizer import open_tokenizer

    with open_checkpoint(path, files()) as checkpoint:
        tokenizer = open_tokenizer(checkpoint)
    ends = frozenset(token for token in eos_ids if token < vocab)  # a model may name ends that it cannot say
    if not ends:
        raise UnsupportedError("the model has no end-of-text token, with which constrained answers could end")
    control = tokenizer.special_ids | {token.id for token in tokenizer.control}
    return TokenTable(
        [tokenizer.token_bytes(token) for token in range(vocab)],
        frozenset(token for token in control if token < vocab),
        ends,
        tokenizer.encode,
    )
