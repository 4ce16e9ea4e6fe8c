#!/usr/bin/env bash
# Validates burn-fp8 on this machine's NVIDIA GPU and measures it. Needs no Rust: the programs lie beside this script in bin/.
# `./run.sh --help` lists the options. Exit status: 0 all passed; 1 something failed, was cut short, or missed a target; 2 this
# machine lacks something, or the command line is wrong.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    cat <<'END'
Usage: ./run.sh [OPTIONS]

Checks that this machine has what is needed, validates burn-fp8 on its GPU, then measures it. Writes results.json, table.txt,
table.md and a log for each phase into the output folder.

  --out DIR          output folder [default: burn-fp8-gpu-results]
  --check-only       only check what this machine has
  --validate-only    no benchmarks
  --bench-only       benchmarks only
  --quick            fewer and smaller cases; ends within 8 minutes
  --seconds N        end within N seconds: what does not fit is cut short or left out, and reported as such
  --phases A,B       only these phases, or groups of phases: tests, sanitizer, accuracy, examples, peers, bench
  --list             list the phases and end
  --python PATH      the Python whose torch is compared with [default: python3]
  -h, --help         this text
END
}

out=burn-fp8-gpu-results
want_validate=1
want_bench=1
quick=0
seconds=0
phases=
check_only=0
list_only=0
python=python3
command_line="$0 $*"

wrong() {
    echo "$1; see --help" >&2
    exit 2
}

while (($# > 0)); do
    case $1 in
        --out | --seconds | --phases | --python)
            (($# > 1)) || wrong "$1 needs a value"
            case $1 in
                --out) out=$2 ;;
                --seconds) seconds=$2 ;;
                --phases) phases=$2 ;;
                --python) python=$2 ;;
            esac
            shift
            ;;
        --check-only) check_only=1 ;;
        --validate-only) want_bench=0 ;;
        --bench-only) want_validate=0 ;;
        --quick) quick=1 ;;
        --list) list_only=1 ;;
        -h | --help)
            usage
            exit 0
            ;;
        *) wrong "unknown option $1" ;;
    esac
    shift
done
[[ $seconds =~ ^[0-9]+$ ]] || wrong "--seconds takes a whole number, not $seconds"
if ((quick && seconds == 0)); then
    seconds=480
fi
((want_validate || want_bench)) || wrong "--validate-only and --bench-only exclude each other"

# --- What this machine has -------------------------------------------------------------------------------------------------

missing=()
notes=()

# need WHAT WHY-AND-HOW
need() {
    missing+=("$1"$'\n'"      $2")
}

# Folders that may hold a CUDA toolkit or a part of one, the best first; pip's wheels among them.
cuda_folders() {
    if [[ -n ${CUDA_PATH:-} ]]; then
        echo "$CUDA_PATH"
    fi
    local folder
    for folder in /usr/local/cuda /opt/cuda /usr/local/cuda-1[23]* /usr; do
        [[ -d $folder ]] && echo "$folder"
    done
    "$python" - 2>/dev/null <<'END'
import glob, importlib.util
spec = importlib.util.find_spec('nvidia')
for place in (spec.submodule_search_locations or []) if spec else []:
    print('\n'.join(sorted(glob.glob(place + '/*/'))))
END
}

# find_library NAME MAJORS: the path of NAME.so.MAJOR, for the first of MAJORS that there is.
find_library() {
    local name=$1 major folder place
    for major in $2; do
        local IFS=:
        for folder in ${LD_LIBRARY_PATH:-}; do
            if [[ -n $folder && -e $folder/$name.so.$major ]]; then
                echo "$folder/$name.so.$major"
                return
            fi
        done
        unset IFS
        while IFS= read -r folder; do
            for place in lib64 lib targets/x86_64-linux/lib lib/x86_64-linux-gnu; do
                if [[ -e $folder/$place/$name.so.$major ]]; then
                    echo "$folder/$place/$name.so.$major"
                    return
                fi
            done
        done <<<"$folders"
        folder=$({ ldconfig -p || /sbin/ldconfig -p; } 2>/dev/null | sed -n "s|^\s*$name\.so\.$major .*=> ||p" | head -n 1)
        if [[ -n $folder ]]; then
            echo "$folder"
            return
        fi
    done
}

