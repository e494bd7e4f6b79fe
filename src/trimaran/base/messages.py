"""What the server and the engine process say to each other: tagged values in msgpack, never pickle.

Guarantees, per request id:

* ``Submit`` is answered by any number of ``Tokens`` and exactly one end: a ``Tokens`` with ``finish`` set, or a
  ``Failed``. ``Embed`` is answered by exactly one ``Embedded`` or ``Failed``.
* ``Cancel`` is idempotent and may cross an end on the wire; an unknown id is ignored. A cancelled request ends with
  ``Tokens(finish="cancelled")`` and its pages are free again within one engine step.
* Messages arrive in the order in which they were sent. Nothing is sent for a request after its end.
* ``Admit`` and ``Prefill`` are the two halves of a ``Submit``, for engines of two pools; both name one transfer.
  ``Admit`` is answered by ``Admitted`` once there are pages for the prompt, then like a ``Submit``, by ``Tokens`` from
  the first token on. ``Prefill`` is answered by exactly one end: ``Handed``, ``Failed`` or
  ``Tokens(finish="cancelled")``.
* ``Started`` is the engine's first message; ``Beat`` follows at least every ``BEAT_SECONDS`` while the loop turns.
"""

from typing import Literal

import msgspec

from trimaran.base.sampling import SamplingParams

BEAT_SECONDS = 0.25
BACKGROUND = 2**32  # priorities from here on are of work that nobody waits for; clients name none of them

Role = Literal["both", "prefill", "decode"]  # of an engine
FinishReason = Literal["stop", "length", "cancelled"]
Score = Literal["sigmoid", "identity"]  # what a model's one logit becomes its score by


class Submit(msgspec.Struct, frozen=True, tag=True):
    """A prompt to continue. ``sampling.n`` is 1 here: the caller fans out, the prefix cache shares the prompt."""

    id: str
    prompt: list[int]
    sampling: SamplingParams
    priority: int = 0  # smaller runs first
    salt: str = ""  # prompts share cached pages only with prompts of the same salt
    session: str = ""  # a router keeps the requests of one session together; no engine asks
    tenant: str = ""  # and shares its queue out among tenants


class Embed(msgspec.Struct, frozen=True, tag=True):
    """Texts, as token ids, to make a vector of each, or pairs of texts to make a logit of each: answered by one
    ``Embedded`` or one ``Failed``. ``seconds`` says where in each the second text of a pair begins."""

    id: str
    texts: list[list[int]]
    priority: int = 0  # smaller runs first
    seconds: list[int] | None = None  # of a model with ``Started.score``, and of no other


class Cancel(msgspec.Struct, frozen=True, tag=True):
    id: str


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Finish what runs for at most ``deadline`` seconds, cancel the rest, exit."""

    deadline: float


class Admit(msgspec.Struct, frozen=True, tag=True):
    """To an engine that decodes: take pages for the prompt of ``request``, which another one computes."""

    request: Submit  # its id is the transfer's
    origin: str  # ``Started.identity`` of the engine that computes the prompt
    seconds: float  # for the pages to come, from when there is room for them
    source: str  # what the server calls that engine

    @property
    def id(self) -> str:
        return self.request.id


class Prefill(msgspec.Struct, frozen=True, tag=True):
    """To an engine that prefills: compute the prompt and the first token, and hand them to whoever made the ticket."""

    request: Submit
    ticket: bytes  # ``pools.ticket``

    @property
    def id(self) -> str:
        return self.request.id


class Distrust(msgspec.Struct, frozen=True, tag=True):
    """To an engine that decodes: the canary of the engine called ``source`` has deviated."""

    source: str  # as in ``Admit``


ToEngine = Submit | Embed | Admit | Prefill | Cancel | Distrust | Stop


class Token(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One generated token; ``top`` holds (id, logprob) of the most likely ones when asked for, best first."""

    id: int
    logprob: float | None = None
    top: list[tuple[int, float]] | None = None


class Tokens(msgspec.Struct, frozen=True, tag=True, gc=False):
    """New tokens of one request. ``stopped_by`` is a stop token's id (EOS or ``stop_token_ids``), not in ``tokens``."""

    id: str
    tokens: list[Token]
    finish: FinishReason | None = None
    stopped_by: int | None = None
    cached: int = 0  # prompt tokens that came from the prefix cache


