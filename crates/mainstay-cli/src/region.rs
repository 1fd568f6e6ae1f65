//! `mainstay region`; and its `verify`: whether the copies of a region are the same, by the hash of each shard at each version.
//!
//! Every copy says at which version its stable state stands and what its hash is. Copies move on while they are asked: what each was seen to be is kept, and
//! a shard counts as compared when all nodes were seen at one version of it.

use crate::node::Certificates;
use crate::redefine::Set;
use crate::verdict::{UsageError, Verdict};
use anyhow::Context;
use mainstay::command_line::address;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Between two looks at all nodes.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// `mainstay region`: what nodes know of their regions.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum Region {
    /// Compare the copies of nodes, shard by shard, while they serve.
    #[command(after_help = "Example:
  mainstay region verify 127.0.0.1:7371 127.0.0.1:7372 127.0.0.1:7373

Exit code 0 when every shard was seen at the same version with the same hash at all of them; 1 when two copies differ, or when writes went on so fast that
some shard was never seen at one version at all of them; 2 when a node is named twice, or nodes of several groups are named; 3 when one does not answer.")]
    Verify(Verify),
    /// Give a region another pattern while it is used.
    #[command(after_help = "Example:
  mainstay region set 127.0.0.1:7371 data --pattern one-hop-client

The node that is asked brings about a new view, and every member writes by the new pattern from that view on: a pause as at any change of the view, and no
operation is lost or done twice. Exit code 0 when the pattern is in effect; else the reason says what is known.")]
    Set(Set),
}

/// Which nodes.
#[derive(Debug, clap::Args)]
pub(crate) struct Verify {
    /// Where clients reach the nodes: two or more.
    #[arg(value_name = "ADDRESS:PORT", num_args = 2.., required = true, value_parser = address)]
    nodes: Vec<SocketAddr>,
    #[command(flatten)]
    certificates: Certificates,
    /// How long to look for versions that all have.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    seconds_max: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A shard of a region, by the region's name.
type Shard = (String, usize);

/// What copies were seen to be: of each shard, at each version, who had which hash.
#[derive(Debug, Default)]
struct Copies {
    seen: BTreeMap<Shard, BTreeMap<String, BTreeMap<String, BTreeSet<SocketAddr>>>>,
}

impl Copies {
    /// A node said this of itself.
    fn take(&mut self, node: SocketAddr, status: &serde_json::Value) {
        for region in status["regions"].as_array().into_iter().flatten() {
            let name = region["name"].as_str().unwrap_or_default();
            for (shard, stands) in region["stands"].as_array().into_iter().flatten().enumerate() {
                if let (Some(version), Some(hash)) = (stands[0].as_str(), stands[1].as_str()) {
                    let versions = self.seen.entry((name.to_owned(), shard)).or_default();
                    let hashes = versions.entry(version.to_owned()).or_default();
                    hashes.entry(hash.to_owned()).or_default().insert(node);
                }
            }
        }
    }

    /// Shards that were seen at one version at so many nodes.
    fn compared(&self, nodes: usize) -> usize {
        let at_all = |hashes: &BTreeMap<String, BTreeSet<SocketAddr>>| {
            hashes.values().flatten().collect::<BTreeSet<_>>().len() == nodes
        };
        self.seen.values().filter(|versions| versions.values().any(at_all)).count()
    }

    /// Versions that have several hashes, in words.
    fn differing(&self) -> Vec<String> {
        let mut found = Vec::new();
        for ((region, shard), versions) in &self.seen {
            for (version, hashes) in versions.iter().filter(|(_, hashes)| hashes.len() > 1) {
                let each = hashes.iter().map(|(hash, nodes)| {
                    let nodes: Vec<String> = nodes.iter().map(SocketAddr::to_string).collect();
                    format!("{hash} at {}", nodes.join(", "))
                });
                let each: Vec<String> = each.collect();
                found.push(format!("region {region}, shard {shard}, version {version}: {}", each.join("; ")));
            }
        }
        found
    }
}

/// Does it.
///
/// # Errors
/// When a node does not answer, nodes are of different groups, one was named twice, or a pattern is not changed.
pub(crate) fn run(command: &Region) -> anyhow::Result<Verdict> {
    match command {
        Region::Verify(verify) => compare(verify),
        Region::Set(set) => set.run(),
    }
}

fn compare(verify: &Verify) -> anyhow::Result<Verdict> {
    let nodes: BTreeSet<SocketAddr> = verify.nodes.iter().copied().collect();
    let asking = verify.certificates.asking()?;
    let began = Instant::now();
    let mut copies = Copies::default();
    loop {
        let (mut clusters, mut stores) = (BTreeSet::new(), BTreeSet::new());
        for &node in &nodes {
            let status =
                asking.status(node).with_context(|| format!("the copy at {node} was not compared"))?;
            clusters.insert(status["cluster"].to_string());
            stores.insert(status["store"].to_string());
            copies.take(node, &status);
        }
        if stores.len() < verify.nodes.len() {
            let explanation =
                "a node was named twice, and a copy is compared with those of others: name each node once"
                    .to_owned();
            return Err(UsageError { explanation }.into());
        }
        if clusters.len() > 1 {
            let explanation = "the nodes belong to different groups: name nodes of one".to_owned();
            return Err(UsageError { explanation }.into());
        }
        let whole = !copies.seen.is_empty() && copies.compared(nodes.len()) == copies.seen.len();
        let differ = !copies.differing().is_empty();
        if whole || differ || began.elapsed() > Duration::from_secs(verify.seconds_max) {
            break;
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let (compared, shards, differing) = (copies.compared(nodes.len()), copies.seen.len(), copies.differing());
    let same = differing.is_empty() && compared == shards && shards > 0;
    if verify.json {
        println!(
            "{}",
            serde_json::json!({ "same": same, "shards": shards, "compared": compared, "differing": differing })
        );
    } else {
        differing.iter().for_each(|differs| println!("DIFFERS: {differs}"));
        println!(
            "{compared} of {shards} shards compared at {} nodes: {}",
            nodes.len(),
            match same {
                true => "all copies are the same",
                false if !differing.is_empty() => "COPIES DIFFER",
                false =>
                    "the others were never seen at one version; ask again with fewer writes under way, or --seconds-max",
            }
        );
    }
    Ok(if same { Verdict::Clean } else { Verdict::Wrong })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_compared_at_versions_that_all_were_seen_at() {
        let nodes: [SocketAddr; 2] =
            ["127.0.0.1:1", "127.0.0.1:2"].map(|text| text.parse().expect("an address"));
        let stands =
            |stands: [[&str; 2]; 2]| serde_json::json!({ "regions": [{ "name": "data", "stands": stands }] });
        let mut copies = Copies::default();
        copies.take(nodes[0], &stands([["1.5", "aa"], ["1.1", "cc"]]));
        copies.take(nodes[1], &stands([["1.4", "bb"], ["1.1", "cc"]]));
        assert_eq!((copies.compared(2), copies.differing().len()), (1, 0), "one is behind in a shard");
        copies.take(nodes[1], &stands([["1.5", "aa"], ["1.2", "dd"]]));
        assert_eq!((copies.compared(2), copies.differing().len()), (2, 0), "it caught up");
        copies.take(nodes[0], &stands([["1.6", "ee"], ["1.2", "ff"]]));
        let found = copies.differing();
        assert!(
            found.len() == 1 && found[0].contains("shard 1, version 1.2: dd at 127.0.0.1:2; ff at"),
            "{found:?}"
        );
    }
}
