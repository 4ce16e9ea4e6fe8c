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
table.md and a log for each phase into the output folder, and all of them once more as results.tar.gz.

Uses the first GPU of CUDA_VISIBLE_DEVICES, numbered as nvidia-smi numbers them, or else the first of compute capability 8.9.

  --out DIR          output folder [default: burn-fp8-gpu-results]
  --check-only       only check what this machine has
  --validate-only    no benchmarks
  --bench-only       benchmarks only
  --quick            fewer and smaller cases; ends within 8 minutes
  --seconds N        end within N seconds: what does not fit is cut short or left out, and reported as such; half of the time is
                     kept for benchmarks where both are wanted
  --phases A,B       only these phases, as --list names them, or groups: tests, burn-fp8, burn-fp8-cublaslt, sanitizer, accuracy,
                     examples, peers, bench
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

# tests_of PROGRAM: the names of its tests. All of these need a GPU, and say so by being ignored elsewhere.
tests_of() {
    timeout 60 "$here/bin/$1" --list --ignored --format terse 2>/dev/null | sed -n 's/: test$//p'
}

# is_known NAME: whether a phase or a group is called so. Modules of tests are known only where their program is.
is_known() {
    local program
    case $1 in
        tests | burn-fp8 | burn-fp8-cublaslt | sanitizer | sanitizer-memcheck | sanitizer-racecheck | sanitizer-initcheck | \
            accuracy | accuracy-products | examples | digits | fused_matmul | char-lm | char-lm-block | peers | bench | \
            gpu-gemm | gpu-kernels | gpu-linear | gpu-host | gpu-break-even) ;;
        burn-fp8:* | burn-fp8-cublaslt:*)
            program=${1%%:*}-tests
            [[ ! -x $here/bin/$program ]] || tests_of "$program" | grep -q "^${1#*:}::"
            ;;
        *) return 1 ;;
    esac
}

if [[ -n $phases ]]; then
    IFS=, read -r -a asked <<<"$phases"
    for name in "${asked[@]}"; do
        is_known "$name" || wrong "no phase is called $name: --list lists them"
    done
fi

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
    # Containers on some hosts get the driver's libraries in the last of these.
    for folder in /usr/local/cuda /opt/cuda /usr/local/cuda-1[23]* /usr /usr/local/nvidia; do
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
libcuda=$(find_library libcuda 1)
if [[ -z $libcuda ]]; then
    need "libcuda.so.1" "the NVIDIA driver; install it, or give the container access to the GPU (docker: --gpus all)"
