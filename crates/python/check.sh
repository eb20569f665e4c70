#!/usr/bin/env bash
# The Python package: `check.sh wheel` builds target/wheels/soteriafl-*.whl; `check.sh test` also
# installs it into an environment of its own under target/python and runs ruff, mypy, stubtest and
# pytest. Without Python, or without the package index, `test` says so aloud and succeeds.
set -euo pipefail
task=${1:-test}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
cd "$root"
target=${CARGO_TARGET_DIR:-target}
mkdir -p "$target/python"
target=$(cd "$target" && pwd)
environment=$target/python/venv
bin=$environment/bin
tools="maturin>=1.9.4,<2"
tests="ruff mypy pytest numpy scipy pandas pyarrow scikit-learn matplotlib tqdm safetensors nbclient nbformat ipykernel"

without() {
    echo "*** $1: the Python package is NOT $([ "$task" = wheel ] && echo built || echo tested) ***" >&2
    [ "$task" = test ] && exit 0
    exit 1
}

command -v python3 > /dev/null || without "no python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || without "Python is older than 3.11"

# uv is many times faster than pip, which stands in where it cannot be had.
install() {
    if [ -x "$bin/uv" ]; then
        "$bin/uv" pip install -q --python "$bin/python" "$@"
    else
        "$bin/python" -m pip install -q --disable-pip-version-check "$@"
    fi
}

if [ ! -x "$bin/python" ]; then
    python3 -m venv "$environment" || without "python3 has no venv"
    "$bin/python" -m pip install -q --disable-pip-version-check uv || true
fi
# shellcheck disable=SC2086
[ -x "$bin/maturin" ] || install "$tools" || without "maturin cannot be installed"

mkdir -p "$target/wheels"
rm -f "$target"/wheels/soteriafl-*.whl
# A target directory of its own: the tools' environments differ, and each would rebuild the other's.
"$bin/maturin" build -q -m crates/python/Cargo.toml --profile wheel --locked \
    --interpreter "$bin/python" --target-dir "$target/python/build" --out "$target/wheels"
wheel=$(ls "$target"/wheels/soteriafl-*.whl)
echo "built $wheel"
[ "$task" = wheel ] && exit 0

# shellcheck disable=SC2086
install $tests || without "ruff, mypy or pytest cannot be installed"
# PyTorch is a CUDA build of about 3 GB on the package index, 20 to 65 seconds: kept under target/.
absent=$target/python/absent.txt
# A name of a literal type, which stubtest cannot compare.
echo 'soteriafl.torch.per_record.Gradients' > "$absent"
if ! "$bin/python" -c 'import torch' 2> /dev/null && ! install "torch>=2.6"; then
    echo "*** torch cannot be installed: soteriafl.torch is NOT tested ***" >&2
    echo 'soteriafl\.torch.*' > "$absent"
fi
# Flower: about 50 packages, no tensors among them.
if ! "$bin/python" -c 'import flwr' 2> /dev/null && ! install "flwr>=1.41,<1.43"; then
    echo "*** flwr cannot be installed: soteriafl.flower is NOT tested ***" >&2
    echo 'soteriafl\.flower.*' >> "$absent"
else
    # flwr is not typed for mypy, so its base class, an abstract one, is not seen.
    echo 'soteriafl.flower.strategy.SoteriaStrategy' >> "$absent"
fi
install --reinstall --no-deps "$wheel" 2> /dev/null || install --force-reinstall --no-deps "$wheel"

cd "$here"
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/python" -m mypy python/soteriafl
# stubtest compares the stubs with what was installed, so it must not see the sources.
(cd "$target/python" && "$bin/python" -m mypy.stubtest soteriafl \
    --mypy-config-file "$here/pyproject.toml" --allowlist "$here/stubtest.txt" --allowlist "$absent")
"$bin/python" -m pytest -q
# The examples in the documentation of what was installed.
(cd "$target/python" && "$bin/python" -m pytest -q -c "$here/pyproject.toml" --rootdir "$here" \
    -p no:cacheprovider --doctest-ignore-import-errors --pyargs soteriafl)
