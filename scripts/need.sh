#!/bin/sh
# Says which system package is missing, before a build fails for the lack of it.
set -u
python=${PYTHON:-python3}
missing=""

need() { # what it is, Debian/Ubuntu package, Fedora package
  echo "missing: $1" >&2
  echo "  Debian, Ubuntu: apt-get install $2      Fedora: dnf install $3" >&2
  missing=yes
}

if ! command -v "$python" >/dev/null 2>&1; then
  need "Python 3.11 or newer ('$python')" python3 python3
elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  need "Python 3.11 or newer; '$python' is $("$python" -V 2>&1). Name another with: make PYTHON=python3.12 ..." python3 python3
else
  "$python" -c 'import venv, ensurepip' 2>/dev/null || need "Python's venv module" python3-venv python3
  "$python" -c 'import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))' ||
    need "Python's C headers (Python.h)" python3-dev python3-devel
fi
cxx=${CXX:-c++} # may have arguments, as in CXX="ccache g++"
if ! command -v "${cxx%% *}" >/dev/null 2>&1; then
  need "a C++20 compiler ('$cxx')" g++ gcc-c++
elif ! printf '#include <atomic>\nint main() { std::atomic<int>(0).notify_all(); }\n' |
  $cxx -std=c++20 -fsyntax-only -x c++ - >/dev/null 2>&1; then
  need "a C++20 compiler with its library; '$cxx' is $($cxx --version 2>&1 | head -n 1). Name another with: make CXX=g++-12 ..." g++ gcc-c++
fi
[ -z "$missing" ]