elif [[ $libcuda == /usr/local/nvidia/* ]]; then
    # The loader does not look there by itself.
    export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}${libcuda%/*}"
fi

# is_fp8 CAPABILITY: whether its tensor cores have FP8, which came with Ada and Hopper.
is_fp8() {
    [[ $1 =~ ^[0-9]+\.[0-9]+$ ]] && ((${1/./} >= 89))
}

# visible_device ENTRY: the line of `devices` that an entry of CUDA_VISIBLE_DEVICES names: an index, the beginning of a UUID, or
# the UUID of a part (MIG) of a device.
visible_device() {
    local entry=$1 index uuid rest
    if [[ $entry == MIG-* ]]; then
        entry=$(nvidia-smi -L 2>/dev/null | awk -v part="$entry" \
            '/^GPU/ { sub(":", "", $2); device = $2 } index($0, "UUID: " part) { print device; exit }')
    fi
    while IFS=, read -r index uuid rest; do
        uuid=${uuid# }
        if [[ -n $entry ]] && [[ $index == "$entry" || ($entry == GPU-* && $uuid == "$entry"*) ]]; then
            echo "$index, $uuid,$rest"
            return
        fi
    done <<<"$devices"
}

# CUDA would number the fastest first, nvidia-smi does not.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
devices=
device=
if ! command -v nvidia-smi >/dev/null; then
    need "nvidia-smi" "comes with the NVIDIA driver; tells which GPU this is"
elif ! devices=$(nvidia-smi --query-gpu=index,uuid,name,compute_cap,driver_version --format=csv,noheader 2>&1) || [[ -z $devices ]]; then
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
    if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
        device=$(visible_device "${CUDA_VISIBLE_DEVICES%%,*}")
        if [[ -z $device ]]; then
            need "a visible GPU" "CUDA_VISIBLE_DEVICES is '$CUDA_VISIBLE_DEVICES', and there are: ${devices//$'\n'/; }"
        fi
    else
        device=$(while IFS= read -r line; do
            is_fp8 "$(echo "$line" | cut -d, -f4 | tr -d ' ')" && echo "$line"
        done <<<"$devices" | head -n 1)
    fi
    IFS=, read -r device_index device_uuid device_name capability driver <<<"$device"
    device_uuid=${device_uuid# } device_name=${device_name# } capability=${capability# } driver=${driver# }
    if { [[ -z $device ]] && [[ -z ${CUDA_VISIBLE_DEVICES+set} ]]; } || { [[ -n $device ]] && ! is_fp8 "$capability"; }; then
        need "a GPU of compute capability 8.9 or higher" \
            "FP8 tensor cores came with Ada and Hopper; here is: $([[ -n $device ]] && echo "$device" || echo "${devices//$'\n'/; }")"
    fi
    # One device only is used, and it is said which; a part of one, or whatever its owner chose, is left as chosen.
    if [[ -z ${CUDA_VISIBLE_DEVICES+set} && -n $device ]]; then
        export CUDA_VISIBLE_DEVICES=${device_uuid:-$device_index}
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
    headers_version=$(sed -n 's/^#define CUDART_VERSION *//p' "$CUDA_PATH/include/cuda_runtime_api.h" 2>/dev/null | head -n 1)
    nvrtc_major=$(echo "${nvrtc:-}" | sed -n 's/.*\.so\.\([0-9]*\).*/\1/p')
    if [[ $headers_version =~ ^[0-9]+$ && -n $nvrtc_major ]] && ((headers_version / 1000 != nvrtc_major)); then
        notes+=("NVRTC is of CUDA $nvrtc_major, the headers in $CUDA_PATH are of CUDA $((headers_version / 1000)): kernels may not compile")
    fi
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
    echo "This machine has what is needed. Device $device_index: $device_name, compute capability $capability, driver $driver"
fi
if ((check_only)); then
    exit 0
fi
if [[ ! -x $here/bin/burn-fp8-gpu ]]; then
    echo "$here/bin has no programs: build them with \`cargo xtask gpu\`, or unpack an archive of \`cargo xtask gpu-bundle\`" >&2
    exit 2
fi

# --- The phases ------------------------------------------------------------------------------------------------------------

export BURN_FP8_GOLDEN=$here/golden
export RUST_BACKTRACE=1

# is_wanted PHASE GROUP KIND
is_wanted() {
    if [[ -n $phases ]]; then
        [[ ,$phases, == *",$1,"* || ,$phases, == *",${1%%:*},"* || ,$phases, == *",$2,"* ]]
    elif [[ $3 == validate ]]; then
        ((want_validate))
    else
        ((want_bench))
    fi
}

begun=$SECONDS
passed=0
failed=()
skipped=()

# Tests could use all of the time that there is; benchmarks keep half of it, where both are wanted.
validate_seconds=$seconds
if [[ (-z $phases && $want_validate$want_bench == 11) || $phases =~ (^|,)(bench|peers|gpu-) ]]; then
    validate_seconds=$((seconds / 2))
fi

record() {
    printf '%s\t%s\t%s\t%s\n' "$1" "$2" "$3" "$4" >>"$out/phases.tsv"
}

# skip PHASE REASON: what this machine has no means for.
skip() {
    echo "--- $1: skipped: $2"
    record "$1" "skipped: $2" 0 ""
    skipped+=("$1 ($2)")
}

# lose PHASE REASON: what should have run.
lose() {
    echo "--- $1: skipped, which is a failure: $2"
    record "$1" "skipped: $2" 0 ""
    failed+=("$1 ($2)")
}

# phase NAME GROUP KIND LIMIT COMMAND...: runs a command, if it is wanted, for LIMIT seconds at most. Where `natively` is set, it has to
# print as often that a product ran on tensor cores, or `words`: a program that emulates where it must ends well, too.
phase() {
    local name=$1 group=$2 kind=$3 limit=$4 word
    shift 4
    is_wanted "$name" "$group" "$kind" || return 0
    if ((list_only)); then
        echo "$name (group $group)"
        return 0
    fi
    for word in "$@"; do
        if [[ $word == "$here"/bin/* && ! -x $word ]]; then
            lose "$name" "there is no bin/${word##*/}"
            return 1
        fi
    done
    if ((seconds > 0)); then
        local left=$((begun + seconds - SECONDS))
        if [[ $kind == validate ]]; then
            left=$((begun + validate_seconds - SECONDS))
        fi
        # Less is not worth the start of a program.
        if ((left < 15)); then
            lose "$name" "no time left"
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
    local native
    if ((status == 0 && ${natively:-0} > 0)); then
        native=$(grep -o "${words:-native: algorithm }" "$out/$log" | wc -l)
        if ((native < natively)); then
            verdict="failed: $native times on tensor cores instead of $natively or more"
            status=1
        fi
    fi
    record "$name" "$verdict" "$took" "$log"
    echo "--- $name: $verdict in $took s"
    if ((status != 0)); then
        failed+=("$name ($verdict)")
        # The end of a log says most; all of it is in the folder.
        grep -E '^(test .* FAILED|error|ERROR|thread .* panicked|  |.*MISSED|.*TOO LARGE)' "$out/$log" | head -n 20 | sed 's/^/    /'
        return 1
    fi
    passed=$((passed + 1))
}

# tests PROGRAM LIMIT: a phase for each module of a test program, so that one which ends a process ends no other. CubeCL is to
# search for its fastest kernels over few classes of shapes: compiling them is most of what tests take.
tests() {
    local program=$here/bin/$1 name=${1%-tests} limit=$2 module names
    local all reason="the program lists no tests"
    [[ -x $program ]] || reason="there is no bin/$1"
    all=$(tests_of "$1")
    if [[ -z $all ]]; then
        if ((list_only)); then
            echo "$name: $reason" >&2
        elif is_wanted "$name" tests validate || [[ ,$phases == *",$name:"* ]]; then
            lose "$name" "$reason"
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

# sanitize TOOL TEST...: these tests of burn-fp8-tests, with each access checked in software.
sanitize() {
    local tool=$1 all name
    shift
    is_wanted "sanitizer-$tool" sanitizer validate || return 0
    all=$(tests_of burn-fp8-tests)
    for name in "$@"; do
        # A name that matches nothing would be no failure of the program.
        if ((list_only == 0)) && [[ -n $all ]] && ! grep -qxF "$name" <<<"$all"; then
            lose "sanitizer-$tool" "there is no test $name"
            return 1
        fi
    done
    phase "sanitizer-$tool" sanitizer validate 600 env CUBECL_AUTOTUNE_LEVEL=minimal "$sanitizer" --tool "$tool" \
        --error-exitcode 9 "$here/bin/burn-fp8-tests" --ignored --exact --test-threads=1 "$@"
}

# Why compute-sanitizer cannot watch a program here, if so: a container may not allow it, and it knows certain devices only. The
# program has just run without it.
sanitizer_refuses() {
    local log=$out/sanitizer-probe.log
    if timeout -k 10 180 "$sanitizer" --tool memcheck "$here/bin/burn-fp8-gpu" device >"$log" 2>&1 &&
        ! grep -qiE 'internal sanitizer error|unable to|not supported|no attachable process' "$log"; then
        return
    fi
    echo "compute-sanitizer cannot watch a program here: $({ grep -m 1 -iE '^=+ .*(error|unable|not supported|no attachable)' "$log" ||
        tail -n 1 "$log"; } | tr -d '\t')"
}

# One file to carry away. Written elsewhere first, since it must not hold itself.
pack() {
    local packed
    if packed=$(mktemp) && rm -f "$out/results.tar.gz" && tar -czf "$packed" -C "$out" . && mv "$packed" "$out/results.tar.gz"; then
        chmod 644 "$out/results.tar.gz"
        echo "everything in one file: $out/results.tar.gz"
    else
        rm -f "$packed"
        echo "note: cannot pack $out into results.tar.gz" >&2
    fi
}

if ((list_only == 0)); then
    mkdir -p "$out" || exit 2
    out=$(cd "$out" && pwd)
    # What an earlier run left would be reported as this one's.
    rm -rf "$out"/{phases.tsv,host.tsv,device.json,torch.json,accuracy.json,accuracy,results.tar.gz} "$out"/rows-*.json
    : >"$out/phases.tsv"
    {
        printf 'command\t%s\n' "$command_line"
        printf 'date\t%s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)"
        printf 'device\t%s\n' "$device_name"
        printf 'device, index and UUID\t%s, %s\n' "$device_index" "$device_uuid"
        printf 'CUDA_VISIBLE_DEVICES\t%s\n' "$CUDA_VISIBLE_DEVICES"
        printf 'compute capability\t%s\n' "$capability"
        printf 'driver\t%s\n' "$driver"
        printf 'CUDA of the driver\t%s\n' "${driver_cuda:-unknown}"
        printf 'NVRTC\t%s\n' "$nvrtc"
        printf 'cuBLASLt\t%s\n' "$cublaslt"
        printf 'CUDA headers\t%s, version %s\n' "$CUDA_PATH" "$headers_version"
        printf 'torch\t%s\n' "${torch:-none}"
        printf 'compute-sanitizer\t%s\n' "${sanitizer:-none}"
        printf 'kernel\t%s\n' "$(uname -r)"
        printf 'processor\t%s\n' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores"
        cat "$here/MANIFEST"
    } >"$out/host.tsv"

    # Without this nothing else makes sense.
    echo "--- device"
    if ! (cd "$out" && timeout -k 10 120 "$here/bin/burn-fp8-gpu" device --json device.json) 2>&1 | tee "$out/device.log"; then
        record device "failed" 0 device.log
        "$here/bin/burn-fp8-gpu" report "$out" >/dev/null
        pack
        echo "burn-fp8 does not run natively on this device: see $out/device.log" >&2
        exit 1
    fi
    record device ok 0 device.log
    passed=1
fi

small=()
if ((quick)); then
    small=(--quick)
fi

limit=600
if ((quick)); then
    limit=180
fi
tests burn-fp8-cublaslt-tests "$limit"
tests burn-fp8-tests "$limit"

if ((list_only)) || is_wanted sanitizer sanitizer validate || [[ ,$phases == *,sanitizer-* ]]; then
    refusal=
    if [[ -z $sanitizer ]]; then
        refusal="no compute-sanitizer"
    elif ((quick)) && [[ -z $phases ]]; then
        refusal="not with --quick"
    elif ((list_only == 0)); then
        refusal=$(sanitizer_refuses)
    fi
    if [[ -n $refusal ]] && ((list_only == 0)); then
        skip sanitizer "$refusal"
    else
        # Few tests, since they take many times as long: kernels, and products on tensor cores. What memory the vendor's product
        # shares and leaves uninitialized is not ours to check.
        sanitize memcheck codes::unfused::of_joined_dimensions products::unfused::are_deterministic
        sanitize racecheck codes::unfused::of_joined_dimensions
        sanitize initcheck codes::unfused::of_joined_dimensions
    fi
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
# Its products run on tensor cores or end it. Layers too narrow for FP8 are left out by the filter, not emulated.
if ((list_only == 0)); then
    echo '{"execution": "native"}' >"$out/digits.json"
fi
phase digits examples validate 180 "$here/bin/digits" --backend cuda --config digits.json --epochs "$epochs" --out digits
# It prints what ran each step. Not with `--execution native`: cuBLASLt may lack GELU with an FP8 output, which ends it there. The other
# five of its eight products have none.
natively=5 phase fused_matmul examples validate 120 "$here/bin/fused_matmul" --backend cuda --execution auto
# A language model through Burn's Learner with its checkpoints; and one block of it in five precisions, three of them in FP8, each with three
# products of four layers.
if ((list_only == 0)) && is_wanted char-lm examples validate; then
    # A run that has ended is not trained again.
    rm -rf "$out/char-lm"
fi
phase char-lm examples validate 240 "$here/bin/char-lm" train --backend cuda --size smoke --epochs 2 --precision fp8-current --out char-lm
natively=3 words=': 12 of 12 FP8 products on tensor cores' phase char-lm-block examples validate 120 "$here/bin/char-lm" block \
    --backend cuda --out char-lm-block

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
# What was measured for torch's comparison is large and of no further use.
rm -rf "$out/accuracy"
if ! "$here/bin/burn-fp8-gpu" report "$out"; then
    failed+=("report")
fi
echo "results: $out/results.json, $out/table.txt, $out/table.md"
pack
# The names behind the numbers.
summary=$(printf '%s; ' ${failed[@]+"${failed[@]/#/failed }"} ${skipped[@]+"${skipped[@]/#/skipped }"})
summary=${summary%; }
echo "$passed passed, ${#failed[@]} failed, ${#skipped[@]} skipped: ${summary:-none}"
((${#failed[@]} == 0))
