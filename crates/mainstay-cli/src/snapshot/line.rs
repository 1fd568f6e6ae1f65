//! A snapshot as a directory: `manifest.json`, and the part of each node in a file of its own.
//!
//! The parts say everything of themselves; the manifest adds their checksums and is for people. What it says is compared, never believed.

use anyhow::{Context, bail};
use mainstay_process::part::{self, Part, check_line};
use mainstay_types::id::NodeId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_128;

/// The version of the manifest.
const FORMAT: u32 = 1;

const MANIFEST: &str = "manifest.json";

/// What a snapshot holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// The version of this file.
    format: u32,
    /// The snapshot: number, node where it began, life of that node.
    pub(crate) snapshot: String,
    /// The cluster.
    cluster: String,
    /// Messages on their way in the line.
    messages_on_the_way: u64,
    /// By number of the node.
    nodes: Vec<NodePart>,
}

/// One node's part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NodePart {
    node: u32,
    /// Its file.
    file: String,
    bytes: u64,
    /// Its checksum, in hexadecimal.
    xxh3_128: String,
    service: String,
    version: u32,
    life: u64,
    deliveries: u64,
    outputs_pending: usize,
    open_requests: usize,
    /// The life in which the node goes on from here.
    next_life: u64,
    /// Its row of the matrix.
    links: Vec<Row>,
}

/// Messages between this node and another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Row {
    peer: u32,
    sent: u64,
    dropped: u64,
    received: u64,
}

/// A consistent line: checked.
#[derive(Debug)]
pub(crate) struct Line {
    manifest: Manifest,
    parts: Vec<Part>,
    directory: PathBuf,
}

impl Line {
    /// Checks parts that were just fetched, and writes them to `directory`, which must not exist.
    ///
    /// `empty`: no message may be on its way in it.
    pub(crate) fn write(directory: &Path, fetched: &[Vec<u8>], empty: bool) -> anyhow::Result<Self> {
        let (manifest, parts) =
            checked(fetched.iter().map(|bytes| ("a part that was fetched".to_owned(), bytes.as_slice())))?;
        if empty && manifest.messages_on_the_way > 0 {
            bail!(
                "{} messages are on their way in snapshot {}, which was to have none: a bug. Nothing was written",
                manifest.messages_on_the_way,
                manifest.snapshot
            );
        }
        let name = directory.file_name().context("the snapshot's directory has no name")?;
        let partial = directory.with_file_name(format!("{}.partial", name.to_string_lossy()));
        fs::create_dir(&partial).with_context(|| format!("{} cannot be made", partial.display()))?;
        let written = (|| {
            for (bytes, node) in fetched.iter().zip(&parts) {
                write_synced(&partial.join(file_name(node.node)), bytes)?;
            }
            let text = serde_json::to_vec_pretty(&manifest).map_err(std::io::Error::other)?;
            write_synced(&partial.join(MANIFEST), &text)?;
            fs::File::open(&partial)?.sync_all()?;
            fs::rename(&partial, directory)?;
            fs::File::open(
                directory.parent().filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new(".")),
            )?
            .sync_all()
        })();
        if let Err(error) = written {
            // Half a snapshot is none.
            let _ = fs::remove_dir_all(&partial);
            return Err(error).with_context(|| format!("{} cannot be written", directory.display()));
        }
        Ok(Self { manifest, parts, directory: directory.to_owned() })
    }

    /// Reads and checks a snapshot.
    pub(crate) fn read(directory: &Path) -> anyhow::Result<Self> {
        let path = directory.join(MANIFEST);
        let text = fs::read(&path).map_err(|error| unreadable(directory, error))?;
        let said: Manifest = serde_json::from_slice(&text)
            .with_context(|| format!("{} is no manifest of a snapshot of this version", path.display()))?;
        if said.format != FORMAT {
            bail!("{} has format {}, this program reads {FORMAT}", path.display(), said.format);
        }
        let mut files = Vec::new();
        for node in &said.nodes {
            let path = directory.join(file_name(NodeId(node.node)));
            let bytes = fs::read(&path).with_context(|| {
                format!(
                    "{}, the part of node {}, cannot be read: bring it back, or restore another snapshot",
                    path.display(),
                    node.node
                )
            })?;
            files.push((path.display().to_string(), bytes));
        }
        let (manifest, parts) = checked(files.iter().map(|(name, bytes)| (name.clone(), bytes.as_slice())))
            .with_context(|| format!("{} cannot be restored", directory.display()))?;
        if manifest != said {
            bail!("{} says something else than the parts do: a file was exchanged", path.display());
        }
        Ok(Self { manifest, parts, directory: directory.to_owned() })
    }

    pub(crate) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The numbers of its nodes, as a list.
    pub(crate) fn nodes(&self) -> String {
        let numbers: Vec<String> = self.manifest.nodes.iter().map(|node| node.node.to_string()).collect();
        numbers.join(", ")
    }

    /// The bytes of a node's part; `None` if it is not in the line.
    pub(crate) fn bytes(&self, node: NodeId) -> anyhow::Result<Option<Vec<u8>>> {
        if self.parts.iter().all(|part| part.node != node) {
            return Ok(None);
        }
        let path = self.directory.join(file_name(node));
        fs::read(&path).map(Some).with_context(|| format!("{} cannot be read", path.display()))
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Manifest { snapshot, nodes, messages_on_the_way, .. } = &self.manifest;
        for NodePart { node, service, version, deliveries, bytes, outputs_pending, .. } in nodes {
            writeln!(
                f,
                "node {node}: {service} version {version}, {deliveries} deliveries, {outputs_pending} outputs pending, {bytes} bytes"
            )?;
        }
        write!(
            f,
            "snapshot {snapshot} in {}: {} nodes, one consistent line, {messages_on_the_way} messages on their way",
            self.directory.display(),
            nodes.len()
        )
    }
}

