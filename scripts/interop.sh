#!/bin/sh
# Reads what `trimaran compress` writes with compressed-tensors and transformers, in .venv-interop, an environment with
# torch that nothing else uses (about 1.5 GB), and writes tests/data/compressed.safetensors.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
home=$PWD/.venv-interop

[ -x "$home/bin/python" ] || "$python" -m venv "$home"
echo "interop: installing torch, transformers and compressed-tensors into .venv-interop ..." >&2
"$home/bin/pip" install -q --disable-pip-version-check -r scripts/goldens-requirements.txt
HF_HUB_OFFLINE=1 PYTHONPATH=.:src exec "$home/bin/python" scripts/interop.py
