"""The compiled sampler against the reference: the same tokens, in every instruction set, whatever the row."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.single_op import rows_step

from trimaran import _native
from trimaran.base import sampling as sampling_params
from trimaran.base.errors import RequestError
from trimaran.base.formats import CacheGroup, HeadsCache, WeightFormat
from trimaran.base.grammar import Grammar
from trimaran.base.messages import Token
from trimaran.base.sampling import SamplingParams
from trimaran.engine.constraints.matcher import NO_MASKS
from trimaran.engine.filters import LOG2E
from trimaran.engine.sampler import Sampler
from trimaran.engine.sampling import Asked, Sampling
from trimaran.kernels.native import NativeExecutor
from trimaran.kernels.null import NullExecutor, NullModel
from trimaran.kernels.program import Buffer, Embed, Linear, Logits, Program, TakeRows, WeightSpec
from trimaran.kernels.step import ExecutorOptions, StepOutputs
from trimaran.kernels.weights import Weight

PROMPT = [1, 2, 2]
STOPS = frozenset({5, 17})
KINDS = ("normal", "flat", "steep", "equal", "one", "ties", "masked", "huge", "rising")


def row_of(kind: str, vocab: int, seed: int) -> np.ndarray:
    """``masked`` and the like have finite entries only, as logits must."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(vocab)
    row = {
        "normal": noise * 3,
        "flat": noise * 1e-3,
        "steep": noise * 40,
        "equal": np.full(vocab, rng.normal()),
        "one": np.where(np.arange(vocab) == rng.integers(vocab), 3e38, -3e38),
        "ties": np.rint(noise * 2),
        "masked": np.where(rng.random(vocab) < 0.999, -1e30, noise),
        "huge": noise * 1e37,
        "rising": np.linspace(-30, 30, vocab),
    }[kind]
    return row.astype(np.float32)


@cache
def executor(vocab: int, isa: str, threads: int) -> NativeExecutor:
    """Its logits are whatever was written to them last; it holds up to eight rows."""
    x, taken, y = Buffer("x", 2), Buffer("taken", 2, logits_rows=True), Buffer("y", vocab, logits_rows=True)
    ops = (Embed(x, "table"), TakeRows(taken, x), Linear(y, taken, "head"), Logits(y))
    shapes = {"table": (1, 2), "head": (vocab, 2)}
    specs = {name: WeightSpec(name, shape, True) for name, shape in shapes.items()}
    program = Program("test", ops, specs, (CacheGroup((HeadsCache(1, 1, 16),)),), vocab, 2, 64)
    zeros = {n: Weight(n, WeightFormat.FP32, shape, np.zeros(shape, np.float32)) for n, shape in shapes.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIMARAN_ISA", isa)
        options = ExecutorOptions(num_pages=2, max_rows=8, max_sequences=8, threads=threads)
        return NativeExecutor(program, zeros, options)


def native(rows: np.ndarray, isa: str, threads: int = 1) -> tuple[Sampling, StepOutputs]:
    """A sampling and the outputs of a step whose logits were ``rows``."""
    runner = executor(rows.shape[1], isa, threads)
    outputs = runner.run(rows_step([0] * len(rows)))
    assert outputs.logits is not None
    outputs.logits[:] = rows
    return Sampling(runner, rows.shape[1]), StepOutputs(rows.argmax(-1).astype(np.int32), outputs.logits)


def tokens_of(
    params: SamplingParams,
    rows: np.ndarray,
    key: int,
    sampling: Sampling,
    outputs: StepOutputs,
    first: int,
    masks: np.ndarray | None = None,
) -> list[Token | None]:
    """A sequence of tokens of one request: row ``i``, under mask ``i``, gives the one at position ``first + i``."""
    sampler = sampling.sampler(params, prompt=PROMPT, stops=STOPS, key=key)
    tokens = []
    for i in range(len(rows)):
        asked = [Asked(None, 0)] * len(rows)
        asked[i] = Asked(sampler, first + i, None if masks is None else i)
        tokens.append(sampling.tokens(outputs, asked, NO_MASKS if masks is None else masks)[i])
    return tokens


def assert_same(
    params: SamplingParams,
    rows: np.ndarray,
    key: int,
    isa: str,
    *,
    first: int = len(PROMPT),
    masks: np.ndarray | None = None,
) -> None:
    reference = Sampler(params, prompt=PROMPT, stops=STOPS, key=key)
    expected = [reference.pick(row, first + i, None if masks is None else masks[i]) for i, row in enumerate(rows)]
    sampling, outputs = native(rows, isa)
    got = tokens_of(params, rows, key, sampling, outputs, first, masks)
    np.testing.assert_array_equal(outputs.logits, rows, "the logits were left changed")
    assert [mine and mine.id for mine in got] == [theirs and theirs.id for theirs in expected]
    for mine, theirs in zip(got, expected, strict=True):
        if mine is None or theirs is None or params.logprobs is None:
            assert mine == theirs
            continue
        assert mine.logprob == pytest.approx(theirs.logprob, rel=1e-12)
        assert mine.top is not None
        assert theirs.top is not None
        assert [i for i, _ in mine.top] == [i for i, _ in theirs.top]
        assert [p for _, p in mine.top] == pytest.approx([p for _, p in theirs.top], rel=1e-12)


options = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 1e-9, 0.1, 0.7, 1.0, 1.5, 100.0]),
        "top_k": st.sampled_from([0, 0, 1, 2, 40, 100, 900, 10**9]),
        "top_p": st.sampled_from([1.0, 1.0, 1e-9, 0.3, 0.9, 0.999, 1 - 1e-12]),
        "min_p": st.sampled_from([0.0, 0.0, 1e-6, 0.05, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 0.5, 1.3]),
        "presence_penalty": st.sampled_from([0.0, 0.0, -2.0, 1.1]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.7, 2.0]),
        "logit_bias": st.sampled_from([{}, {}, {3: 100.0, 0: -100.0}, {17: 5.5, 1: -0.25}]),
        "min_tokens": st.sampled_from([0, 0, 2]),
        "logprobs": st.sampled_from([None, None, 0, 1, 20]),
    }
)


