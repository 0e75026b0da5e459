#!/usr/bin/env bash
# Brings a machine to the point where Trireme configures: system packages, LibTorch, the default text.
# Does nothing that is already done; each thing it leaves out is said in one line.
#
#   tools/setup.sh [--test]      --test adds what only the tests and benchmarks use
#
#   TRIREME_PIP_ARGS   extra arguments for pip, for people who want another build of torch
#   TRIREME_PYTHON     the Python to use; its torch is taken as it is when it has one
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*"; }

required=(g++ make cmake ninja-build pkg-config python3 python3-venv
          libopenmpi-dev openmpi-bin libcli11-dev libyaml-cpp-dev nlohmann-json3-dev libfmt-dev libxxhash-dev)
optional=(ccache libprotozero-dev libgtest-dev libgmock-dev bible-kjv iproute2
          zlib1g-dev libzstd-dev dataset-fashion-mnist coinor-libclp-dev)
[ "${1:-}" = --test ] && optional+=(librapidcheck-dev doxygen)

installed() { dpkg-query -W -f '${db:Status-Abbrev}' "$1" 2>/dev/null | grep -q '^ii'; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else return 1
  fi
}

install_packages() {
  command -v dpkg-query >/dev/null || { say "no dpkg here: install these by hand: ${required[*]} ${optional[*]}"; return; }
  local missing=()
  for package in "${required[@]}" "${optional[@]}"; do
    installed "$package" || missing+=("$package")
  done
  [ ${#missing[@]} = 0 ] && return
  say "installing ${missing[*]}"
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)
  if as_root "${apt[@]}" update >build/setup-apt.log 2>&1 &&
     as_root "${apt[@]}" install -y --no-install-recommends "${missing[@]}" >>build/setup-apt.log 2>&1; then
    return
  fi
  say "could not install them (no package registry, or no right to); going on with what is here, CMake says what is missing"
}

# The Python whose LibTorch we build against: one that already has torch, else the project's own venv.
choose_python() {
  local own="${TRIREME_PYTHON:-python3}"
  if [ ! -x .venv/bin/python ] && "$own" -c 'import torch' 2>/dev/null; then
    printf '%s' "$(command -v "$own")"
    return
  fi
  printf '%s' "$PWD/.venv/bin/python"
}

# Installs a requirements file into the venv unless that very file was installed before.
pip_install() {
  local stamp=".venv/$(basename "$1").installed"
  cmp -s "$1" "$stamp" && return
  say "pip install -r $1"
  # shellcheck disable=SC2086
  .venv/bin/python -m pip install -q --disable-pip-version-check ${TRIREME_PIP_ARGS:-} -r "$1" || return 1
  cp "$1" "$stamp"
}

default_text() {
  [ -s data/text.txt ] && return
  mkdir -p data
  if tools/default-text.sh >data/text.partial 2>/dev/null && [ -s data/text.partial ]; then
    mv data/text.partial data/text.txt
    say "default text: data/text.txt ($(wc -c <data/text.txt) bytes)"
  else
    rm -f data/text.partial
    say "no default text (package bible-kjv is missing): set data.path, or data.kind=synthetic"
  fi
}

mkdir -p build
install_packages
python="$(choose_python)"
if [ "$python" = "$PWD/.venv/bin/python" ]; then
  [ -x "$python" ] || { say "making .venv"; "${TRIREME_PYTHON:-python3}" -m venv .venv; }
  pip_install tools/requirements.txt
  if [ "${1:-}" = --test ]; then
    pip_install tools/requirements-test.txt
    pip_install tools/requirements-bench.txt || say "could not install the benchmarks' peers; their rows will say what is missing"
  fi
else
  say "using the torch of $python as it is"
fi
printf '%s\n' "$python" >build/python.partial
cmp -s build/python.partial build/python || mv build/python.partial build/python
rm -f build/python.partial
default_text
