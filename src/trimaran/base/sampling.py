"""How to choose tokens: one frozen value per request, shared by the Python API, the server and the engine."""

import msgspec

from trimaran.base.errors import RequestError
from trimaran.base.grammar import Grammar

MAX_LOGPROBS = 20
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024  # characters; each is made ready for every choice


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Sampling options; names and meanings follow the OpenAI API and vLLM.

    Penalties act before temperature, then ``top_k``, ``top_p`` and ``min_p`` filter in this order. ``temperature`` 0
    is greedy. ``repetition_penalty`` looks at prompt and output, ``presence_penalty`` and ``frequency_penalty`` at the
    output only. With ``seed`` the tokens depend on seed, prompt and model alone, never on the batch.

    Raises ``RequestError`` naming the field when a value is out of range.
    """

    n: int = 1
    max_tokens: int | None = None  # None: until the context is full
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: off (-1 is accepted for the same)
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; 0: the chosen token; k: and the k most likely
    grammar: Grammar | None = None  # what the whole answer must look like

    def __post_init__(self) -> None:
        for name, low, high in RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN fails every comparison
                allowed = f"between {low} and {high}" if high < _INT64 or value > high else f"at least {low}"
                raise RequestError(f"{name} must be {allowed}, not {value}", param=name)
            if isinstance(value, float) and isinstance(low, int):  # 7.5 tokens would never be reached
                raise RequestError(f"{name} must be a whole number, not {value}", param=name)
        stop: object = self.stop
        if isinstance(stop, str):  # each character of it would stop
            raise RequestError(f"stop takes several strings: stop=({stop!r},)", param="stop")
        if len(self.stop) > MAX_STOPS or not all(0 < len(s) <= MAX_STOP_LENGTH for s in self.stop):
            raise RequestError(
                f"stop takes up to {MAX_STOPS} strings of 1 to {MAX_STOP_LENGTH} characters", param="stop"
            )
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError("min_tokens exceeds max_tokens", param="min_tokens")
        if self.grammar is not None and self.ignore_eos:
            raise RequestError(
                f"ignore_eos cannot be used with {self.grammar.field}, which says where the answer ends",
                param="ignore_eos",
            )
        for token, bias in self.logit_bias.items():
            if token < 0 or not -100 <= bias <= 100:
                raise RequestError("logit_bias maps token ids to values from -100 to 100", param="logit_bias")

    @property
    def greedy(self) -> bool:
        """True when the most likely token is always taken."""
        return self.temperature == 0

    @property
    def penalises(self) -> bool:
        """True when scores depend on the tokens so far."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def plain_greedy(self) -> bool:
        """True when the arg-max of the raw logits is the answer, so that logits need not leave the executor."""
        return (
            self.greedy
            and self.logprobs is None
            and self.min_tokens == 0
            and not self.logit_bias
            and not self.penalises
            and self.grammar is None
        )


_INT64 = 2**63 - 1
RANGES: tuple[tuple[str, float, float], ...] = (  # of numbers: least and most
    ("n", 1, 128),
    ("max_tokens", 1, _INT64),
    ("min_tokens", 0, _INT64),
    ("temperature", 0.0, 100.0),
    ("top_p", 1e-9, 1.0),
    ("top_k", -1, _INT64),
    ("min_p", 0.0, 1.0),
    ("repetition_penalty", 1e-3, 100.0),
    ("presence_penalty", -2.0, 2.0),
    ("frequency_penalty", -2.0, 2.0),
    ("seed", -_INT64 - 1, _INT64),
    ("logprobs", 0, MAX_LOGPROBS),
)