fn file_name(node: NodeId) -> String {
    format!("node-{}", node.0)
}

fn write_synced(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    fs::write(path, bytes)?;
    fs::File::open(path)?.sync_all()
}

/// Why there is no manifest, and what to do.
fn unreadable(directory: &Path, error: std::io::Error) -> anyhow::Error {
    let what = if directory.is_file() {
        "is a file"
    } else if !directory.exists() {
        "is not there"
    } else if error.kind() == std::io::ErrorKind::NotFound {
        "is no snapshot, it has no manifest.json"
    } else {
        return anyhow::Error::new(error)
            .context(format!("{} cannot be read", directory.join(MANIFEST).display()));
    };
    let next = "name the directory that `mainstay snapshot` made";
    anyhow::Error::new(error).context(format!("{} {what}: {next}", directory.display()))
}

/// Checks parts, each with its name for messages.
fn checked<'a>(files: impl Iterator<Item = (String, &'a [u8])>) -> anyhow::Result<(Manifest, Vec<Part>)> {
    let (mut parts, mut sums) = (Vec::new(), Vec::new());
    for (name, bytes) in files {
        parts.push(Part::read(bytes).with_context(|| format!("{name} cannot be used"))?);
        sums.push((bytes.len() as u64, xxh3_128(bytes)));
    }
    check_line(&parts).context("the parts are no consistent line")?;
    let first = parts.first().context("there is no part")?;
    let node = |(part, (bytes, sum)): (&Part, (u64, u128))| NodePart {
        node: part.node.0,
        file: file_name(part.node),
        bytes,
        xxh3_128: format!("{sum:032x}"),
        service: part.name.clone(),
        version: part.version,
        life: part.life.0,
        deliveries: part.executed.0,
        outputs_pending: part.outputs_pending,
        open_requests: part.open_requests,
        next_life: part::next_life(&parts, part.node).0,
        links: part
            .links
            .iter()
            .map(|link| Row {
                peer: link.peer.0,
                sent: link.sent.0,
                dropped: link.dropped.0,
                received: link.received.0,
            })
            .collect(),
    };
    let manifest = Manifest {
        format: FORMAT,
        snapshot: first.snapshot.to_string(),
        cluster: first.cluster.to_string(),
        messages_on_the_way: parts.iter().flat_map(|from| parts.iter().map(|to| from.on_the_way(to))).sum(),
        nodes: parts.iter().zip(sums).map(node).collect(),
    };
    Ok((manifest, parts))
}
