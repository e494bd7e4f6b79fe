"""Whether conversations find what their earlier turns have computed: said where a chat template stands in the way.

A request that goes on from an earlier one begins with the earlier one's messages. If its prompt does not begin with the
same tokens, nothing behind the first difference is found in the cache, and every turn costs what all before it did.
Templates do that which drop thoughts or calls of turns that are past, which write the date, or which move the newest
message; so do tokenizers that read a text otherwise than the model wrote it.
"""

import hashlib
import logging
import threading
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec

from trimaran.server.metrics import Metrics
from trimaran.text.tokenizer import Tokenizer

CONVERSATIONS = 512  # that are remembered
MOST_TOKENS = 2**21  # of all of them together
SLACK = 16  # tokens: where an answer was cut, its end is written otherwise, and no page ends before that

log = logging.getLogger(__name__)

Int32: TypeAlias = "array[int]"


class Reuse:
    """Remembers how the last conversations were written. Safe to use from several threads."""

    def __init__(self, tokenizer: Tokenizer, metrics: Metrics) -> None:
        self._tokenizer = tokenizer
        self._metrics = metrics
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, tuple[Int32, int]] = OrderedDict()  # tokens, and how many are the prompt's
        self._tokens = 0
        self._warned = False

    def note(self, conversation: bytes, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """A request, named by the last of its ``keys``, has got this answer."""
        tokens = array("i", [*prompt, *answer])
        with self._lock:
            self._forget(conversation)
            self._known[conversation] = tokens, len(prompt)
            self._tokens += len(tokens)
            while len(self._known) > CONVERSATIONS or self._tokens > MOST_TOKENS:
                self._forget(next(iter(self._known)))

    def look(self, keys: Sequence[bytes], messages: Sequence[Mapping[str, Any]], prompt: Sequence[int]) -> None:
        """Counts, and at first warns of, a prompt whose conversation goes on from one that is remembered, but does not
        begin with its tokens. ``keys`` are those of ``messages``."""
        before = self._before(keys)
        if before is None:
            return
        turns, tokens, asked = before
        answer = messages[turns].get("content")
        same = answer == self._tokenizer.decode(tokens[asked:].tolist())
        expected = tokens if same else tokens[:asked]  # an answer that the client has changed is the client's
        kept = _in_common(array("i", prompt[: len(expected)]), expected)
        self._metrics.continued.inc()
        if kept > len(expected) - SLACK:
            return
        self._metrics.rewritten.inc()
        if not self._warned:
            self._warned = True
            log.warning(
                "a conversation's earlier turns are written otherwise than when they were new: of %d tokens that were "
                "computed %d can be used again. trimaran_conversations_rewritten_total counts this; the chat template "
                "is the likely cause (said once)",
                len(expected),
                kept,
            )

    def _before(self, keys: Sequence[bytes]) -> tuple[int, Int32, int] | None:
        """The longest beginning that is remembered and whose answer follows: how many messages, tokens, prompt."""
        with self._lock:
            for number in range(len(keys) - 1, 0, -1):
                if (found := self._known.get(keys[number - 1])) is not None:
                    self._known.move_to_end(keys[number - 1])
                    return number, *found
        return None

    def _forget(self, conversation: bytes) -> None:
        if (found := self._known.pop(conversation, None)) is not None:
            self._tokens -= len(found[0])


def conversation_keys(messages: Sequence[Mapping[str, Any]], settings: Any) -> list[bytes]:
    """A key for each beginning of a conversation, of one message, of two, and so on. ``settings`` are whatever else the
    template is given."""
    hash_ = hashlib.sha256(msgspec.json.encode(settings))
    keys = []
    for message in messages:
        hash_.update(msgspec.json.encode(message))
        keys.append(hash_.digest())
    return keys


def _in_common(one: Int32, other: Int32) -> int:
    """How many tokens they begin with alike."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
