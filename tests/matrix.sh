#!/usr/bin/env bash
# Runs the tests with each Python of PYTHONS, and with the lowest versions that pyproject.toml admits under 3.11, the only
# one that all of these were built for.
#
#   PYTHONS="python3.11 python3.13"  which (python3.11 python3.12 python3.13); one that is not there is left out, and said
#   TORCH=2.13.0                     another torch than that of the constraints
#   TORCH=none                       no torch at all: the tests that need none
#   TESTS="-m 'not slow'"            what to hand to pytest
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

read -ra pythons <<<"${PYTHONS:-python3.11 python3.12 python3.13}"
eval "tests=(${TESTS:-})"
torch="${TORCH:-}"
failed=()
ran=0

# Tests that load neither torch, nor what tests of the back ends share.
without_torch() {
  grep -rLE --include='test_*.py' \
    'torch|onnx|(import|from) (zoo|parity|docs|random_specs|runtime_tools)|to_torch|module_from' tests
}

# one NAME PYTHON CONSTRAINTS
one() {
  local name="$1" python="$2" constraints="$3" venv=".matrix/$1" extras="dev,bench" chosen
  echo "== $name: $("$python" --version), $constraints${torch:+, torch $torch}"
  rm -rf "$venv"
  "$python" -m venv "$venv"
  chosen="$venv/constraints.txt"
  if [ "$torch" = none ]; then
    grep -v '^torch==' "$constraints" >"$chosen"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$chosen" -e '.[plot]' \
      hatchling hypothesis pytest pytest-xdist
    mapfile -t tests < <(without_torch)
  else
    sed "s/^torch==.*/torch==${torch:-&}/; s/^torch==torch==/torch==/" "$constraints" >"$chosen"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c "$chosen" -e ".[$extras]"
  fi
  ran=$((ran + 1))
  "$venv/bin/python" -m pytest -p no:cacheprovider -n "${JOBS:-2}" ${tests[@]+"${tests[@]}"} || failed+=("$name")
}

for python in "${pythons[@]}"; do
  if ! "$python" --version >/dev/null 2>&1; then
    echo "== $python is not here"
    continue
  fi
  version="$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')"
  if [ "$version" = 3.11 ]; then
    one "lowest-$version" "$python" constraints-lowest.txt
  fi
  one "$version" "$python" constraints.txt
done

if [ "$ran" -eq 0 ] || [ "${#failed[@]}" -gt 0 ]; then
  echo "failed: ${failed[*]:-no Python of ${pythons[*]} is here}"
  exit 1
fi
echo "passed with $ran environments"
