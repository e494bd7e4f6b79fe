"""How close each configuration of an executor is to an independent float32 forward, and the bars it has to clear."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.bench.goldens import Golden, Score, score
from trimaran.checkpoint import Checkpoint
from trimaran.evaluate.measures import Float32
from trimaran.kernels.open import open_executor
from trimaran.kernels.step import Executor, ExecutorOptions, StepInputs
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config

CHUNK = 56  # prefill rows a step; no multiple of the page or of a kernel's tile, so that edges are met
ONE_BY_ONE = 64  # the text's last tokens, at most a quarter of them, are decoded one a step


@dataclass(frozen=True)
class Bars:
    """The least that a configuration must reach, over the mean of the texts."""

    mean_kl: float
    agreement: float = 0.0
    perplexity: float = 1.0  # largest relative change


@dataclass(frozen=True)
class Configuration:
    """What is measured: an executor and its formats. ``weights`` None keeps the file's own grids."""

    name: str
    weights: WeightFormat | None
    kv: KVFormat
    activations: ActivationFormat
    bars: Bars | None
    executor: str = "native"
    tokens: int | None = None  # use only the start of each text


CONFIGURATIONS = {
    each.name: each
    for each in (
        Configuration("exact", WeightFormat.FP32, KVFormat.FP32, ActivationFormat.FP32, Bars(mean_kl=2e-4)),
        Configuration("bf16", WeightFormat.BF16, KVFormat.FP32, ActivationFormat.FP32, Bars(2e-4, agreement=0.995)),
        Configuration("bf16-kv", WeightFormat.BF16, KVFormat.BF16, ActivationFormat.FP32, None),
        Configuration("auto", None, KVFormat.INT8, ActivationFormat.INT8, Bars(0.01, perplexity=0.01)),
        Configuration("auto-bf16-kv", None, KVFormat.BF16, ActivationFormat.INT8, Bars(0.01, perplexity=0.005)),
        Configuration("int8", WeightFormat.INT8, KVFormat.BF16, ActivationFormat.INT8, None),
        Configuration("int4", WeightFormat.INT4, KVFormat.BF16, ActivationFormat.INT8, None),
        Configuration(
            "reference", WeightFormat.FP32, KVFormat.FP32, ActivationFormat.FP32, Bars(2e-4), "reference", tokens=64
        ),
    )
}


@dataclass(frozen=True)
class Result:
    """One configuration over all texts."""

    configuration: Configuration
    scores: list[Score]

    @property
    def mean(self) -> Score:
        """The texts' mean, each text counting the same; ``max_kl`` is the largest of all."""
        scores = self.scores
        full = [each.full_kl for each in scores if each.full_kl is not None]
        return Score(
            name="mean",
            tokens=sum(each.tokens for each in scores),
            mean_kl=float(np.mean([each.mean_kl for each in scores])),
            max_kl=max(each.max_kl for each in scores),
            agreement=float(np.mean([each.agreement for each in scores])),
            disagreements=tuple(each for one in scores for each in one.disagreements),
            golden_perplexity=float(np.exp(np.mean([np.log(each.golden_perplexity) for each in scores]))),
            perplexity=float(np.exp(np.mean([np.log(each.perplexity) for each in scores]))),
            full_kl=float(np.mean(full)) if len(full) == len(scores) else None,
        )

    def misses(self) -> list[str]:
        """The bars that were not cleared, in words."""
        bars, mean, found = self.configuration.bars, self.mean, []
        if bars is None:
            return []
        if not mean.mean_kl <= bars.mean_kl:
            found.append(f"mean KL {mean.mean_kl:.2e} > {bars.mean_kl:.0e}")
        if not mean.agreement >= bars.agreement:
            found.append(f"top-1 agreement {mean.agreement:.2%} < {bars.agreement:.1%}")
        if not abs(mean.perplexity_ratio - 1) <= bars.perplexity:
            found.append(f"perplexity x {mean.perplexity_ratio:.4f}, more than {bars.perplexity:.0%} off")
        return found


def measure(
    checkpoint: Checkpoint,
    goldens: Sequence[Golden],
    configuration: Configuration,
    full: dict[str, Float32] | None = None,
    threads: int = 0,
) -> Result:
    """Runs every text through ``configuration``; ``full`` holds whole golden logits by text, where they are at hand."""
    texts = [golden.first(configuration.tokens or len(golden.tokens)) for golden in goldens]
    model = read_config(checkpoint)
    program = build_program(model)
    page_size = 16
    options = ExecutorOptions(
        kv_format=configuration.kv,
        activations=configuration.activations,
        num_pages=1 + max(-(-len(text.tokens) // page_size) for text in texts),
        page_size=page_size,
        max_rows=CHUNK,
        max_sequences=CHUNK,
        threads=threads,
    )
    weights = load_weights(checkpoint, model, program, configuration.weights)
    executor = open_executor(configuration.executor, program, weights, options)
    del weights
    try:
        scores = [
            score(text, forward(executor, text.tokens.tolist()), None if full is None else full[text.name])
            for text in texts
        ]
    finally:
        executor.close()
    return Result(configuration, scores)


def forward(executor: Executor, tokens: Sequence[int]) -> Iterator[Float32]:
    """Yields the logits of every position in order: first in chunks, then token by token."""
    tables = tuple(1 + np.arange(pages - 1, dtype=np.int32)[np.newaxis] for pages in executor.num_pages)
    chunked = len(tokens) - min(ONE_BY_ONE, len(tokens) // 4)
    context = 0
    while context < len(tokens):
        rows = min(CHUNK, chunked - context) if context < chunked else 1
        step = StepInputs(
            tokens=np.asarray(tokens[context : context + rows], np.int32),
            starts=np.asarray([0, rows], np.int32),
            contexts=np.asarray([context], np.int32),
            slots=np.asarray([0], np.int32),
            page_tables=tables,
            logits_rows=np.arange(rows, dtype=np.int32),
            want_logits=True,
        )
        logits = executor.run(step).logits
        assert logits is not None, "logits were asked for"
        yield logits
        context += rows
