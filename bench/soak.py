"""A server under mixed load with random hang-ups: no unwanted error, no lost page, no leak, no changed answer.

    python bench/soak.py smollm2                                     two minutes, 64 requests at once
    python bench/soak.py smollm2 --seconds 10                        a short one; memory is reported, not judged
    python bench/soak.py smollm2 --serve-flags "--max-num-seqs 8"    more flags for `trimaran serve`

Exit status 1 when anything is wrong. "No changed answer": greedy and seeded requests bring the same text under load as
when they ran alone. The cache is kept small, so that sequences are preempted and computed again.
"""

import argparse
import asyncio
import json
import shlex
import sys
from pathlib import Path

from trimaran.base.errors import TrimaranError
from trimaran.bench.soak import JUDGE_SECONDS, Findings, soak

CACHE = "96M"  # of SmolLM2's bf16 pages: about 4,300 tokens for 64 sequences


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="catalogue name or path")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--concurrency", type=int, default=64, help="requests at once")
    parser.add_argument("--seed", type=int, default=0, help="draws the requests")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all findings to FILE")
    parser.add_argument("--serve-flags", type=shlex.split, default=[], metavar="FLAGS", help="for `trimaran serve`")
    options = parser.parse_args(arguments)
    flags = ["--kv-cache-memory-bytes", CACHE, *options.serve_flags]
    findings = asyncio.run(soak(options.model, options.seconds, options.concurrency, options.seed, flags))
    show(findings)
    if options.json:
        options.json.write_text(json.dumps(findings.to_json(), indent=2))
    return 1 if findings.failures else 0


def show(findings: Findings) -> None:
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(findings.requests.items()))
    print(f"{findings.requests.total()} requests in {findings.seconds:g} s: {kinds}")
    print(f"{findings.checked_answers} answers compared with those given alone")
    print(f"free pages {findings.pages[0]:.0f} before, {findings.pages[1]:.0f} after")
    for name in ("generated_tokens", "prompt_tokens", "cached_tokens", "preemptions"):
        print(f"{name.replace('_', ' ')}: {findings.engine.get(f'trimaran_{name}_total', 0):.0f}")
    if findings.growth is None:
        print("memory: not measured")
    else:
        sizes = [size / 2**20 for _, size in findings.resident]
        judged = "" if findings.seconds >= JUDGE_SECONDS else f" (judged from {JUDGE_SECONDS} s on)"
        print(f"memory: {sizes[-1]:.0f} MiB at the end, {findings.growth / 2**20:+.1f} MiB after warm-up{judged}")
    for failure in findings.failures[:20]:
        print(f"FAILED: {failure}")
    print("soak: " + (f"{len(findings.failures)} failures" if findings.failures else "all well"))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except TrimaranError as error:
        sys.exit(f"soak: {error}")
