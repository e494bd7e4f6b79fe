"""BERT against transformers, on both executors: a tiny one from the same weights, and the settings beside it."""

from pathlib import Path

import numpy as np
import pytest

from trimaran.base.errors import CheckpointError, UnsupportedError
from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.kernels.open import open_executor
from trimaran.kernels.step import ExecutorOptions, StepInputs

from .running import load_path
from .tiny_bert import BERT, POOLING, SCORER, write_bert, write_modules

OPTIONS = ExecutorOptions(
    KVFormat.FP32, ActivationFormat.FP32, num_pages=64, max_rows=512, max_sequences=16, threads=2, page_tags=False
)


def vectors(
    folder: Path, executor: str, fmt: WeightFormat, texts: list[np.ndarray], seconds: list[int] | None = None
) -> np.ndarray:
    model = load_path(folder, fmt)
    runs = open_executor(executor, model.program, model.weights, OPTIONS)
    made = []
    types = None if seconds is None else [np.arange(len(t)) >= s for t, s in zip(texts, seconds, strict=True)]
    for part in (slice(4), slice(4, None)):
        together = texts[part]
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
            types=None if types is None else np.concatenate(types[part]).astype(np.int32),
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


@pytest.mark.parametrize("executor", ["reference", "native"])
def test_logits_of_pairs_are_those_of_transformers(tmp_path: Path, executor: str) -> None:
    write_bert(tmp_path, SCORER)
    with np.load(SCORER / "golden.npz") as golden:
        texts, wanted = np.split(golden["tokens"], np.cumsum(golden["lengths"])[:-1]), golden["logit"]
        seconds = golden["seconds"].tolist()
    got = vectors(tmp_path, executor, WeightFormat.FP32, texts, seconds)
    assert np.abs(got[:, 0] - wanted).max() <= 1e-5
    alike = vectors(tmp_path, executor, WeightFormat.FP32, texts, None)
    assert np.abs(alike[:, 0] - wanted).max() > 0.01, "which text a token is of must count"


@pytest.mark.parametrize("fmt", [WeightFormat.BF16, WeightFormat.INT8, WeightFormat.INT4])
def test_logits_of_native_are_those_of_the_reference_in_other_formats(tmp_path: Path, fmt: WeightFormat) -> None:
    write_bert(tmp_path, SCORER)
    texts = [np.arange(length, dtype=np.int32) for length in (3, 20, 2, 7, 90)]
    native, reference = (vectors(tmp_path, how, fmt, texts, [2, 9, 1, 3, 40]) for how in ("native", "reference"))
    assert np.abs(native - reference).max() <= 2e-5


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


def test_what_a_score_is_made_by(tmp_path: Path) -> None:
    def score(**config: object) -> str | None:
        encoder = load_path(write_bert(tmp_path, SCORER, **config), None).cfg.encoder
        assert encoder is not None
        return encoder.score

    identity, tanh = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
    assert score() == "sigmoid"
    assert score(sbert_ce_default_activation_function=identity) == "identity"
    assert score(sentence_transformers={"activation_fn": identity, "version": "4.0.1"}) == "identity"
    with pytest.raises(UnsupportedError, match="Tanh"):
        score(sentence_transformers={"activation_fn": tanh})
    with pytest.raises(UnsupportedError, match="3 labels"):
        score(id2label={"0": "a", "1": "b", "2": "c"})
    with pytest.raises(UnsupportedError, match="2 labels"):
        score(id2label=None)
    with pytest.raises(CheckpointError, match="tables"):
        score(type_vocab_size=1)
