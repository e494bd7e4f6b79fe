"""Log-probabilities in the API's two shapes: a list of objects in chat, parallel lists in completions."""

from collections.abc import Sequence

from trimaran.base.messages import Token
from trimaran.server.openai.answers import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from trimaran.text.tokenizer import Tokenizer

FLOOR = -9999.0  # stands for minus infinity, which JSON lacks (as in OpenAI's own answers)


def chat_logprobs(tokenizer: Tokenizer, tokens: Sequence[Token]) -> ChatLogprobs:
    """One entry per token that was sampled with logprobs; ``bytes`` tells apart what is no complete UTF-8."""
    content = []
    for token in tokens:
        data = tokenizer.token_bytes(token.id)
        top = [_top(tokenizer, id_, logprob) for id_, logprob in token.top or ()]
        content.append(TokenLogprob(data.decode("utf-8", "replace"), _logprob(token), list(data), top))
    return ChatLogprobs(content)


def _top(tokenizer: Tokenizer, id_: int, logprob: float) -> TopLogprob:
    data = tokenizer.token_bytes(id_)
    return TopLogprob(data.decode("utf-8", "replace"), max(logprob, FLOOR), list(data))


def completion_logprobs(tokenizer: Tokenizer, tokens: Sequence[Token], offsets: Sequence[int]) -> CompletionLogprobs:
    """The lists for ``tokens``, whose text begins at ``offsets`` in the choice's text.

    ``top_logprobs`` always has the chosen token, so up to one more than was asked for (OpenAI API reference).
    """
    top = []
    for token in tokens:
        best = {_name(tokenizer, id_): max(logprob, FLOOR) for id_, logprob in token.top or ()}
        top.append({**best, _name(tokenizer, token.id): _logprob(token)} if best else best)
    return CompletionLogprobs(
        tokens=[_name(tokenizer, token.id) for token in tokens],
        token_logprobs=[_logprob(token) for token in tokens],
        top_logprobs=top if any(top) else None,
        text_offset=list(offsets),
    )


def _logprob(token: Token) -> float:
    assert token.logprob is not None, "the engine left out logprobs that were asked for"
    return max(token.logprob, FLOOR)


def _name(tokenizer: Tokenizer, id_: int) -> str:
    """A token's text, or OpenAI's ``bytes:\\xe2\\x80`` for one that is no text on its own: names must stay distinct."""
    data = tokenizer.token_bytes(id_)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
