# Short names for what a contributor does; anything with logic is in xtask. `just` alone lists them.

# List the recipes.
default:
    @just --list

# Watch a service get killed over and over while clients lose nothing.
demo *arguments:
    cargo demo {{arguments}}

# Format, lints and structure: before every commit.
check:
    cargo xtask check

# Everything CI runs.
test:
    cargo xtask test

# One simulated seed, or any other arguments of `mainstay sim`.
sim *arguments="--seed 42":
    cargo run --release --package mainstay-cli -- sim {{arguments}}

# Benchmarks beside their floors: `just bench journal --quick`.
bench *arguments="journal":
    cargo run --release --package mainstay-cli -- bench {{arguments}}

# Other groups by turns with ours (needs a JDK and Maven): `just peers-group --quick`.
peers-group *arguments:
    peers/beside-ours.sh {{arguments}}

# Fuzz one decoder for a minute (needs nightly and cargo-fuzz): `just fuzz superblock`.
fuzz target seconds="60":
    cd fuzz && cargo +nightly fuzz run {{target}} -- -max_total_time={{seconds}}

# Licences, advisories, sources (needs `cargo install cargo-deny`).
deny:
    cargo deny check

# The pages of all crates.
doc:
    cargo doc --workspace --no-deps --open

# Everything: tests, campaigns, benchmarks; writes docs/full-run.md. `just full --small` with small numbers.
full *arguments:
    cargo xtask full {{arguments}}
