//! `mainstay outputs`: what a running service holds back or has sent without an answer yet, and deciding
//! about what is in doubt or does not get through.

use crate::asking::{ANSWER_TIMEOUT, agent, get, url_of};
use crate::verdict::{UsageError, Verdict};
use anyhow::{Context, bail};
use serde::Deserialize;

/// Largest listing that is read, in bytes.
const LISTING_BYTES_MAX: u64 = 256 << 20;

/// `mainstay outputs`.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Outputs {
    #[command(subcommand)]
    command: Option<Command>,
    /// The running service: its URL, or its directory.
    #[arg(required = true, value_name = "URL|DIR")]
    service: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Say what became of an output in doubt, after having asked its receiver by other means, or give up one that does not get through.
    #[command(after_help = "Examples:
  mainstay outputs resolve http://127.0.0.1:7070 17 delivered     it did arrive
  mainstay outputs resolve ledger.mainstay 17 send-again          it did not: send it again
  mainstay outputs resolve ledger.mainstay 17 abandon             it did not, and shall not

Of an output that is not in doubt but released over HTTP, `delivered` and `abandon` end its sending; an attempt that is under way may still
arrive.")]
    Resolve(Resolve),
}

#[derive(Debug, clap::Args)]
struct Resolve {
    /// The running service: its URL, or its directory.
    #[arg(value_name = "URL|DIR")]
    service: String,
    /// The number of the output, as `mainstay outputs` lists it.
    output: u64,
    /// What is to be done.
    #[arg(value_enum)]
    resolution: Resolution,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Resolution {
    /// It has taken effect: treat it as acknowledged.
    Delivered,
    /// It has not: send it again. Of those in doubt only, others are sent again anyhow.
    SendAgain,
    /// It shall not: give it up.
    Abandon,
}

/// Runs it.
///
/// # Errors
/// When no service answers.
pub(crate) fn run(outputs: &Outputs) -> anyhow::Result<Verdict> {
    match (&outputs.command, &outputs.service) {
        (Some(Command::Resolve(resolve)), _) => resolve_one(resolve),
        (None, Some(service)) => list(service, outputs.json),
        (None, None) => {
            let explanation = "name a running service by its URL or its directory".to_owned();
            Err(UsageError { explanation }.into())
        }
    }
}

fn list(service: &str, json: bool) -> anyhow::Result<Verdict> {
    let url = format!("{}/outputs", url_of(service)?);
    let text = get(&url, LISTING_BYTES_MAX)?;
    if json {
        println!("{text}");
        return Ok(Verdict::Clean);
    }
    let listing: Listing = serde_json::from_str(&text)
        .with_context(|| format!("{url} lists outputs in a way unknown to this version"))?;
    print(&listing, service);
    Ok(Verdict::Clean)
}

/// The part of the listing that the table shows; the rest is for `--json`.
#[derive(Deserialize)]
struct Listing {
    outputs: Vec<Output>,
    ports: Vec<Port>,
}

#[derive(Deserialize)]
struct Output {
    id: u64,
    port: String,
    key: String,
    state: String,
    bytes: u64,
    waits_for: Option<Wait>,
    trouble: Option<String>,
}

#[derive(Deserialize)]
struct Wait {
    mark: String,
    value: u64,
    published: u64,
}

#[derive(Deserialize)]
struct Port {
    name: String,
    delivered: u64,
    refused: u64,
    trouble: Option<String>,
    stopped: Option<String>,
}

fn print(listing: &Listing, service: &str) {
    for Port { name, delivered, refused, trouble, stopped } in &listing.ports {
        let of_port = |output: &&Output| output.port == *name;
        let in_doubt =
            listing.outputs.iter().filter(of_port).filter(|output| output.state == "in-doubt").count();
        let on_their_way = listing.outputs.iter().filter(of_port).count() - in_doubt;
        println!(
            "{name}: {delivered} acknowledged and {refused} refused since the service started, {on_their_way} on their way, \
             {in_doubt} in doubt"
        );
        if let Some(why) = trouble {
            println!("  NOT GETTING THROUGH, and sent again until it does: {why}");
        }
        if let Some(why) = stopped {
            println!("  STOPPED: {why}");
        }
    }
    for output in &listing.outputs {
        let Output { id, port, key, state, bytes, waits_for, trouble } = output;
        let trouble = trouble.as_ref().map_or_else(String::new, |why| format!("  {why}"));
        let waits = waits_for.as_ref().map_or_else(String::new, |Wait { mark, value, published }| {
            format!("  waits for {mark} to reach {value}, it is at {published}")
        });
        println!("{id:>8}  {port:<16} {state:<10} {bytes:>8} B  {key}{waits}{trouble}");
    }
    let in_doubt = listing.outputs.iter().filter(|output| output.state == "in-doubt").count();
    if in_doubt > 0 {
        println!(
            "\nAn output in doubt may or may not have arrived, and is never sent again by itself. Ask its receiver, then:"
        );
        println!("  mainstay outputs resolve {service} ID delivered|send-again|abandon");
    }
    if listing.outputs.iter().any(|output| output.trouble.is_some()) {
        println!("\nAn output that does not get through is sent again without end. To give it up:");
        println!("  mainstay outputs resolve {service} ID abandon");
    }
}

fn resolve_one(resolve: &Resolve) -> anyhow::Result<Verdict> {
    let Resolve { service, output, resolution } = resolve;
    let url = format!("{}/outputs/{output}/resolve", url_of(service)?);
    let word = match resolution {
        Resolution::Delivered => "delivered",
        Resolution::SendAgain => "send-again",
        Resolution::Abandon => "abandon",
    };
    let mut response = agent(ANSWER_TIMEOUT)
        .post(&url)
        .content_type("application/json")
        .send(serde_json::json!({ "resolution": word }).to_string())
        .with_context(|| format!("{url} does not answer"))?;
    let text = response.body_mut().read_to_string().unwrap_or_default();
    match response.status().as_u16() {
        200..300 => println!("output {output}: {word}"),
        404 => {
            eprintln!(
                "mainstay: output {output} is not in-doubt, nor, for `delivered` and `abandon`, released over HTTP; nothing was changed"
            );
            return Ok(Verdict::Wrong);
        }
        status => bail!("{url} answers {status}: {text}"),
    }
    Ok(Verdict::Clean)
}
