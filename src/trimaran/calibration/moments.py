"""Second moments of what a model's matrices are multiplied with, over calibration texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from trimaran.calibration.forward import Forward
from trimaran.calibration.weights import StreamedWeights
from trimaran.checkpoint import Checkpoint
from trimaran.checkpoint.checkpoint import Kind
from trimaran.kernels.program import Program
from trimaran.kernels.step import Float32
from trimaran.models.config import ModelConfig
from trimaran.models.names import Part
from trimaran.models.registry import build_program, read_config
from trimaran.quant.logical import LogicalTensor, logical_tensors


@dataclass(frozen=True)
class Squares:
    """``mean`` ``[columns]``: the mean square of each input over ``rows`` tokens; zeros where there was none."""

    rows: int
    mean: Float32


Progress = Callable[[int, int | None], None]  # bytes of weights that were multiplied with, and in all


def input_squares(
    checkpoint: Checkpoint,
    texts: Sequence[Sequence[int]],
    report: Progress | None = None,
    renamed: Sequence[LogicalTensor] | None = None,
) -> dict[tuple[str, int], Squares]:
    """The squares of every matrix's inputs, by the tensor's name without what multimodal models put before it
    (``models.names.text_name``), and the piece's number (0 but for GGUF's stacks of experts).

    ``texts`` are token ids, each text from its first position on. Of experts only the tokens that were routed to them
    count. ``renamed`` are the tensors of a GGUF file by the names of safetensors files, if these shall be used.
    Embedding and output matrix have no entry. Raises as ``read_config`` does, ``CheckpointError`` on tensors
    that are missing or misshapen.
    """
    cfg = read_config(checkpoint)
    program = build_program(cfg)
    tensors = logical_tensors(checkpoint) if renamed is None else renamed
    kind = checkpoint.kind if renamed is None else "safetensors"
    weights = _Squares(tensors, kind, cfg, program, checkpoint.release, report)
    Forward(program, weights, texts).run()
    return weights.found


class _Squares(StreamedWeights):
    def __init__(
        self,
        tensors: Sequence[LogicalTensor],
        kind: Kind,
        cfg: ModelConfig,
        program: Program,
        release: Callable[[], None],
        report: Progress | None,
    ) -> None:
        super().__init__(tensors, kind, cfg, program, release)
        self.found: dict[tuple[str, int], Squares] = {}
        self._report = report
        self._done = 0
        self._total = 4 * sum(
            prod(spec.shape) for spec in program.weights.values() if spec.matrix and spec.name not in _TABLES
        )

    def parts(self, parts: Sequence[Part], columns: tuple[int, ...], inputs: Float32) -> list[Float32]:
        mean = np.einsum("ij,ij->j", inputs, inputs) / np.float32(max(1, len(inputs)))
        self.found |= {(part.tensor, part.piece): Squares(len(inputs), mean) for part in parts}
        found = super().parts(parts, columns, inputs)
        self._done += sum(values.nbytes for values in found)
        if self._report is not None:
            self._report(self._done, self._total)
        return found


_TABLES = ("model.embed_tokens", "lm_head")  # which this forward multiplies nothing with
