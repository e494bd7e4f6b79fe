"""Types of the compiled module; ``csrc/bind*.cpp`` register it."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

GROUP: int
STRIP: int
PACKING_VERSION: int

def usable_isas() -> list[str]: ...
def row_bytes(fmt: str, k: int) -> int: ...
def kv_token_bytes(fmt: str, head_dim: int) -> int: ...
def bundle_pages(page_size: int) -> int: ...
def matrix_bytes(fmt: str, n: int, k: int, paired: bool, head: bool) -> int: ...
def outlier_rows(matrices: int, n: int, paired: bool, starts: npt.NDArray[np.int32]) -> int: ...
def outlier_bytes(matrices: int, n: int, paired: bool, starts: npt.NDArray[np.int32]) -> int: ...

class Sampler:
    """What one request asks of the choice of its tokens, and its history. Stateful: one row at a time."""

    def __init__(
        self,
        *,
        greedy: bool,
        sharpness: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition: float,
        presence: float,
        frequency: float,
        first_stop: int,
        stops: list[int],
        bias_ids: list[int],
        bias: list[float],
        logprobs: int,
        key: int,
        prompt: list[int],
    ) -> None: ...
    def note(self, token: int) -> None:
        """Takes note of a token of the output that another sampler has chosen."""

class Weight:
    """Canonical arrays of ``count`` matrices n x k; see ``trimaran.kernels.weights``. It keeps them alive.

    Raises ``ValueError`` when they do not match.
    """

    def __init__(
        self,
        *,
        fmt: str,
        count: int,
        n: int,
        k: int,
        data: npt.NDArray[np.uint8],
        scale: npt.NDArray[np.uint16] | None = None,
        minimum: npt.NDArray[np.uint16] | None = None,
        block_scale: npt.NDArray[np.float32] | None = None,
        codebook: npt.NDArray[np.int8] | None = None,
        outlier_starts: npt.NDArray[np.int32] | None = None,
        outlier_columns: npt.NDArray[np.int32] | None = None,
        outlier_values: npt.NDArray[np.uint16] | None = None,
    ) -> None: ...
    @staticmethod
    def packed(*, fmt: str, count: int, n: int, k: int, outlier_rows: int | None) -> Weight:
        """Without numbers, for a program that was given ``packed`` memory."""

class HeadNorm:
    """RMS norm of queries or keys; weight -1: none."""

    def __init__(self, weight: int, eps: float, whole: bool) -> None: ...

class Program:
    def __init__(
        self,
        *,
        isa: str,
        threads: int,
        vocab: int,
        result: int,
        max_rows: int,
        max_sequences: int,
        page_size: int,
        max_positions: int,
        int8_activations: bool,
        kv_format: str,
        weight_bytes: int,
        share_prefixes: bool = True,
        packed: npt.NDArray[np.uint8] | None = None,
    ) -> None: ...
    def add_buffer(self, width: int, logits_rows: bool) -> int: ...
    def add_matrix(self, weight: Weight, paired: bool, head: bool) -> int: ...
    def add_experts(self, weight: Weight, paired: bool) -> int: ...
    def add_vector(self, data: npt.NDArray[np.float32], paired: bool) -> int: ...
    def add_group(self, num_pages: int, window: int) -> int: ...
    def add_heads_cache(self, group: int, layers: int, kv_heads: int, head_dim: int, wide: list[int]) -> int: ...
    def set_scales(self, cache: int, kv_format: str, scales: npt.NDArray[np.float32]) -> None: ...
    def tag_pages(self, group: int, tags: npt.NDArray[np.int64], owners: npt.NDArray[np.uint64]) -> None: ...
    def add_latent_cache(self, group: int, layers: int, latent: int, rope: int) -> int: ...
    def add_index_cache(self, group: int, layers: int, dim: int) -> int: ...
    def add_rope(
        self,
        cos: npt.NDArray[np.float32],
        sin: npt.NDArray[np.float32],
        query_scale: npt.NDArray[np.float32] | None,
    ) -> int: ...
    def embed(self, out: int, weight: int, scale: float, index: str) -> None: ...
    def rms_norm(self, out: int, x: int, weight: int, eps: float) -> None: ...
    def layer_norm(self, out: int, x: int, weight: int, bias: int, eps: float) -> None: ...
    def linear(
        self,
        *,
        out: int,
        x: int,
        weight: int,
        bias: int,
        norm: int,
        eps: float,
        gather: bool,
        epilogue: str,
        residual: int,
        gather_residual: bool,
        wide: bool,
        reuse: bool,
    ) -> None: ...
    def attention(
        self,
        *,
        out: int,
        qkv: int,
        cache: int,
        layer: int,
        heads: int,
        rope: int,
        scale: float,
        q_norm: HeadNorm,
        k_norm: HeadNorm,
        causal: bool,
    ) -> None: ...
    def route(
        self,
        *,
        out: int,
        logits: int,
        bias: int,
        experts: int,
        top_k: int,
        scoring: str,
        groups: int,
        top_groups: int,
        normalise: bool,
        epsilon: float,
        factor: float,
    ) -> None: ...
    def experts(
        self,
        *,
        out: int,
        x: int,
        routes: int,
        gate_up: int,
        down: int,
        top_k: int,
        norm: int,
        eps: float,
        residual: int,
    ) -> None: ...
    def head_linear(self, out: int, x: int, weights: int) -> None: ...
    def latent_attention(
        self,
        *,
        out: int,
        q_latent: int,
        q: int,
        kv: int,
        selected: int,
        cache: int,
        layer: int,
        heads: int,
        latent: int,
        rope: int,
        norm: int,
        scale: float,
        eps: float,
    ) -> None: ...
    def select_tokens(
        self,
        *,
        out: int,
        q: int,
        k: int,
        weights: int,
        cache: int,
        layer: int,
        heads: int,
        rope: int,
        norm: int,
        norm_bias: int,
        eps: float,
    ) -> None: ...
    def glu(self, out: int, gate_up: int, kind: str) -> None: ...
    def gelu(self, out: int, x: int) -> None: ...
    def tanh(self, out: int, x: int) -> None: ...
    def add(self, out: int, a: int, b: int) -> None: ...
    def take_rows(self, out: int, x: int) -> None: ...
    def mean_rows(self, out: int, x: int) -> None: ...
    def logits(self, x: int) -> None: ...
    def begin_prefill_ops(self) -> None: ...
    def finish(self) -> None: ...
    def pin_threads(self, cores: list[int]) -> None: ...
    def read_tables(
        self,
        page_tables: Sequence[npt.NDArray[np.int32]],
        expected: Sequence[tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]],
    ) -> None: ...
    def begin(
        self,
        tokens: npt.NDArray[np.int32],
        starts: npt.NDArray[np.int32],
        contexts: npt.NDArray[np.int32],
        slots: npt.NDArray[np.int32],
        readers: npt.NDArray[np.uint64],
        logits_rows: npt.NDArray[np.int32],
        want_logits: bool,
        prefill: bool = False,
        first_result: int = 0,
        types: npt.NDArray[np.int32] | None = None,
    ) -> tuple[int, ...]: ...
    @property
    def check_seconds(self) -> float: ...
    def finish_step(self) -> None: ...
    def choose(
        self,
        samplers: Sequence[Sampler],
        rows: Sequence[int],
        positions: Sequence[int],
        masks: npt.NDArray[np.uint32],
        masked: Sequence[int],
        after: Sequence[int],
    ) -> list[int | tuple[int, float, list[tuple[int, float]]]]: ...
    def export_pages(
        self, group: int, pages: npt.NDArray[np.int32], kv_format: str, out: npt.NDArray[np.uint8]
    ) -> None: ...
    def import_pages(self, group: int, pages: npt.NDArray[np.int32], data: npt.NDArray[np.uint8]) -> None: ...
    def profile(self) -> npt.NDArray[np.float64]: ...
    def weights_view(self) -> npt.NDArray[np.uint8]: ...
    def greedy_view(self) -> npt.NDArray[np.int32]: ...
    def logits_view(self) -> npt.NDArray[np.float32]: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def kv_bytes(self) -> int: ...
