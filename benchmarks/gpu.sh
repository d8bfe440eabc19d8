#!/usr/bin/env bash
# One pass over the GPU at hand, in at most 8 minutes and without a network:
#
#   benchmarks/gpu.sh --download WHEELS    with a network: fetch what a machine with PyTorch or JAX may lack
#   benchmarks/gpu.sh WHEELS OUT           on the machine: install that, run the pass; rows and a page in OUT
#
# PYTHON says which interpreter has PyTorch or JAX (python3 by default; 3.11 to 3.13). Nothing is installed
# into it: what it lacks goes into a folder of its own. DEVICE is PyTorch's device (cuda where there is one),
# SECONDS_IN_ALL the limit (420, so that installing fits into the 8 minutes as well).
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}

needed=(optree typing_extensions click rich markdown_it mdurl pygments threadpoolctl
    pytest iniconfig pluggy packaging hypothesis sortedcontainers)
builds=(setuptools wheel cython hatchling pathspec tomlkit trove-classifiers)

if [ "${1:-}" = --download ]; then
    wheels=${2:?"usage: benchmarks/gpu.sh --download WHEELS"}
    for version in 3.11 3.12 3.13; do
        "$python" -m pip download --quiet --no-deps --only-binary=:all: --dest "$wheels" \
            --python-version "$version" --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 \
            "${needed[@]/markdown_it/markdown-it-py}" "${builds[@]}"
    done
    exit
fi

wheels=${1:?"usage: benchmarks/gpu.sh WHEELS OUT"} out=${2:?"usage: benchmarks/gpu.sh WHEELS OUT"}
mkdir -p "$out"
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT

has() { PYTHONPATH="$site" "$python" -c "import importlib.util, sys; sys.exit(not importlib.util.find_spec('$1'))"; }
missing=()
for module in "${needed[@]}"; do
    has "$module" || missing+=("${module/markdown_it/markdown-it-py}")
done
backends=()
for name in torch jax; do
    if has "$name"; then backends+=("$name"); fi
done
[ ${#backends[@]} -gt 0 ] || { echo "$python has neither PyTorch nor JAX." >&2; exit 1; }

# A copy, since building leaves files beside the sources.
cp -r "$root/." "$site/checkout" 2>/dev/null || true
rm -rf "$site/checkout/.nox" "$site/checkout/.git"
cd "$site/checkout"
"$python" -m pip install --quiet --no-deps --no-index -f "$wheels" --target "$site" \
    "${missing[@]}" . ./benchmarks "${backends[@]/#/./backends/}"
cd - >/dev/null

device=${DEVICE:-$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")' 2>/dev/null || echo cpu)}
names=$(IFS=,; echo "${backends[*]}")
PYTHONPATH="$site" "$python" -m multifold bench device --backend "$names" --device "$device" \
    --seconds "${SECONDS_IN_ALL:-420}" --checkout "$site/checkout" \
    --json "$out/device.jsonl" --report "$out/device.md" "${@:3}"