# What CubeCL's kernels include; the last of them is of CCCL, which has a folder of its own since CUDA 13.
headers=(cuda_runtime.h cuda_fp16.h cuda_bf16.h cuda_fp8.h mma.h crt/host_defines.h cooperative_groups.h)

# The headers that a folder lacks.
lacks() {
    local header
    for header in "${headers[@]}"; do
        [[ -e $1/include/$header ]] || echo "$header"
    done
    [[ -e $1/include/cuda/barrier || -e $1/include/cccl/cuda/barrier ]] || echo cuda/barrier
}

system=$(uname -s)-$(uname -m)
if [[ $system != Linux-x86_64 ]]; then
    need "Linux on x86-64" "this is $system; the programs are built for no other"
fi
if ! command -v timeout >/dev/null; then
    need "timeout" "ends a phase that takes too long; install coreutils"
fi
# Without bin/ (in the repository) there is nothing to load yet.
if [[ -d $here/bin ]]; then
    unresolved=$(ldd "$here"/bin/* 2>&1 | grep 'not found' | sort -u)
    if [[ -n $unresolved ]]; then
        need "a newer C library" "the programs cannot be loaded:${unresolved//$'\n'/;}; use a newer Linux, or build there: cargo xtask gpu"
    fi
fi

folders=$(cuda_folders)
cuda_major=13
if [[ -z $(find_library libcuda 1) ]]; then
    need "libcuda.so.1" "the NVIDIA driver; install it, or give the container access to the GPU (docker: --gpus all)"
fi
devices=
if ! command -v nvidia-smi >/dev/null; then
    need "nvidia-smi" "comes with the NVIDIA driver; tells which GPU this is"
elif ! devices=$(nvidia-smi --query-gpu=index,name,compute_cap,driver_version --format=csv,noheader 2>&1) || [[ -z $devices ]]; then
    need "an NVIDIA GPU that answers" "nvidia-smi says: ${devices:-nothing}"
    devices=
else
    # Like "CUDA Version: 13.0" in its heading: the newest CUDA that the driver knows.
    driver_cuda=$(nvidia-smi 2>/dev/null | sed -n 's/.*CUDA Version: *\([0-9.]*\).*/\1/p' | head -n 1)
    if [[ -n $driver_cuda ]]; then
        cuda_major=${driver_cuda%%.*}
    fi
    if ((cuda_major < 12)); then
        need "a driver for CUDA 12 or newer" "this one knows CUDA $driver_cuda at most; cuBLASLt has FP8 from CUDA 12 on"
    fi
    device=
    while IFS= read -r line; do
        capability=$(echo "$line" | cut -d, -f3 | tr -d ' ')
        if [[ -z $device && ${capability/./} =~ ^[0-9]+$ ]] && ((${capability/./} >= 89)); then
            device=${line%%,*}
        fi
    done <<<"$devices"
    if [[ -z $device ]]; then
        need "a GPU of compute capability 8.9 or higher" "FP8 tensor cores came with Ada and Hopper; here is: ${devices//$'\n'/; }"
    fi
fi
# The libraries of a CUDA that the driver does not know yet would be no use.
majors="13 12"
if ((cuda_major == 12)); then
    majors=12
elif ((cuda_major > 13)); then
    majors="$cuda_major 13 12"
fi

for library in libnvrtc libcublasLt; do
    file=$(find_library "$library" "$majors")
    if [[ -z $file ]]; then
        case $library in
            libnvrtc) what="compiles CubeCL's kernels"; package=nvidia-cuda-nvrtc ;;
            *) what="multiplies in FP8"; package=nvidia-cublas ;;
        esac
        need "$library.so.{${majors// /,}}" "$what; install the CUDA toolkit, or: pip install $package, or set LD_LIBRARY_PATH to its folder"
    else
        export LD_LIBRARY_PATH="${file%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
        case $library in
            libnvrtc) nvrtc=$(readlink -f "$file") ;;
            *) cublaslt=$(readlink -f "$file") ;;
        esac
    fi