class Admitted(msgspec.Struct, frozen=True, tag=True):
    """There are pages for the prompt of an ``Admit``."""

    id: str
    ticket: bytes
    seed: int  # for the first token to be drawn with: the request's own, or what it got for one


class Handed(msgspec.Struct, frozen=True, tag=True):
    """The other engine has the pages and the first token of a ``Prefill``."""

    id: str
    sent: int  # bytes
    prefill_seconds: float  # from the message's arrival to the first token
    handoff_seconds: float  # from there to the other engine's word


class Embedded(msgspec.Struct, frozen=True, tag=True):
    """The vectors of an ``Embed``: little-endian float32 ``[texts, Started.embedding_width]``."""

    id: str
    vectors: bytes


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The request ended in an error: ``kind`` is the class name in ``base.errors``."""

    id: str
    kind: str
    message: str
    param: str | None = None
    code: str | None = None
    retry_after: float | None = None


class CachePages(msgspec.Struct, frozen=True, array_like=True):
    """Pages of one cache group: of layers that read everything, or the last ``window`` tokens."""

    window: int | None
    total: int
    free: int
    cached: int  # free for taking, but still findable by prefix
    slots: int = 0  # places for tokens in the pages that are in use
    unused: int = 0  # of these, in sequences' last pages behind their last token
    neighbours: int = 0  # pairs of pages that follow each other in a sequence
    jumps: int = 0  # of these, those that do not in memory
    quarantined: int = 0  # out of use, because something was wrong with them


class Started(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded and has produced a token."""

    model: str
    digest: str  # SHA-256 of its manifest where it was verified, else what tells it from other models
    context: int
    vocab: int
    weight_format: str
    kv_format: str
    executor: str
    isa: str
    threads: int
    pages: list[CachePages]  # of each cache group
    page_size: int
    weight_bytes: int
    kv_bytes: int
    identity: str = ""  # what a cached page's bytes depend on, hashed: engines that share it make the same pages
    sampled: str = ""  # what tells the files that were loaded from others; empty without a model
    canary: str = ""  # digest of the logits that are known; empty without a canary
    embedding_width: int | None = None  # of an encoder, which takes ``Embed`` alone; others take ``Submit``
    score: Score | None = None  # of an encoder of pairs, whose vectors are one logit
    phases: dict[str, float] = {}  # seconds that the start took, by what they went to, in order


class Deviated(msgspec.Struct, frozen=True, tag=True):
    """A prompt whose logits are known came out otherwise (``engine/canary.py``): every request ends with
    ``CanaryError``, those that come later too. ``expected`` is a digest, ``found`` that or an error."""

    cause: str
    expected: str
    found: str


class Beat(msgspec.Struct, frozen=True, tag=True):
    """Counters since start (monotone) and gauges (now)."""

    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    drafted_tokens: int = 0  # by speculation
    accepted_tokens: int = 0  # of these, those that were right
    preemptions: int = 0
    page_faults: int = 0  # entries of page tables that were not what they were made for
    leases_expired: int = 0  # leases of pages that ended by time, not by word
    links_rejected: int = 0  # connections of other workers, or of strangers, that were turned away
    transfers_failed: dict[str, int] = {}  # by cause: transfers that this engine expected and that did not come
    pages_distrusted: int = 0  # that were dropped from the prefix cache because of who computed them
    canary_checks: int = 0  # runs of the prompt whose logits are known, since the start
    canary_deviations: int = 0  # of these, those that came out otherwise: the last one
    step_seconds: float = 0.0  # while there was a step to run
    executor_seconds: float = 0.0  # of these, while the executor had one; the rest is what Python costs
    constrained_requests: int = 0
    grammars_compiled: int = 0
    grammar_seconds: float = 0.0  # on a thread of their own
    mask_seconds: float = 0.0  # of the engine's thread, for saying which tokens may come next
    running: int = 0
    waiting: int = 0
    leases: int = 0  # of pages that a transfer reads or writes
    pages: list[CachePages] = []  # of each cache group


FromEngine = Started | Tokens | Admitted | Handed | Embedded | Failed | Deviated | Beat


class ToEngineBatch(msgspec.Struct, frozen=True):
    messages: list[ToEngine]


class FromEngineBatch(msgspec.Struct, frozen=True):
    messages: list[FromEngine]
