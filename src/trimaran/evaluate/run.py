"""Puts one suite to a reference and to other configurations, and compares what they say."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from trimaran.evaluate.choices import Answer, ask
from trimaran.evaluate.configuration import Configuration, open_sequences
from trimaran.evaluate.divergence import Summary, cut, distances, summarise
from trimaran.evaluate.paired import Loss, paired_loss
from trimaran.evaluate.sequences import Sequences
from trimaran.evaluate.suite import Suite
from trimaran.evaluate.validity import Written, write
from trimaran.text.tokenizer import Tokenizer

Report = Callable[[str], None]


@dataclass(frozen=True)
class Recital:
    """Needles of one length or depth: shares that were recited word by word."""

    needles: int
    reference: float
    ours: float


@dataclass(frozen=True)
class Validity:
    """Shares of the prompts of one kind. ``same``: both answered the same."""

    prompts: int
    reference_parses: float
    reference_fits: float
    parses: float
    fits: float
    same: float


@dataclass(frozen=True)
class Cost:
    """What one configuration costs against the reference; what was not measured is None or empty.

    ``tasks`` has the sets, and ``all`` of them together.
    """

    name: str
    divergence: Summary | None
    tasks: dict[str, Loss]
    needle: Loss | None
    needle_lengths: dict[int, Recital]
    needle_depths: dict[float, Recital]
    validity: dict[str, Validity]
    code: Loss | None


@dataclass(frozen=True)
class _Answers:
    tasks: list[Answer]
    needles: list[Answer]
    code: list[Answer]
    written: list[Written]


def measure(
    reference: Configuration,
    candidates: Sequence[Configuration],
    suite: Suite,
    tokenizer: Tokenizer,
    eos_ids: Collection[int],
    report: Report = lambda _: None,
) -> list[Cost]:
    """What each of ``candidates`` costs. Two models are in memory at a time; ``report`` hears what is being done."""
    stops = {*eos_ids, *(token for token in range(tokenizer.vocab_size) if b"\n" in tokenizer.token_bytes(token))}
    costs = []
    report(f"loading {reference.name}")
    theirs = open_sequences(reference, suite.longest)
    try:
        expected = _answers(theirs, suite, tokenizer, stops, reference.name, report)
        for candidate in candidates:
            report(f"loading {candidate.name}")
            ours = open_sequences(candidate, suite.longest)
            try:
                summary = _divergence(theirs, ours, suite, candidate.name, report)
                found = _answers(ours, suite, tokenizer, stops, candidate.name, report)
            finally:
                ours.close()
            costs.append(_cost(candidate.name, suite, summary, expected, found))
    finally:
        theirs.close()
    return costs


def _divergence(theirs: Sequences, ours: Sequences, suite: Suite, name: str, report: Report) -> Summary | None:
    if not suite.texts:
        return None
    in_two = theirs.prefill is not None or ours.prefill is not None
    texts = cut(suite.texts) if in_two else suite.texts
    progress = _counter(report, name, "texts", len(texts))
    return summarise(distances(theirs, ours, texts, progress))


def _answers(
    sequences: Sequences, suite: Suite, tokenizer: Tokenizer, stops: Collection[int], name: str, report: Report
) -> _Answers:
    needles = [each.question for each in suite.needles]
    return _Answers(
        ask(sequences, suite.tasks, _counter(report, name, "items", len(suite.tasks))),
        ask(sequences, needles, _counter(report, name, "needles", len(needles))),
        ask(sequences, suite.code, _counter(report, name, "code completions", len(suite.code))),
        write(sequences, suite.prompts, tokenizer, stops, _counter(report, name, "answers", len(suite.prompts))),
    )


def _counter(report: Report, name: str, what: str, total: int) -> Callable[[int], None]:
    return lambda done: report(f"{name}: {done:,} of {total:,} {what}")


def _cost(name: str, suite: Suite, summary: Summary | None, expected: _Answers, found: _Answers) -> Cost:
    groups = [each.group for each in suite.tasks]
    tasks = {group: _loss(expected.tasks, found.tasks, [each == group for each in groups]) for group in groups}
    if groups:
        tasks["all"] = _loss(expected.tasks, found.tasks)
    lengths, depths = [each.length for each in suite.needles], [each.depth for each in suite.needles]
    return Cost(
        name,
        summary,
        tasks,
        _loss(expected.needles, found.needles) if suite.needles else None,
        {each: _recital(expected.needles, found.needles, [one == each for one in lengths]) for each in lengths},
        {each: _recital(expected.needles, found.needles, [one == each for one in depths]) for each in depths},
        {prompt.kind: _validity(prompt.kind, expected.written, found.written) for prompt in suite.prompts},
        _loss(expected.code, found.code) if suite.code else None,
    )


def _loss(theirs: Sequence[Answer], ours: Sequence[Answer], chosen: Sequence[bool] | None = None) -> Loss:
    chosen = chosen or [True] * len(ours)
    pairs = [(a.right, b.right) for a, b, of in zip(theirs, ours, chosen, strict=True) if of]
    return paired_loss([a for a, _ in pairs], [b for _, b in pairs])


def _recital(theirs: Sequence[Answer], ours: Sequence[Answer], chosen: Sequence[bool]) -> Recital:
    pairs = [(a.recited, b.recited) for a, b, of in zip(theirs, ours, chosen, strict=True) if of]
    return Recital(len(pairs), sum(a for a, _ in pairs) / len(pairs), sum(b for _, b in pairs) / len(pairs))


def _validity(kind: str, theirs: Sequence[Written], ours: Sequence[Written]) -> Validity:
    pairs = [(a, b) for a, b in zip(theirs, ours, strict=True) if a.kind == kind]
    count = len(pairs)
    return Validity(
        count,
        sum(a.parses for a, _ in pairs) / count,
        sum(a.fits for a, _ in pairs) / count,
        sum(b.parses for _, b in pairs) / count,
        sum(b.fits for _, b in pairs) / count,
        sum(a.text == b.text for a, b in pairs) / count,
    )
