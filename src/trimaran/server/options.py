# ruff: noqa: RUF009  # option() makes dataclass fields
"""What may be set on ``trimaran serve``: the one list that flags, variables and YAML files are read against.

Names are those of vLLM wherever the meaning is the same.
"""

from dataclasses import dataclass
from typing import Annotated

import msgspec

from trimaran.base.config import option
from trimaran.base.errors import ConfigError
from trimaran.text.tools.families import REASONING_FORMATS, TOOL_FORMATS

Positive = Annotated[int, msgspec.Meta(ge=1)]
NotNegative = Annotated[int, msgspec.Meta(ge=0)]
Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]

KV_SPELLINGS = (
    "auto",
    "bf16",
    "bfloat16",
    "fp32",
    "float32",
    "fp8",
    "int8",
    "int4",
    "int8/int4",
    "fp8-static",
    "int8-static",
)
_CODES = ("int8", "fp8", "int4", "int4z", "codebook4", "codebook3")
WEIGHT_SPELLINGS = ("auto", "bf16", "bfloat16", "fp32", "float32", *_CODES)
RESTARTS = ("on-failure", "never")
TRANSPORTS = ("shm", "nixl", "tcp")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """All options of ``trimaran serve``. The order is that of ``--help``."""

    model: str = option("", "catalogue name, source (pypi:, hf:, https://) or path of the model", metavar="MODEL")

    host: str = option(
        "127.0.0.1", "address to listen on; anything but a loopback address wants a key", metavar="ADDRESS"
    )
    port: Port = option(8000, "port to listen on; 0 takes a free one", metavar="PORT")
    served_model_name: tuple[str, ...] = option(
        (), "name that requests use for the model (repeatable); default: the model's own", metavar="NAME"
    )
    api_key: tuple[str, ...] = option(
        (), "key that every route but /health requires (repeatable; TRIMARAN_API_KEY keeps it out of ps)",
        metavar="KEY", secret=True,
    )  # fmt: skip
    api_key_file: str | None = option(
        None, "file with one key a line, its tenant's name and limits; nobody else may read it", metavar="FILE"
    )
    max_requests_per_minute: Positive | None = option(
        None, "requests that one key may send in a minute; more get 429; default: no limit", metavar="N"
    )
    max_tokens_per_minute: Positive | None = option(
        None, "tokens of prompts and answers that one key may use in a minute; default: no limit", metavar="TOKENS"
    )
    max_concurrency: Positive | None = option(
        None, "requests of one key at once; more get 429; default: no limit", metavar="N"
    )
    cache_salt_per_key: bool = option(
        False, "give the prompts of each key a cache of their own: none can find out what others have sent"
    )
    ssl_certfile: str | None = option(
        None, "PEM file with the certificate, for HTTPS; TLS 1.2 or newer", metavar="FILE"
    )
    ssl_keyfile: str | None = option(None, "PEM file with its key; nobody else may read it", metavar="FILE")
    ssl_ca_certs: str | None = option(
        None, "PEM file with authorities; clients must show a certificate of one", metavar="FILE"
    )
    allowed_origins: tuple[str, ...] = option(
        (), "web origin whose pages may call this server (repeatable; default: none)", metavar="ORIGIN"
    )

    responses_file: str | None = option(
        None, "SQLite file that keeps what /v1/responses has answered; default: in memory", metavar="FILE"
    )
    responses_ttl: Positive = option(86_400, "seconds for which it is kept", metavar="SECONDS")
    files_dir: str | None = option(
        None,
        "folder of /v1/files and /v1/batches, for one server alone; default: files/ in TRIMARAN_HOME",
        metavar="FOLDER",
    )
    files_ttl: Positive = option(30 * 86_400, "seconds for which files and batches are kept", metavar="SECONDS")
    max_file_bytes: Positive = option(200 * 2**20, "largest file that may be uploaded", metavar="BYTES")
    max_files_bytes: Positive = option(10 * 2**30, "what the files of one key may take together", metavar="BYTES")
    batch_concurrency: Positive = option(
        32, "most requests of batches at once; fewer while others run, which always go first", metavar="N"
    )
    chat_template: str | None = option(
        None, "Jinja file to use as the chat template; default: the model's own", metavar="FILE"
    )
    tool_call_parser: str = option(
        "auto",
        "how the model writes calls of tools; auto: as its chat template shows; none: calls stay text",
        choices=("auto", "none", *TOOL_FORMATS),
    )
    reasoning_parser: str = option(
        "auto",
        "how the model marks thoughts; auto: as its chat template shows; none: thoughts stay in the text",
        choices=("auto", "none", *REASONING_FORMATS),
    )
    max_model_len: Positive | None = option(None, "context length; default: the model's", metavar="TOKENS")
    max_num_seqs: Positive = option(64, "most sequences in one step", metavar="N")
    max_num_batched_tokens: Positive = option(512, "most tokens in one step", metavar="TOKENS")
    max_waiting: Positive = option(1024, "most sequences that wait for a place; more get 429", metavar="N")
    weight_format: str = option(
        "auto", "how weights are held; auto: as in the file, FP8 as int8", choices=WEIGHT_SPELLINGS
    )
    activations: str = option("int8", "what quantised weights are multiplied with", choices=("int8", "fp32"))
    kv_cache_dtype: str = option(
        "auto",
        "how keys and values are held; auto: int8 beside quantised weights (heads of 128 at most), else bf16",
        choices=KV_SPELLINGS,
    )
    kv_cache_scales: str | None = option(
        None,
        "scales for the static formats, from `trimaran calibrate`; default: the model's own, else those in the cache",
        metavar="FILE",
    )
    kv_cache_dtype_skip_layers: str = option(
        "", "layers that stay bf16 whatever --kv-cache-dtype says: numbers and the word sliding", metavar="0,1,sliding"
    )
    kv_cache_memory_bytes: Positive | None = option(
        None,
        "memory for the KV cache, such as 2G; default: enough for all sequences, at most a quarter of what is free",
        metavar="BYTES",
    )
    block_size: Positive = option(16, "tokens in a cache page, a multiple of 16", metavar="TOKENS")
    enable_prefix_caching: bool = option(True, "reuse the cache of prompts that begin alike")
    page_tags: bool = option(True, "check before every step that each sequence reads and writes its own pages only")
    canary_interval: Annotated[float, msgspec.Meta(ge=0)] = option(
        60.0, "seconds between two runs of a prompt whose logits are known; 0: no such check", metavar="SECONDS"
    )
    seed: int | None = option(None, "makes requests without a seed repeatable; default: they differ", metavar="SEED")
    executor: str = option("native", "what computes", choices=("native", "reference", "null"))
    threads: NotNegative = option(0, "compute threads; 0: one per core", metavar="N")
    pin_threads: bool = option(False, "tie each compute thread to a core of its own; slower beside other busy programs")
    speculative_ngram: NotNegative = option(
        8,
        "most tokens of a draft, looked up in the text so far or forced by a grammar; 0: none; same answers either way",
        metavar="N",
    )
    overlap: bool = option(True, "send and receive while a step runs; off: the plain loop")
    offline: bool = option(False, "open no socket to fetch the model")
    verify: str = option(
        "auto",
        "hold all files against the model's manifest while loading; auto: if it has one; always: or refuse it",
        choices=("auto", "always", "never"),
    )
    manifest_key: str | None = option(
        None, "PEM file with the ed25519 key that must have signed the manifest", metavar="FILE"
    )
    packed_cache_bytes: NotNegative | None = option(
        None,
        "the most that packed weights, which the next start need not pack, may take of the disk; 0: none; default 64G",
        metavar="BYTES",
    )

    pools: str = option(
        "none",
        "worker processes that prefill and that decode, such as prefill=1,decode=1, or addresses of `trimaran worker`; "
        "none: one engine does both",
        metavar="WORKERS",
    )
    prefill_weights: str | None = option(
        None,
        "how the weights that compute prompts are held, in one engine or in pools; default: as --weight-format",
        choices=WEIGHT_SPELLINGS,
    )
    prefill_kv: str | None = option(
        None, "how prefill workers hold keys and values; default: as --kv-cache-dtype", choices=KV_SPELLINGS
    )
    prefill_threads: NotNegative = option(
        0, "compute threads of each prefill worker; 0: its share of the cores", metavar="N"
    )
    decode_weights: str | None = option(
        None,
        "how the weights that decode are held, in one engine or in pools; default: as --weight-format",
        choices=WEIGHT_SPELLINGS,
    )
    decode_kv: str | None = option(
        None, "how decode workers hold keys and values; default: as --kv-cache-dtype", choices=KV_SPELLINGS
    )
    decode_threads: NotNegative = option(
        0, "compute threads of each decode worker; 0: its share of the cores", metavar="N"
    )
    pool_transport: str = option("shm", "how pages go from prefill to decode workers", choices=TRANSPORTS)
    pool_key_file: str | None = option(
        None,
        "file with what workers of pools know each other by, readable by its owner alone; default: $TRIMARAN_POOL_KEY, "
        "else a new key at every start",
        metavar="FILE",
    )
    pool_listen: str | None = option(
        None,
        "address at which decode workers of this host take pages from others; default: only from this host",
        metavar="ADDRESS",
    )
    pool_self_test: bool = option(True, "hold a prompt that went through both pools against one worker's, at the start")
    timeout_queue: Seconds = option(
        300.0, "seconds that a request may wait for workers of both pools before it is refused", metavar="SECONDS"
    )
    timeout_handoff: Seconds = option(
        60.0, "seconds for a prompt to be computed and handed over, with pools", metavar="SECONDS"
    )

    max_connections: Positive = option(2048, "connections at once; more get 503", metavar="N")
    max_body_bytes: Positive = option(8 * 2**20, "largest request body", metavar="BYTES")
    timeout_body: Seconds = option(30.0, "seconds for a request's headers and body to arrive", metavar="SECONDS")
    timeout_request: Seconds | None = option(
        None, "seconds after which an unfinished request ends in an error; default: never", metavar="SECONDS"
    )
    timeout_engine: Seconds = option(
        300.0, "seconds of silence after which a stuck engine is ended and started anew", metavar="SECONDS"
    )
    restart: str = option(
        "on-failure", "what follows when the engine process dies: a new one, or the server's end", choices=RESTARTS
    )
    restart_limit: Positive = option(5, "restarts in a row before the server gives up and ends", metavar="N")
    restart_stable: Seconds = option(
        60.0, "seconds of life after which a process begins a new row of restarts", metavar="SECONDS"
    )
    timeout_keep_alive: Positive = option(30, "seconds that an idle connection stays open", metavar="SECONDS")
    timeout_graceful_shutdown: Annotated[float, msgspec.Meta(ge=0)] = option(
        30.0, "seconds that running requests get to finish after SIGTERM", metavar="SECONDS"
    )
    log_level: str = option("info", "least level that is logged", choices=LOG_LEVELS)

    def __post_init__(self) -> None:
        # An empty key would let in whoever sends an empty one; white space at an end does not survive in a header.
        if any(not key or key != key.strip() for key in self.api_key):
            raise ConfigError("--api-key must not be empty, nor begin or end with white space")
