#!/usr/bin/env bash
# Puts what the test `nvrtc` needs into a folder: NVRTC and the headers of CUDA 13.0, from NVIDIA's packages on PyPI.
# Needs python3 with pip, and neither GPU nor driver. Does nothing where the folder is complete.
#
#   export CUDA_PATH=$(crates/burn-fp8-kernels/fetch-cuda.sh target/cuda)
#   BURN_FP8_REQUIRE_NVRTC=1 cargo test -p burn-fp8-kernels --features cuda --test nvrtc
set -euo pipefail

if (($# != 1)); then
    echo "usage: $0 FOLDER; prints the path for CUDA_PATH" >&2
    exit 2
fi
version='13.0.*'
packages=(nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl)

mkdir -p "$1"
folder=$(cd "$1" && pwd)
toolkit=$folder/nvidia/cu13
complete=$folder/complete-${version%.*}
if [[ ! -f $complete ]]; then
    wheels=$folder/wheels
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --dest "$wheels" "${packages[@]/%/==$version}" >&2
    for wheel in "$wheels"/*.whl; do
        python3 -m zipfile -e "$wheel" "$folder"
    done
    rm -r "$wheels"
    for file in "$toolkit/include/cuda_runtime.h" "$toolkit/include/crt/host_defines.h" "$toolkit/include/cccl/cuda/std/type_traits"; do
        if [[ ! -f $file ]]; then
            echo "the packages have no $file" >&2
            exit 1
        fi
    done
    touch "$complete"
fi
echo "$toolkit"