done

headers_at=
while IFS= read -r folder; do
    if [[ -z $headers_at && -n $folder && -z $(lacks "$folder") ]]; then
        headers_at=${folder%/}
    fi
done <<<"$folders"
if [[ -n $headers_at ]]; then
    export CUDA_PATH=$headers_at
else
    absent=$(lacks "${CUDA_PATH:-/usr/local/cuda}" | paste -s -d ' ')
    need "CUDA headers" "CubeCL's kernels include them and stop without: ${CUDA_PATH:-/usr/local/cuda}/include lacks $absent; install the CUDA toolkit, or: pip install nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl, and set CUDA_PATH to the folder with include/"
fi

torch=
if ! command -v "$python" >/dev/null; then
    notes+=("no $python: nothing is compared with torch (phases accuracy and peers)")
elif ! torch=$("$python" -c 'import torch, numpy; assert torch.cuda.is_available(), "it sees no GPU"; print(torch.__version__)' 2>&1); then
    notes+=("$python has no usable torch: nothing is compared with it (phases accuracy and peers): ${torch##*$'\n'}")
    torch=
fi

sanitizer=
for candidate in "$(command -v compute-sanitizer)" "${CUDA_PATH:-/usr/local/cuda}/bin/compute-sanitizer" \
    "${CUDA_PATH:-/usr/local/cuda}/compute-sanitizer/compute-sanitizer"; do
    if [[ -z $sanitizer && -n $candidate && -x $candidate ]]; then
        sanitizer=$candidate
    fi
done
if [[ -z $sanitizer ]]; then
    notes+=("no compute-sanitizer: memory accesses are not checked (phase sanitizer); it comes with the CUDA toolkit")
fi

for note in ${notes[@]+"${notes[@]}"}; do
    echo "note: $note" >&2
done
if ((${#missing[@]} > 0 && list_only == 0)); then
    {
        echo "This machine cannot run burn-fp8 natively. Missing:"
        for entry in "${missing[@]}"; do
            echo "  - $entry"
        done
    } >&2
    exit 2
fi
if ((list_only == 0)); then
    echo "This machine has what is needed: device $device of ${devices//$'\n'/; }"
fi
if ((check_only)); then
    exit 0
fi
if [[ ! -x $here/bin/burn-fp8-gpu ]]; then
    echo "$here/bin has no programs: build them with \`cargo xtask gpu\`, or unpack an archive of \`cargo xtask gpu-bundle\`" >&2
    exit 2
fi

# --- The phases ------------------------------------------------------------------------------------------------------------

# Only one device is used.
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-${device:-}}
export BURN_FP8_GOLDEN=$here/golden
export RUST_BACKTRACE=1

# is_wanted PHASE GROUP KIND
is_wanted() {
    if [[ -n $phases ]]; then
        [[ ,$phases, == *",$1,"* || ,$phases, == *",$2,"* ]]
    elif [[ $3 == validate ]]; then
        ((want_validate))
    else
        ((want_bench))
    fi
}

begun=$SECONDS
failures=0
planned=()

record() {
    printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$out/phases.tsv"
}

skip() {
    echo "--- $1: skipped: $2"
    record "$1" "skipped: $2" 0 ""
}

# phase NAME GROUP KIND LIMIT COMMAND...: runs a command, if it is wanted, for LIMIT seconds at most.
phase() {
    local name=$1 group=$2 kind=$3 limit=$4
    shift 4
    is_wanted "$name" "$group" "$kind" || return 0
    if ((list_only)); then
        echo "$name (group $group)"
        return 0
    fi
    planned+=("$name")
    if ((seconds > 0)); then
        local left=$((begun + seconds - SECONDS))
        # Less is not worth the start of a program.
        if ((left < 15)); then
            skip "$name" "no time left"
            failures=$((failures + 1))
            return 1
        fi
        limit=$((limit < left ? limit : left))
    fi
    local log=${name//[^A-Za-z0-9_-]/-}.log start=$SECONDS status
    echo "--- $name: at most $limit s, log $log"
    (cd "$out" && timeout -k 10 "$limit" "$@") >"$out/$log" 2>&1
    status=$?
    local took=$((SECONDS - start)) verdict=ok
    case $status in
        0) ;;
        124 | 137) verdict="timed out" ;;
        *) verdict="failed: status $status" ;;
    esac
    record "$name" "$verdict" "$took" "$log"
    echo "--- $name: $verdict in $took s"
    if ((status != 0)); then
        failures=$((failures + 1))
        # The end of a log says most; all of it is in the folder.
        grep -E '^(test .* FAILED|error|ERROR|thread .* panicked|  |.*MISSED|.*TOO LARGE)' "$out/$log" | head -n 20 | sed 's/^/    /'
        return 1
    fi
}

