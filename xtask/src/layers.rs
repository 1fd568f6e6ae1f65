//! The house as a table: which crate may depend on which. A changed line here is a change of the design.

/// One crate of the workspace.
#[derive(Clone, Copy, Debug)]
pub struct Layer {
    /// The crate's name, which is also its folder's.
    pub name: &'static str,
    /// Our crates that it may depend on.
    pub uses: &'static [&'static str],
    /// Our crates that its tests and examples may depend on besides.
    pub tests_use: &'static [&'static str],
    /// Whether it must neither see nor touch the world: see [`crate::silence`].
    pub silent: bool,
}

const TYPES: &str = "mainstay-types";
const JOURNAL: &str = "mainstay-journal";
const CHANNEL: &str = "mainstay-channel";
const GATE: &str = "mainstay-gate";
const GROUP: &str = "mainstay-group";
const RECOVERY: &str = "mainstay-recovery";
const REGION: &str = "mainstay-region";
const REGION_CLIENT: &str = "mainstay-region-client";
const REPLICA: &str = "mainstay-replica";
const PROCESS: &str = "mainstay-process";
const DISK: &str = "mainstay-disk";
const RUNTIME: &str = "mainstay-runtime";
const FACADE: &str = "mainstay";
const CLIENT: &str = "mainstay-client";
const SIM: &str = "mainstay-sim";
const BENCH: &str = "mainstay-bench";
const TLS: &str = "mainstay-tls";
const CHECKSUM: &str = "mainstay-checksum";
const NODE: &str = "mainstay-node";
const MPI: &str = "mainstay-mpi";
const CLI: &str = "mainstay-cli";

/// Every crate of the workspace, from the ground up. An arrow that is not here is refused.
pub const LAYERS: &[Layer] = &[
    // below everything, foreign programs included
    plain(CHECKSUM, &[]),
    // certificates, for whoever opens connections
    plain(TLS, &[]),
    // words
    silent(TYPES, &[]),
    // silent rooms, strangers to each other
    silent(JOURNAL, &[TYPES, CHECKSUM]),
    silent(CHANNEL, &[TYPES]),
    silent(GATE, &[TYPES]),
    silent(GROUP, &[TYPES]),
    silent(RECOVERY, &[TYPES]),
    silent(REGION, &[TYPES]),
    // composers: the only places that know several rooms; silent as well
    silent(PROCESS, &[TYPES, JOURNAL, CHANNEL, GATE, RECOVERY]),
    silent(REPLICA, &[TYPES, GATE, GROUP, REGION]),
    // Its tests start nodes.
    with_tests(REGION_CLIENT, &[TYPES, TLS, REGION], &[GROUP, NODE, REPLICA]),
    // drivers
    plain(DISK, &[TYPES, CHECKSUM, JOURNAL]),
    plain(SIM, &[TYPES, JOURNAL, CHANNEL, GATE, GROUP, RECOVERY, REGION, PROCESS, REPLICA, DISK]),
    // A node of a cluster finds the others in a region.
    plain(RUNTIME, &[TYPES, TLS, JOURNAL, CHANNEL, GATE, RECOVERY, PROCESS, DISK, REGION_CLIENT]),
    plain(NODE, &[TYPES, TLS, JOURNAL, GROUP, REGION, REPLICA, DISK]),
    // facade and client
    plain(CLIENT, &[TYPES]),
    // The simulator only with the feature `testing`; its tests turn that on by depending on the crate itself.
    with_tests(FACADE, &[TYPES, JOURNAL, RECOVERY, PROCESS, DISK, RUNTIME, SIM], &[CLIENT, FACADE, TLS]),
    // faces
    // Loaded into foreign programs: nothing else of ours below it, see docs/decisions/0013.
    plain(MPI, &[CHECKSUM]),
    plain(
        BENCH,
        &[
            TYPES,
            JOURNAL,
            CHANNEL,
            GATE,
            RECOVERY,
            REGION,
            PROCESS,
            DISK,
            RUNTIME,
            FACADE,
            CLIENT,
            REGION_CLIENT,
            MPI,
        ],
    ),
    with_tests(
        CLI,
        &[
            TYPES, JOURNAL, CHANNEL, GATE, RECOVERY, PROCESS, DISK, RUNTIME, FACADE, CLIENT, SIM, BENCH, MPI,
            GROUP, REPLICA, NODE, TLS,
        ],
        &[REGION_CLIENT],
    ),
    // chores: no part of the product
    plain("xtask", &[]),
];

/// Libraries that a silent crate may depend on, directly or through others: words of the language (derives and errors),
/// layouts, codecs and checksums. None reads a clock, opens a file or a socket, starts a thread or draws randomness.
pub const PURE_LIBRARIES: &[(&str, &str)] = &[
    ("bytes", "parts of a received buffer, shared without a copy"),
    ("cobs", "byte stuffing; compiled with postcard, not used by us"),
    ("crc32c", "checksum of journal records"),
    ("embedded-io", "traits only; compiled with postcard, not used by us"),
    (
        "mainstay-checksum",
        "checksum of short records; ours, for the sake of one `unsafe` that no silent crate has",
    ),
    ("postcard", "codec of checkpoints"),
    ("proc-macro2", "build time only: derives"),
    ("quote", "build time only: derives"),
    ("serde", "codec traits"),
    ("serde_bytes", "byte strings copied as such, not byte by byte"),
    ("serde_core", "codec traits"),
    ("serde_derive", "build time only: derives"),
    ("syn", "build time only: derives"),
    ("thiserror", "error types"),
    ("thiserror-impl", "build time only: derives"),
    ("unicode-ident", "build time only: derives"),
    ("xxhash-rust", "hash of states, answers and bodies"),
    ("zerocopy", "layouts of fixed headers"),
    ("zerocopy-derive", "build time only: derives"),
];

const fn silent(name: &'static str, uses: &'static [&'static str]) -> Layer {
    Layer { name, uses, tests_use: &[], silent: true }
}

const fn plain(name: &'static str, uses: &'static [&'static str]) -> Layer {
    Layer { name, uses, tests_use: &[], silent: false }
}

const fn with_tests(
    name: &'static str,
    uses: &'static [&'static str],
    tests_use: &'static [&'static str],
) -> Layer {
    Layer { name, uses, tests_use, silent: false }
}

/// The line of the table for the crate of that name.
#[must_use]
pub fn layer(name: &str) -> Option<&'static Layer> {
    LAYERS.iter().find(|layer| layer.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_point_downwards_and_no_silent_room_names_another() {
        for (place, layer) in LAYERS.iter().enumerate() {
            for used in layer.uses {
                let below = LAYERS
                    .iter()
                    .position(|other| other.name == *used)
                    .expect("a used crate is in the table");
                assert!(below < place, "{} uses {used}, which is not below it", layer.name);
            }
            if layer.silent && layer.name != PROCESS && layer.name != REPLICA {
                let below = [TYPES, CHECKSUM];
                assert!(layer.uses.iter().all(|used| below.contains(used)), "{} is silent", layer.name);
            }
        }
    }
}
