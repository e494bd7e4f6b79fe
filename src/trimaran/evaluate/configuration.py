"""What is compared: a model's weights and pages in some formats, perhaps others while it prefills."""

from dataclasses import dataclass
from pathlib import Path

from trimaran.base.errors import ConfigError
from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.calibration.kv_ranges import scales_for
from trimaran.checkpoint import open_checkpoint
from trimaran.engine.sizing import kv_format_beside
from trimaran.evaluate.sequences import Sequences
from trimaran.kernels.kv_scales import KVScales
from trimaran.kernels.open import open_executor
from trimaran.kernels.program import Program
from trimaran.kernels.step import Executor, ExecutorOptions
from trimaran.kernels.wide_layers import Layer, keep_wide
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config

PAGE = 16
ROWS = 512  # most of a step
SLOTS = 128  # sequences that are open at once
POOL = 8192  # tokens that pages are there for, unless one sequence needs more
WANTED_VALUES = 2**24  # logits of a step: 64 MiB of fp32


@dataclass(frozen=True)
class Formats:
    """A model on this machine and how it is held. None: as ``serve`` would choose.

    ``scales`` is the file with those of a static page format; ``skip_layers`` stay bf16 (``kernels/wide_layers.py``).
    """

    model: Path
    weights: WeightFormat | None = None
    kv: KVFormat | None = None
    scales: str | None = None
    skip_layers: tuple[Layer, ...] = ()


@dataclass(frozen=True)
class Configuration:
    """``prefill``: where other formats, or another file, are used for the prompt than for the rest."""

    name: str
    formats: Formats
    prefill: Formats | None = None
    activations: ActivationFormat = ActivationFormat.INT8
    executor: str = "native"
    threads: int = 0


def open_sequences(configuration: Configuration, longest: int) -> Sequences:
    """Loads the model, twice where a configuration has two halves; sequences have at most ``longest`` tokens.

    Raises ``ConfigError`` where the halves are not of one model, and what loading raises.
    """
    decode, program, options = _open(configuration, configuration.formats, longest)
    if configuration.prefill is None:
        return Sequences(decode, options, longest, SLOTS)
    try:
        prefill, other, _ = _open(configuration, configuration.prefill, longest, exported=options.kv_scales)
    except BaseException:
        decode.close()
        raise
    if (other.vocab, other.groups) != (program.vocab, program.groups):
        decode.close()
        prefill.close()
        raise ConfigError(
            f"{configuration.prefill.model} and {configuration.formats.model} differ in vocabulary or cache"
        )
    return Sequences(decode, options, longest, SLOTS, prefill)


def _open(
    configuration: Configuration, formats: Formats, longest: int, exported: tuple[KVScales, ...] = ()
) -> tuple[Executor, Program, ExecutorOptions]:
    """``exported``: scales of the format that pages are handed over in, which a file's own give way to."""
    with open_checkpoint(formats.model) as checkpoint:
        model = read_config(checkpoint)
        program = keep_wide(build_program(model), formats.skip_layers)
        if longest > program.context:
            raise ConfigError(
                f"a sequence has {longest} tokens; {formats.model.name} has a context of {program.context}"
            )
        weights = load_weights(checkpoint, model, program, formats.weights)
        kv = formats.kv or kv_format_beside(weights, configuration.activations, program.groups)
        scales = scales_for(kv, checkpoint, program, formats.scales)
        options = ExecutorOptions(
            kv_format=kv,
            activations=configuration.activations,
            num_pages=1 + -(-max(longest, POOL) // PAGE),
            page_size=PAGE,
            max_rows=ROWS,
            max_sequences=max(SLOTS, min(ROWS, WANTED_VALUES // program.vocab)),
            threads=configuration.threads,
            kv_scales=exported + tuple(each for each in scales if each.fmt not in {other.fmt for other in exported}),
        )
        executor = open_executor(configuration.executor, program, weights, options)
    return executor, program, options
