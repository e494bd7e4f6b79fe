"""Sets up the subjects of a benchmark and runs it: the engine, its executor alone, and peers."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from trimaran.base.errors import ConfigError
from trimaran.base.formats import ActivationFormat, KVFormat, WeightFormat
from trimaran.bench.bare import BareExecutor
from trimaran.bench.cases import CHUNK, Case, Subject, cache_need
from trimaran.bench.compare import Report, compare
from trimaran.bench.floor import count_work
from trimaran.bench.in_process import InProcessEngine
from trimaran.bench.machine import Machine, usable_cores
from trimaran.bench.over_http import OwnServer
from trimaran.bench.peer_process import PeerOptions
from trimaran.bench.peers import Peers, open_peers
from trimaran.calibration.kv_ranges import scales_for
from trimaran.checkpoint import open_checkpoint
from trimaran.engine.config import EngineConfig
from trimaran.engine.load import load_engine
from trimaran.engine.sizing import kv_format_beside
from trimaran.kernels.open import open_executor
from trimaran.kernels.program import Program
from trimaran.kernels.step import ExecutorOptions
from trimaran.models.load import load_weights
from trimaran.models.registry import build_program, read_config

PAGE = 16


@dataclass(frozen=True)
class Setup:
    """What is measured and how. ``over_http`` measures a server of ours too."""

    model: Path
    weight_format: WeightFormat | None = None
    kv_format: KVFormat | None = None
    activations: ActivationFormat = ActivationFormat.INT8
    threads: int = 0
    overlap: bool = True
    rounds: int = 3
    peers: Peers = field(default_factory=Peers)
    over_http: bool = False


def run(setup: Setup, cases: Sequence[Case], progress: Callable[[str], None]) -> Report:
    """Loads the model, measures ``cases`` and returns the report; raises ``TrimaranError``."""
    threads = setup.threads or usable_cores()
    needs = [cache_need(case) for case in cases]
    longest = max(tokens for tokens, _ in needs)
    sequences = max(count for _, count in needs)
    pages = max(_pages(max(tokens, longest if count == 1 else 0)) * count for tokens, count in needs)
    progress(f"loading {setup.model.name}")
    with ExitStack() as stack:
        checkpoint = stack.enter_context(open_checkpoint(setup.model))
        model = read_config(checkpoint)
        if longest > model.context:
            raise ConfigError(f"the longest case needs {longest} tokens; {setup.model.name} has {model.context}")
        program = replace(build_program(model), context=min(model.context, longest + PAGE))
        weights = load_weights(checkpoint, model, program, setup.weight_format)
        kv_format = setup.kv_format or kv_format_beside(weights, setup.activations, program.groups)
        work = count_work(program, weights, kv_format, setup.activations)
        options = ExecutorOptions(
            kv_format=kv_format,
            kv_scales=scales_for(kv_format, checkpoint, program, None),
            activations=setup.activations,
            num_pages=1 + pages,
            page_size=PAGE,
            max_rows=CHUNK,
            max_sequences=sequences,
            threads=threads,
        )
        executor = open_executor("native", program, weights, options)
        bare = BareExecutor(executor, program.vocab)
        stack.callback(bare.close)
        del weights  # views of the mapped file
        engine = load_engine(
            EngineConfig(
                model=str(setup.model),
                weight_format=setup.weight_format,
                kv_format=kv_format,
                activations=setup.activations,
                max_model_len=program.context,
                max_num_seqs=sequences,
                max_num_batched_tokens=CHUNK,
                page_size=PAGE,
                # Of two kinds of groups each gets at least half (engine/sizing.py), and every one needs what it asks.
                kv_memory_bytes=_kv_bytes(program, kv_format, 1 + pages) * min(2, len(program.groups)),
                threads=threads,
                overlap=setup.overlap,
            )
        )
        subjects: list[Subject] = [InProcessEngine(engine, program.vocab), bare]
        stack.callback(engine.close)
        if setup.over_http:
            flags = _server_flags(setup, kv_format, threads, sequences, program.context)
            server = OwnServer(str(setup.model), flags, program.vocab)
            stack.callback(server.close)
            subjects.append(server)
        cache_bytes = _kv_bytes(program, KVFormat.BF16, pages)
        needs_of_peers = PeerOptions(
            model=str(setup.model),
            threads=threads,
            vocab=program.vocab,
            context=program.context,
            sequences=sequences,
            cache_gb=1 + cache_bytes // 2**30,
        )
        subjects += open_peers(setup.peers, needs_of_peers, stack)
        formats = f"weights {engine.info.weight_format}, pages {engine.info.kv_format}, {engine.info.isa}"
        return compare(setup.model.name, formats, work, Machine(threads), cases, subjects, setup.rounds, progress)


def _server_flags(setup: Setup, kv_format: KVFormat, threads: int, sequences: int, context: int) -> list[str]:
    """The engine's configuration as ``trimaran serve`` takes it."""
    flags = ["--threads", str(threads), "--max-num-seqs", str(sequences), "--max-model-len", str(context)]
    flags += ["--kv-cache-dtype", kv_format.value, "--overlap" if setup.overlap else "--no-overlap"]
    return flags + (["--weight-format", setup.weight_format.value] if setup.weight_format else [])


def _kv_bytes(program: Program, kv_format: KVFormat, pages: int) -> int:
    """Bytes of ``pages`` pages in each cache group."""
    return pages * sum(group.page_bytes(kv_format, PAGE) for group in program.groups)


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE) + 1
