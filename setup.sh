#!/usr/bin/env bash
# Installs the system packages that building and testing Mainstay needs, from Debian's or Ubuntu's own archive.
#
#   gcc, libc6-dev   a C compiler and linker: rustc links with it, and rustls' cryptography (ring) has C and assembly
#   git, curl        the checkout, and the requests that tests send as a user would
#   wrk              a public load generator: one test drives a service with it under kills
#
# Rust itself is not installed here: rust-toolchain.toml names the version, rustup brings it (https://rustup.rs).
# What is present is left alone; running it again changes nothing. Needs root, or sudo without a password, only when
# something is missing. Exit codes: 0 all there, or only parts missing whose tests are skipped by name; 1 cannot build.
set -euo pipefail

declare -A package_of=([cc]="gcc libc6-dev" [git]="git" [curl]="curl" [wrk]="wrk")

missing=()
for command in cc git curl wrk; do
    command -v "$command" >/dev/null 2>&1 || missing+=("$command")
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
for command in cc git curl wrk; do
    if command -v "$command" >/dev/null 2>&1; then
        continue
    elif [[ $command == cc ]]; then
        echo "setup: no C compiler: nothing can be built"
        status=1
    else
        echo "setup: $command is missing; tests that need it are skipped by name"
    fi
done

if ! command -v cargo >/dev/null 2>&1; then
    echo "setup: cargo is missing: install Rust from https://rustup.rs"
    status=1
fi
((status == 0)) && echo "setup: ready"
exit "$status"
