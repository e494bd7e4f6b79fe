#!/bin/sh
# The one check that people and CI run: lint, format, types, import rules, C++ format.
set -u
status=0
run() {
  echo "== $*"
  "$@" || status=1
}
run ruff check .
run ruff format --check .
run mypy
run lint-imports
run clang-format --dry-run -Werror $(find csrc -name '*.h' -o -name '*.cpp')
[ "$status" = 0 ] && echo "check: clean"
exit "$status"
