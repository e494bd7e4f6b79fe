"""Drives a peer inside its own environment: ``python peer_worker.py openvino '{"model": ...}'``.

Run as a script, by the Python that has the peer and not us, so it imports nothing of ours. Answers every line of JSON
on stdin by one on stdout; the first line, unasked, says that the peer is loaded, or why not:

    {"do": "serve", "requests": [[prompt, output], ...]}                    -> {"seconds": until all are done}
    {"do": "decode", "sequences": n, "depth": d, "steps": s, "limit": l}    -> {"seconds": of s steps of all together}

Greedy, never ending early, prompts of random token ids. Only the peer's own work is timed, and never the first of a
kind.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np


class Pipeline(Protocol):
    """A peer's engine: requests go in, each step brings tokens."""

    version: str

    def add(self, number: int, prompt: Any, output: int) -> None:
        """Queues ``prompt`` (int64 token ids), to get ``output`` tokens."""
        ...

    def step(self) -> bool:
        """Runs one step; False when nothing is left to do."""
        ...

    def started(self) -> set[int]:
        """The requests that got a token in the last step."""
        ...

    def cancel(self) -> None:
        """Forgets all requests."""
        ...


class OpenVino:
    """OpenVINO GenAI's continuous batching, prefix cache off; it reads GGUF files and its own format."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._genai = importlib.import_module("openvino_genai")
        self._tensor = importlib.import_module("openvino").Tensor
        self.version = str(self._genai.__version__)
        config = self._genai.SchedulerConfig()
        config.cache_size = options["cache_gb"]
        config.max_num_seqs = options["sequences"]
        config.max_num_batched_tokens = 2048
        config.enable_prefix_caching = False
        properties = {"INFERENCE_NUM_THREADS": options["threads"], "KV_CACHE_PRECISION": options["kv_cache"]}
        self._pipeline = self._genai.ContinuousBatchingPipeline(options["model"], config, "CPU", properties, {})
        self._handles: dict[int, Any] = {}

    def add(self, number: int, prompt: Any, output: int) -> None:
        config = self._genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = output, True, False
        self._handles[number] = self._pipeline.add_request(number, self._tensor(prompt[None]), config)

    def step(self) -> bool:
        self._pipeline.step()
        return bool(self._pipeline.has_non_finished_requests())

    def started(self) -> set[int]:
        return {number for number, handle in self._handles.items() if handle.can_read() and handle.read()}

    def cancel(self) -> None:
        for handle in self._handles.values():
            handle.stop()
        self._handles = {}
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()


class Vllm:
    """vLLM's engine in this process, prefix cache off; it reads folders as Hugging Face has them."""

    def __init__(self, options: dict[str, Any]) -> None:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(options["cache_gb"]))
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{options['threads'] - 1}")
        self._vllm = importlib.import_module("vllm")
        self.version = str(self._vllm.__version__)
        arguments = self._vllm.EngineArgs(
            model=options["model"],
            skip_tokenizer_init=True,
            enable_prefix_caching=False,
            max_model_len=options["context"],
            max_num_seqs=options["sequences"],
            max_num_batched_tokens=max(2048, options["context"]),
        )
        self._engine = self._vllm.LLMEngine.from_engine_args(arguments)
        self._open: set[str] = set()
        self._started: set[int] = set()

    def add(self, number: int, prompt: Any, output: int) -> None:
        sampling = self._vllm.SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)
        self._engine.add_request(str(number), {"prompt_token_ids": prompt.tolist()}, sampling)
        self._open.add(str(number))

    def step(self) -> bool:
        outputs = self._engine.step()
        self._started = {int(output.request_id) for output in outputs if output.outputs[0].token_ids}
        self._open -= {output.request_id for output in outputs if output.finished}
        return bool(self._engine.has_unfinished_requests())

    def started(self) -> set[int]:
        return self._started

    def cancel(self) -> None:
        self._engine.abort_request(sorted(self._open))
        self._open.clear()


PEERS: dict[str, Callable[[dict[str, Any]], Pipeline]] = {"openvino": OpenVino, "vllm": Vllm}


class Driver:
    """Answers what is asked of a pipeline."""

    def __init__(self, pipeline: Pipeline, vocab: int) -> None:
        self._pipeline = pipeline
        self._vocab = vocab
        self._random = np.random.default_rng()
        self._added = 0

    def serve(self, requests: Sequence[tuple[int, int]]) -> float:
        """Seconds until ``requests`` of these (prompt, output) lengths, all there at once, are done."""
        for prompt, output in requests:
            self._add(prompt, output)
        began = time.perf_counter()
        while self._pipeline.step():
            pass
        seconds = time.perf_counter() - began
        self._pipeline.cancel()
        return seconds

    def decode(self, sequences: int, depth: int, steps: int, limit: int) -> float:
        """Seconds of ``steps`` steps, from the first in which every sequence decodes."""
        waiting = {self._add(depth, limit) for _ in range(sequences)}
        while waiting:
            if not self._pipeline.step():
                raise RuntimeError("the requests ended before they all had a token")
            waiting -= self._pipeline.started()
        began = time.perf_counter()
        for _ in range(steps):
            self._pipeline.step()
        seconds = time.perf_counter() - began
        self._pipeline.cancel()
        return seconds

    def _add(self, prompt: int, output: int) -> int:
        self._added += 1
        self._pipeline.add(self._added, self._random.integers(3, self._vocab, prompt).astype(np.int64), output)
        return self._added


def main(peer: str, options: dict[str, Any]) -> None:
    """Loads ``peer`` and answers until stdin ends."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what the peer prints is no answer
    try:
        pipeline = PEERS[peer](options)
        driver = Driver(pipeline, options["vocab"])
        answers.write(json.dumps({"version": pipeline.version}) + "\n")
        known = set()
        for line in sys.stdin:
            asked = json.loads(line)
            answer = getattr(driver, asked.pop("do"))
            if line not in known:
                answer(**asked)  # some peers compile code for a shape that they meet for the first time
                known.add(line)
            seconds = answer(**asked)
            answers.write(json.dumps({"seconds": seconds}) + "\n")
    except Exception as error:  # of any kind, for it is the peer's: the other side tells the user
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
