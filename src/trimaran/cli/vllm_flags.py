"""Flags of ``vllm serve`` that have no namesake here, and what to do instead."""

INSTEAD = {
    "--dtype": "use --weight-format for weights and --kv-cache-dtype for keys and values",
    "--enforce-eager": "leave it out: nothing is compiled or captured when a model is loaded",
    "--gpu-memory-utilization": "use --kv-cache-memory-bytes, such as 2G: the cache has a size, not a share of memory",
    "--quantization": "use --weight-format, or leave it out: files that are quantised are held as they are",
    "--ssl-cert-reqs": "leave it out: with --ssl-ca-certs clients must show a certificate, else they need none",
    "--tensor-parallel-size": "leave it out: a model runs in one process, on --threads threads",
    "--trust-remote-code": "leave it out: code that comes with a model is never run",
}