# tests PROGRAM LIMIT: a phase for each module of a test program, so that one which ends a process ends no other. CubeCL is to
# search for its fastest kernels over few classes of shapes: compiling them is most of what tests take.
tests() {
    local program=$here/bin/$1 name=${1%-tests} limit=$2 module names
    [[ -x $program ]] || return 0
    # All of these need a GPU, and say so by being ignored elsewhere.
    local all
    all=$(timeout 60 "$program" --list --ignored --format terse 2>/dev/null | sed -n 's/: test$//p')
    if [[ -z $all ]]; then
        if ((list_only == 0)) && is_wanted "$name" tests validate; then
            skip "$name" "the program lists no tests"
            failures=$((failures + 1))
        fi
        return 1
    fi
    for module in $(echo "$all" | sed -n 's/::.*//p' | sort -u) ""; do
        if [[ -n $module ]]; then
            mapfile -t names < <(echo "$all" | grep "^$module::")
        else
            mapfile -t names < <(echo "$all" | grep -v ::)
        fi
        ((${#names[@]} > 0)) || continue
        phase "$name${module:+:$module}" tests validate "$limit" \
            env CUBECL_AUTOTUNE_LEVEL=minimal "$program" --ignored --exact --show-output --test-threads=1 "${names[@]}"
    done
}

if ((list_only == 0)); then
    mkdir -p "$out" || exit 2
    out=$(cd "$out" && pwd)
    # What an earlier run left would be reported as this one's.
    rm -rf "$out"/{phases.tsv,host.tsv,torch.json,accuracy.json,accuracy} "$out"/rows-*.json
    : >"$out/phases.tsv"
    {
        printf 'command\t%s\n' "$command_line"
        printf 'date\t%s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
        printf 'device\t%s\n' "$(echo "$devices" | sed -n "s/^$device, *//p" | cut -d, -f1)"
        printf 'compute capability\t%s\n' "$(echo "$devices" | sed -n "s/^$device, *//p" | cut -d, -f2 | tr -d ' ')"
        printf 'driver\t%s\n' "$(echo "$devices" | sed -n "s/^$device, *//p" | cut -d, -f3 | tr -d ' ')"
        printf 'CUDA of the driver\t%s\n' "${driver_cuda:-unknown}"
        printf 'NVRTC\t%s\n' "$nvrtc"
        printf 'cuBLASLt\t%s\n' "$cublaslt"
        printf 'CUDA headers\t%s, version %s\n' "$CUDA_PATH" \
            "$(sed -n 's/^#define CUDART_VERSION *//p' "$CUDA_PATH/include/cuda_runtime_api.h" 2>/dev/null | head -n 1)"
        printf 'torch\t%s\n' "${torch:-none}"
        printf 'compute-sanitizer\t%s\n' "${sanitizer:-none}"
        printf 'kernel\t%s\n' "$(uname -r)"
        printf 'processor\t%s\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores"
        cat "$here/MANIFEST"
    } >"$out/host.tsv"

    # Without this nothing else makes sense.
    echo "--- device"
    if ! (cd "$out" && timeout -k 10 120 "$here/bin/burn-fp8-gpu" device) 2>&1 | tee "$out/device.log"; then
        record device "failed" 0 device.log
        "$here/bin/burn-fp8-gpu" report "$out" >/dev/null
        echo "burn-fp8 does not run natively on this device: see $out/device.log" >&2
        exit 1
    fi
    record device ok 0 device.log
fi

small=()
if ((quick)); then
    small=(--quick)
fi

tests burn-fp8-cublaslt-tests 180
tests burn-fp8-tests 240

if [[ -n $sanitizer ]] && ! { ((quick)) && [[ -z $phases ]]; }; then
    # Two tests only, since each access is checked in software: kernels, whose threads share memory, and products on tensor cores.
    for tool in memcheck racecheck; do
        phase "sanitizer-$tool" sanitizer validate 180 "$sanitizer" --tool "$tool" --error-exitcode 9 \
            "$here/bin/burn-fp8-tests" --ignored --exact --test-threads=1 \
            codes::unfused::of_joined_dimensions products::unfused::are_deterministic
    done
elif ((list_only == 0)) && is_wanted sanitizer sanitizer validate; then
    skip sanitizer "$( ((quick)) && [[ -n $sanitizer ]] && echo "not with --quick" || echo "no compute-sanitizer")"
fi

if [[ -n $torch ]]; then
    phase accuracy-products accuracy validate 120 "$here/bin/burn-fp8-gpu" accuracy accuracy ${small[@]+"${small[@]}"} &&
        phase accuracy accuracy validate 120 "$python" "$here/peers/gpu_accuracy.py" accuracy accuracy.json
elif ((list_only == 0)) && is_wanted accuracy accuracy validate; then
    skip accuracy "no torch"
fi

epochs=10
if ((quick)); then
    epochs=2
fi
phase digits examples validate 180 "$here/bin/digits" --backend cuda --epochs "$epochs" --out digits
if [[ -x $here/bin/fused_matmul ]]; then
    phase fused_matmul examples validate 120 "$here/bin/fused_matmul" --backend cuda
fi

compare=()
if [[ -n $torch ]]; then
    phase peers peers bench 300 "$python" "$here/peers/gpu_peers.py" torch.json ${small[@]+"${small[@]}"}
    if [[ -s $out/torch.json ]]; then
        compare=(--torch torch.json)
    fi
elif ((list_only == 0)) && is_wanted peers peers bench; then
    skip peers "no torch"
fi
for group in gpu-gemm gpu-kernels gpu-linear gpu-host; do
    phase "$group" bench bench 180 "$here/bin/burn-fp8-gpu" bench "$group" --json "rows-$group.json" \
        ${compare[@]+"${compare[@]}"} ${small[@]+"${small[@]}"}
done
budget=480
if ((quick)); then
    budget=60
elif ((seconds > 0)); then
    # Leaves time to write what was measured.
    left=$((begun + seconds - SECONDS - 30))
    budget=$((left < budget ? (left > 0 ? left : 0) : budget))
fi
phase gpu-break-even bench bench $((budget + 60)) "$here/bin/burn-fp8-gpu" bench gpu-break-even --json rows-gpu-break-even.json \
    --out . --seconds "$budget" ${small[@]+"${small[@]}"}

if ((list_only)); then
    exit 0
fi
if ((${#planned[@]} == 0)); then
    wrong "no phase is called ${phases:-so}: --list lists them"
fi
# What was measured for torch's comparison is large and of no further use.
rm -rf "$out/accuracy"
if ! "$here/bin/burn-fp8-gpu" report "$out"; then
    failures=$((failures + 1))
fi
echo "results: $out/results.json, $out/table.txt, $out/table.md"
if ((failures > 0)); then
    echo "$failures of ${#planned[@]} phases failed, missed a target, or did not end in time" >&2
    exit 1
fi
echo "all ${#planned[@]} phases passed"
