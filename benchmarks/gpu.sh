#!/usr/bin/env bash
# One pass over the GPU at hand, in at most 8.5 minutes and without a network:
#
#   benchmarks/gpu.sh --download WHEELS [VERSION]   with a network: fetch what a machine with PyTorch may lack
#   benchmarks/gpu.sh WHEELS OUT [OPTION...]        on the machine: install that, run the pass; rows in OUT
#   multifold bench device --page OUT/device.jsonl docs     anywhere: the page of the rows
#
# PYTHON says which interpreter has PyTorch, and perhaps JAX (python3 by default; VERSION is its version, 3.12
# by default). Nothing is installed into it: what it lacks goes into a folder of its own. DEVICE is PyTorch's
# device (cuda where there is one), SECONDS_IN_ALL the limit, installing included. Options are those of
# `multifold bench device`. A pass that is killed has left its rows.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
usage="usage: benchmarks/gpu.sh --download WHEELS [VERSION], or benchmarks/gpu.sh WHEELS OUT"

needed=(optree typing_extensions click rich markdown_it mdurl pygments threadpoolctl
    pytest iniconfig pluggy packaging hypothesis sortedcontainers)
builds=(setuptools wheel cython hatchling pathspec tomlkit trove-classifiers)

if [ "${1:-}" = --download ]; then
    wheels=${2:?$usage}
    "$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$wheels" \
        --implementation cp --python-version "${3:-3.12}" \
        --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
        "${needed[@]/markdown_it/markdown-it-py}" "${builds[@]}"
    du -ch "$wheels"/*.whl
    exit
fi

wheels=$(cd "${1:?$usage}" && pwd) out=${2:?$usage}
mkdir -p "$out"
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT

has() { PYTHONPATH="$site" "$python" -c "import importlib.util, sys; sys.exit(not importlib.util.find_spec('$1'))"; }
missing=()
for module in "${needed[@]}"; do
    has "$module" || missing+=("${module/markdown_it/markdown-it-py}")
done
has torch || { echo "$python has no PyTorch." >&2; exit 1; }
adapters=(./backends/torch)
if has jax; then adapters+=(./backends/jax); fi

# A copy, since building leaves files beside the sources.
mkdir "$site/checkout"
tar -C "$root" --exclude=./.git --exclude=./.nox --exclude='*.so' --exclude=./build -c . | tar -C "$site/checkout" -x
cd "$site/checkout"
"$python" -m pip install --quiet --no-deps --no-index -f "$wheels" --target "$site" \
    "${missing[@]}" . ./benchmarks "${adapters[@]}"
cd - >/dev/null
rm -rf "$site/checkout/multifold"  # so that its tests, and what runs beside it, take what is installed
echo "installed after $SECONDS s"

device=${DEVICE:-$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')}
PYTHONPATH="$site" "$python" -P -m multifold bench device --device "$device" \
    --seconds $((${SECONDS_IN_ALL:-510} - SECONDS)) --checkout "$site/checkout" --json "$out/device.jsonl" "${@:3}"
