"""What is compared: a model's weights and pages in some formats, perhaps others while it prefills."""

from dataclasses import dataclass
from pathlib import Path

from trimaran.base.errors import ConfigError
from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.calibration.kv_ranges import scales_for
from trimaran.checkpoint import open_checkpoint
from trimaran.engine.sizing import kv_format_beside
from trimaran.evaluate.sequences import Sequences
from trimaran.kernels.open import open_executor
from trimaran.kernels.program import Program
from trimaran.kernels.step import Executor, ExecutorOptions
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config

PAGE = 16
ROWS = 512  # most of a step
SLOTS = 128  # sequences that are open at once
POOL = 8192  # tokens that pages are there for, unless one sequence needs more
WANTED_VALUES = 2**24  # logits of a step: 64 MiB of fp32


@dataclass(frozen=True)
class Formats:
    """A model on this machine and how it is held. None: as ``serve`` would choose."""

    model: Path
    weights: WeightFormat | None = None
    kv: KVFormat | None = None


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
        prefill, other, _ = _open(configuration, configuration.prefill, longest)
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


def _open(configuration: Configuration, formats: Formats, longest: int) -> tuple[Executor, Program, ExecutorOptions]:
    with open_checkpoint(formats.model) as checkpoint:
        model = read_config(checkpoint)
        program = build_program(model)
        if longest > program.context:
            raise ConfigError(
                f"a sequence has {longest} tokens; {formats.model.name} has a context of {program.context}"
            )
        weights = load_weights(checkpoint, model, program, formats.weights)
        held = dict.fromkeys(each.kv for each in (formats, configuration.formats) if each.kv is not None)
        options = ExecutorOptions(
            kv_scales=tuple(found for fmt in held for found in scales_for(fmt, checkpoint, program, None)),
            kv_format=formats.kv or kv_format_beside(weights, configuration.activations, program.groups),
            activations=configuration.activations,
            num_pages=1 + -(-max(longest, POOL) // PAGE),
            page_size=PAGE,
            max_rows=ROWS,
            max_sequences=max(SLOTS, min(ROWS, WANTED_VALUES // program.vocab)),
            threads=configuration.threads,
        )
        executor = open_executor(configuration.executor, program, weights, options)
    return executor, program, options
