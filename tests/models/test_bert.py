"""BERT against transformers, on both executors: a tiny one from the same weights, and the settings beside it."""

from pathlib import Path

import numpy as np
import pytest

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.kernels.open import open_executor
from trimaran.kernels.step import ExecutorOptions, StepInputs

from .running import load_path
from .tiny_bert import BERT, POOLING, write_bert, write_modules

OPTIONS = ExecutorOptions(
    KVFormat.FP32, ActivationFormat.FP32, num_pages=64, max_rows=512, max_sequences=16, threads=2, page_tags=False
)


def vectors(folder: Path, executor: str, fmt: WeightFormat, texts: list[np.ndarray]) -> np.ndarray:
    model = load_path(folder, fmt)
    runs = open_executor(executor, model.program, model.weights, OPTIONS)
    made = []
    for together in (texts[:4], texts[4:]):
        starts = np.cumsum([0, *map(len, together)], dtype=np.int32)
        table = np.zeros((len(together), 10), np.int32)
        pages = iter(range(1, 64))
        for row, text in zip(table, together, strict=True):
            row[: -(-len(text) // 16)] = [next(pages) for _ in range(-(-len(text) // 16))]
        step = StepInputs(
            tokens=np.concatenate(together),
            starts=starts,
            contexts=np.zeros(len(together), np.int32),
            slots=np.arange(len(together), dtype=np.int32),
            page_tables=(table,),
            logits_rows=starts[:-1].copy(),
            want_logits=True,
        )
        logits = runs.run(step).logits
        assert logits is not None
        made.append(logits.copy())
    runs.close()
    return np.concatenate(made)


@pytest.mark.parametrize("pooling", ["mean", "first"])
@pytest.mark.parametrize("executor", ["reference", "native"])
def test_vectors_are_those_of_transformers(tmp_path: Path, executor: str, pooling: str) -> None:
    write_modules(write_bert(tmp_path), POOLING[pooling])
    with np.load(BERT / "golden.npz") as golden:
        texts, wanted = np.split(golden["tokens"], np.cumsum(golden["lengths"])[:-1]), golden[pooling]
    got = vectors(tmp_path, executor, WeightFormat.FP32, texts)
    assert np.abs(got - wanted).max() <= 1e-5


@pytest.mark.parametrize("fmt", [WeightFormat.BF16, WeightFormat.INT8])
def test_native_is_the_reference_in_other_formats(tmp_path: Path, fmt: WeightFormat) -> None:
    write_bert(tmp_path)
    texts = [np.arange(length, dtype=np.int32) for length in (3, 20, 1, 7, 90)]
    native, reference = (vectors(tmp_path, executor, fmt, texts) for executor in ("native", "reference"))
    assert np.abs(native - reference).max() <= 2e-5


def test_the_files_beside_say_how_texts_are_pooled_and_how_long_they_are(tmp_path: Path) -> None:
    write_bert(tmp_path)
    plain = load_path(tmp_path, None).cfg
    assert plain.encoder is not None
    assert (plain.encoder.pooling, plain.encoder.normalised, plain.context) == ("mean", True, 160)
    write_modules(tmp_path, POOLING["first"], kinds=("Transformer", "Pooling"))
    told = load_path(tmp_path, None).cfg
    assert told.encoder is not None
    assert (told.encoder.pooling, told.encoder.normalised, told.context) == ("first", False, 150)


def test_what_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    write_modules(write_bert(tmp_path), "pooling_mode_max_tokens")
    with pytest.raises(UnsupportedError, match="pooling_mode_max_tokens"):
        load_path(tmp_path, None)
    write_modules(tmp_path, *POOLING.values())
    with pytest.raises(UnsupportedError, match="pooling_mode_cls_token and pooling_mode_mean_tokens"):
        load_path(tmp_path, None)
    write_modules(tmp_path, POOLING["mean"], kinds=("Transformer", "Pooling", "Dense"))
    with pytest.raises(UnsupportedError, match=r"modules\.json .*Dense"):
        load_path(tmp_path, None)
    (tmp_path / "modules.json").write_text('[{"type": "x"}]')
    with pytest.raises(CheckpointError, match=r"modules\.json"):
        load_path(tmp_path, None)


@pytest.mark.parametrize(
    "key", [{"position_embedding_type": "relative_key"}, {"is_decoder": True}, {"hidden_act": "relu"}]
)
def test_settings_that_change_the_result_are_refused(tmp_path: Path, key: dict[str, object]) -> None:
    write_bert(tmp_path, **key)
    with pytest.raises(UnsupportedError, match=next(iter(key))):
        load_path(tmp_path, None)
