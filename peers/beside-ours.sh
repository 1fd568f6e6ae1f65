#!/usr/bin/env bash
# Measures JGroups and Geode by turns with a region of ours: `just peers-group`. Arguments are those of `mainstay bench patterns`.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
into=${CARGO_TARGET_DIR:-$root/target}/peers
"$root/peers/install.sh" "$into" >&2
cd "$root"
exec cargo run --release --locked --quiet --package mainstay-cli -- bench patterns --only peers --peers "$into" "$@"