@pytest.mark.parametrize("isa", _native.usable_isas())
@settings(max_examples=250, deadline=None)
@given(
    chosen=options,
    kind=st.sampled_from(KINDS),
    vocab=st.sampled_from([33, 64, 500, 1025, 5000]),
    key=st.integers(-(2**63), 2**63 - 1),
    seed=st.integers(0, 5),
)
def test_every_option_gives_the_reference_s_tokens(isa, chosen, kind, vocab, key, seed):
    rows = np.stack([row_of(kind, vocab, seed + i) for i in range(4)])
    assert_same(SamplingParams(**chosen), rows, key, isa)


def masks_of(density: str, rows: int, vocab: int, seed: int) -> np.ndarray:
    """Rows of bits, those past the vocabulary set too: nothing may look at them."""
    rng = np.random.default_rng(seed)
    allowed = rng.random((rows, -(-vocab // 32) * 32)) < {"few": 3 / vocab, "half": 0.5, "most": 0.99}.get(density, 0)
    if density == "stops":
        allowed[:, sorted(STOPS)] = True
    elif density != "none":
        allowed[np.arange(rows), rng.integers(vocab, size=rows)] = True
    allowed[:, vocab:] = True
    return np.packbits(allowed, axis=1, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("isa", _native.usable_isas())
@settings(max_examples=200, deadline=None)
@given(
    chosen=options,
    kind=st.sampled_from(KINDS),
    vocab=st.sampled_from([33, 64, 500, 1025, 5000]),
    density=st.sampled_from(["none", "few", "half", "most", "stops"]),
    key=st.integers(-(2**63), 2**63 - 1),
    seed=st.integers(0, 5),
)
def test_masked_rows_give_the_reference_s_tokens(isa, chosen, kind, vocab, density, key, seed):
    rows = np.stack([row_of(kind, vocab, seed + i) for i in range(4)])
    params = SamplingParams(**chosen, grammar=Grammar("regex", "a"))  # else a greedy one would have no sampler
    assert_same(params, rows, key, isa, masks=masks_of(density, 4, vocab, seed))


@pytest.mark.parametrize("threads", [1, 3])
def test_masks_belong_to_their_rows(threads):
    """Rows with and without a mask beside each other; the masks' order is not that of the rows."""
    vocab = 1000
    rows = np.stack([row_of("normal", vocab, seed) for seed in range(8)])
    masks = masks_of("few", 3, vocab, 9)
    places = [None, 2, None, 0, 1, None, 2, None]
    sampling, outputs = native(rows, _native.usable_isas()[0], threads)
    params = SamplingParams(temperature=0.9, logprobs=3)
    asked = [
        Asked(sampling.sampler(params, prompt=PROMPT, stops=STOPS, key=7), 10 + row, place)
        for row, place in enumerate(places)
    ]
    for row, (token, place) in enumerate(zip(sampling.tokens(outputs, asked, masks), places, strict=True)):
        reference = Sampler(params, prompt=PROMPT, stops=STOPS, key=7)
        expected = reference.pick(rows[row], 10 + row, None if place is None else masks[place])
        assert token is not None
        assert expected is not None
        assert token.id == expected.id
        assert token.logprob == pytest.approx(expected.logprob, rel=1e-12)


def test_the_compiled_sampler_checks_its_masks():
    rows = np.stack([row_of("normal", 100, 0)])
    sampling, _ = native(rows, _native.usable_isas()[0])
    sampler = sampling.sampler(SamplingParams(), prompt=PROMPT, stops=STOPS, key=0)
    runner = executor(100, _native.usable_isas()[0], 1)
    wrong = [
        (np.zeros((1, 3), np.uint32), [0]),  # a word too few
        (np.zeros((1, 4), np.uint32), [1]),
        (np.zeros((1, 4), np.uint32), [-2]),
        (np.zeros((1, 4), np.uint32), [0, 0]),
    ]
    for masks, masked in wrong:
        with pytest.raises(ValueError, match="mask"):
            runner.choose([sampler], [0], [3], masks, masked)
    with pytest.raises(TypeError):
        runner.choose([sampler], [0], [3], np.zeros((1, 4), np.int32), [0])


def numpy_only(rows: np.ndarray) -> tuple[Sampling, StepOutputs]:
    """As ``native``, for the definition."""
    vocab = rows.shape[1]
    runner = NullExecutor(NullModel(vocab=vocab).program(), {}, ExecutorOptions(num_pages=1))
    return Sampling(runner, vocab), StepOutputs(rows.argmax(-1).astype(np.int32), rows)


@pytest.mark.parametrize("threads", [0, 1, 3])
@settings(max_examples=60, deadline=None)
@given(
    chosen=options,
    kind=st.sampled_from(KINDS),
    density=st.sampled_from([None, "few", "half"]),
    right=st.lists(st.integers(0, 3), min_size=1, max_size=2),
    seed=st.integers(0, 5),
)
def test_rows_of_drafts_give_the_tokens_of_steps_of_their_own(threads, chosen, kind, density, right, seed):
    """Two steps, the second from where the drafts of the first were wrong: what was thrown away is not remembered.
    Without threads: by the definition."""
    vocab, most = 200, 3
    params = SamplingParams(**chosen, grammar=Grammar("regex", "a"))  # else a greedy one would have no sampler
    rows = np.stack([row_of(kind, vocab, seed + i) for i in range(2 * (most + 1))])
    masks = NO_MASKS if density is None else masks_of(density, len(rows), vocab, seed)
    wanted = []
    for key in range(len(right)):
        reference = Sampler(params, prompt=PROMPT, stops=STOPS, key=key)
        picked = [reference.pick(row, 10 + i, masks[i] if len(masks) else None) for i, row in enumerate(rows)]
        wanted.append([token.id if token else -1 for token in picked])
    if any(-1 in tokens for tokens in wanted):
        return  # the sequence would have failed
    sampling = (native(rows, _native.usable_isas()[0], threads) if threads else numpy_only(rows))[0]
    samplers = [sampling.sampler(params, prompt=PROMPT, stops=STOPS, key=key) for key in range(len(right))]
    firsts = [0] * len(right)
    for _ in range(2):
        asked: list[Asked] = []
        for sampler, tokens, first, good in zip(samplers, wanted, firsts, right, strict=True):
            draft = [*tokens[first : first + good], (tokens[first + good] + 1) % vocab, 0, 0][:most]
            for place, after in enumerate([None, *draft], first):
                asked.append(Asked(sampler, 10 + place, place if len(masks) else None, after))
        logits = np.stack([rows[ask.position - 10] for ask in asked])
        outputs = (native(logits, _native.usable_isas()[0], threads) if threads else numpy_only(logits))[1]
        found = sampling.tokens(outputs, asked, masks)
        for number, (tokens, first, good) in enumerate(zip(wanted, firsts, right, strict=True)):
            mine = found[number * (most + 1) : number * (most + 1) + good + 1]
            assert [token and token.id for token in mine] == tokens[first : first + good + 1]
            firsts[number] += good + 1


def test_a_drafted_row_follows_one_of_its_sampler():
    rows = np.stack([row_of("normal", 100, 0)] * 2)
    sampling, _ = native(rows, _native.usable_isas()[0])
    one, other = (sampling.sampler(SamplingParams(), prompt=PROMPT, stops=STOPS, key=key) for key in (0, 1))
    runner = executor(100, _native.usable_isas()[0], 1)
    runner.choose([one, one], [0, 1], [3, 4], after=[-1, 7])
    for samplers, after in (([one, other], [-1, 7]), ([one, one], [7, 7]), ([one, one], [-1])):
        with pytest.raises(ValueError, match=r"drafted row|after and rows"):
            runner.choose(samplers, [0, 1], [3, 4], after=after)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "chosen",
    [
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.0, "top_k": 40, "logprobs": 5},
        {"temperature": 1.3, "top_k": 5000, "top_p": 0.99, "min_p": 0.001, "frequency_penalty": 0.3},
    ],
)
def test_long_rows(kind, chosen):
    rows = np.stack([row_of(kind, 151_936, i) for i in range(2)])
    assert_same(SamplingParams(**chosen), rows, 11, _native.usable_isas()[0])


@pytest.mark.parametrize("chosen", [{}, {"top_p": 0.9}, {"top_k": 30}, {"min_p": 0.02}])
def test_draws_follow_the_distribution(chosen):
    """Pearson's chi-square over 20,000 draws; the 0.1 % point of 29 degrees of freedom is 58."""
    vocab, draws = 30, 20_000
    row = row_of("normal", vocab, 1) / 3
    weights = np.exp(row.astype(np.float64))
    order = np.argsort(-weights)
    if "top_p" in chosen:
        kept = np.searchsorted(np.cumsum(weights[order]), chosen["top_p"] * weights.sum()) + 1
        weights[order[kept:]] = 0
    weights[weights < chosen.get("min_p", 0) * weights.max()] = 0
    sampling, outputs = native(row[np.newaxis], _native.usable_isas()[0])
    sampler = sampling.sampler(SamplingParams(**chosen), prompt=PROMPT, stops=frozenset(), key=5)
    picked = [sampling.tokens(outputs, [Asked(sampler, position)])[0] for position in range(draws)]
    counts = np.bincount([token.id for token in picked if token is not None], minlength=vocab)
    expected = draws * weights / weights.sum()
    assert counts[expected == 0].sum() == 0
    some = expected > 0
    assert ((counts - expected)[some] ** 2 / expected[some]).sum() < 58


@pytest.mark.parametrize("isa", _native.usable_isas())
@pytest.mark.parametrize("vocab", [500, 513, 1030])
def test_the_row_s_first_entry_is_not_seen_in_its_last_block(isa, vocab):
    """The last block is shorter than a vector's multiple; top_k looks at the largest entry of every block."""
    row = np.full(vocab, 0.5, np.float32)
    row[0] = 1.1
    for key in range(10):
        assert_same(SamplingParams(temperature=0.7, top_k=2), row[np.newaxis], key, isa)


def test_the_nucleus_ends_where_its_mass_is_just_reached():
    """Weights 1, 1/2, 1/4, 1/4: the first is half of them."""
    row = np.array([-2, -1, 0, -2], np.float32)
    for key in range(20):
        assert_same(SamplingParams(temperature=LOG2E, top_p=0.5), row[np.newaxis], key, _native.usable_isas()[0])


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_token_does_not_depend_on_its_neighbours_or_the_threads(threads):
    rows = np.stack([row_of("normal", 3000, seed) for seed in range(8)])
    sampling, outputs = native(rows, _native.usable_isas()[0], threads)
    params = SamplingParams(temperature=0.9, top_p=0.95, logprobs=2)

    def samplers() -> list[Any]:
        return [sampling.sampler(params, prompt=PROMPT, stops=STOPS, key=key) for key in range(8)]

    alone = [tokens_of(params, rows, key, sampling, outputs, 40)[key] for key in range(8)]
    together = [sampling.tokens(outputs, [Asked(s, 40 + i) for i, s in enumerate(samplers())]) for _ in range(20)]
    assert all(tokens == alone for tokens in together)


def test_rows_that_are_not_finite_give_no_token_and_leave_the_others_alone():
    rows = np.stack([row_of("normal", 100, seed) for seed in range(4)])
    rows[1, 99], rows[2, 3] = np.nan, -np.inf
    sampling, outputs = native(rows, _native.usable_isas()[0])
    s = [sampling.sampler(SamplingParams(logprobs=1), prompt=PROMPT, stops=STOPS, key=1) for _ in rows]
    tokens = sampling.tokens(outputs, [Asked(sampler, 5) for sampler in s])
    assert [token is None for token in tokens] == [False, True, True, False]
    reference = Sampler(SamplingParams(), prompt=PROMPT, stops=STOPS, key=1)
    assert reference.pick(rows[1], 5) is None
    assert reference.pick(rows[2], 5) is None


def numpy_sampling(vocab: int) -> Sampling:
    model = NullModel(vocab=vocab)
    return Sampling(NullExecutor(model.program(), {}, ExecutorOptions(num_pages=2), model), vocab)


def test_greedy_needs_no_sampler_unless_an_option_does():
    sampling = numpy_sampling(100)

    def made(**params: Any) -> Any:
        return sampling.sampler(SamplingParams(**params), prompt=PROMPT, stops=STOPS, key=0)

    assert made(temperature=0) is None
    assert made(temperature=0, logprobs=0) is not None
    assert made() is not None
    row = row_of("normal", 100, 0)
    outputs = StepOutputs(np.array([row.argmax(), -1, 7], np.int32), np.stack([row] * 3))
    tokens = sampling.tokens(outputs, [Asked(made(temperature=0, logprobs=0), 3), Asked(None, 3), Asked(None, 9)])
    assert tokens[0] is not None
    assert (tokens[0].id, tokens[1], tokens[2]) == (row.argmax(), None, Token(7))


def test_options_that_do_not_fit_the_vocabulary_are_refused():
    sampling = numpy_sampling(20)
    for params in ({"logit_bias": {20: 1.0}}, {"stop_token_ids": (20,)}):
        with pytest.raises(RequestError, match="20"):
            sampling.sampler(SamplingParams(**params), prompt=PROMPT, stops=STOPS, key=0)
    with pytest.raises(RequestError, match="min_tokens"):
        sampling.sampler(SamplingParams(min_tokens=1), prompt=PROMPT, stops=frozenset(range(20)), key=0)


RANGES = [(name, bound) for name, *bounds in sampling_params.RANGES if name != "n" for bound in bounds]


@pytest.mark.parametrize(("name", "bound"), RANGES)
def test_an_option_at_the_end_of_its_range_is_taken(name, bound):
    """What the server lets in must not be what ends the engine."""
    row = row_of("normal", 600, 0)
    params = SamplingParams(**{"temperature": 1.0, "max_tokens": None, "seed": 1, name: bound})
    theirs = Sampler(params, prompt=PROMPT, stops=STOPS, key=params.seed or 0).pick(row, 3)
    sampling, outputs = native(row[None], _native.usable_isas()[0])
    sampler = sampling.sampler(params, prompt=PROMPT, stops=STOPS, key=params.seed or 0)
    if sampler is not None:
        assert sampling.tokens(outputs, [Asked(sampler, 3)]) == [theirs]


def native_sampler(**changed: Any) -> _native.Sampler:
    options: dict[str, Any] = {"greedy": False, "sharpness": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    options |= {"repetition": 1.0, "presence": 0.0, "frequency": 0.0, "first_stop": 0, "stops": []}
    options |= {"bias_ids": [], "bias": [], "logprobs": -1, "key": 0, "prompt": []}
    return _native.Sampler(**options | changed)


@pytest.mark.parametrize(
    "changed", [{"bias_ids": [1]}, {"top_p": 0.0}, {"min_p": 1.5}, {"min_p": np.nan}, {"sharpness": np.inf}]
)
def test_the_core_makes_no_sampler_that_could_not_draw(changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"bias|range"):
        native_sampler(**changed)


@pytest.mark.parametrize("token", [-1, 100])
@pytest.mark.parametrize("where", ["stops", "bias_ids", "prompt"])
def test_the_core_touches_no_logit_outside_the_row(where: str, token: int) -> None:
    native(np.stack([row_of("normal", 100, 0)]), _native.usable_isas()[0])
    runner = executor(100, _native.usable_isas()[0], 1)
    bad = native_sampler(**{where: [token], "bias": [1.0] * (where == "bias_ids"), "presence": 1.0})
    with pytest.raises(ValueError, match="ids out of range"):
        runner.choose([bad], [0], [5])


def test_an_end_that_the_model_cannot_say_is_no_stop():
    rows = np.stack([row_of("normal", 100, 0)])
    sampling, outputs = native(rows, _native.usable_isas()[0])
    params = SamplingParams(min_tokens=2, seed=1)
    bare, beyond = (sampling.sampler(params, prompt=PROMPT, stops=stops, key=1) for stops in (STOPS, STOPS | {100}))
    assert sampling.tokens(outputs, [Asked(bare, 3)]) == sampling.tokens(outputs, [Asked(beyond, 3)])
