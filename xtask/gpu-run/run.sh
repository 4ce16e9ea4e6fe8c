#!/bin/sh
# Validates burn-fp8 on this machine's NVIDIA GPU and measures it. Needs no Rust: the programs lie beside this script in bin/, and this
# starts the one that runs the others. `./run.sh --help` lists the options. Exit status: 0 all passed; 1 something failed, was cut
# short, or missed a target; 2 this machine lacks something, or the command line is wrong.
set -u

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd) || exit 2
program=$here/bin/burn-fp8-gpu-run

# cannot WHAT WHY-AND-HOW
cannot() {
    echo "This machine cannot run burn-fp8 natively. Missing:" >&2
    echo "  - $1" >&2
    echo "      $2" >&2
    exit 2
}

system=$(uname -s)-$(uname -m)
if [ "$system" != Linux-x86_64 ]; then
    cannot "Linux on x86-64" "this is $system; the programs are built for no other"
fi
if [ ! -f "$program" ]; then
    echo "$here/bin has no programs: build them with \`cargo xtask gpu\`, or unpack an archive of \`cargo xtask gpu-bundle\`" >&2
    exit 2
fi
if ! reason=$("$program" --version 2>&1); then
    cannot "a system that starts the programs" \
        "$reason; if that names GLIBC, use a Linux with glibc 2.34 or newer (2021), or build there: cargo xtask gpu"
fi
exec "$program" "$@"
