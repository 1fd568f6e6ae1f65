//! `mainstay group watch`: where nodes stand, live.

use crate::node::Certificates;
use crate::verdict::Verdict;
use mainstay::command_line::address;
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// Puts the cursor to the top and clears what is below.
const CLEAR: &str = "\x1b[H\x1b[J";

/// `mainstay group watch`.
#[derive(Debug, clap::Args)]
pub(crate) struct Watch {
    /// Where clients reach the nodes.
    #[arg(value_name = "ADDRESS:PORT", num_args = 1.., required = true, value_parser = address)]
    nodes: Vec<SocketAddr>,
    #[command(flatten)]
    certificates: Certificates,
    /// How often to look.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 500, value_parser = clap::value_parser!(u64).range(20..))]
    every_ms: u64,
    /// End after so many looks.
    #[arg(long, value_name = "COUNT")]
    looks: Option<u64>,
    /// Print a line of JSON whenever something has changed.
    #[arg(long)]
    json: bool,
}

/// Watches until it is interrupted, or for as many looks as were asked for.
///
/// # Errors
/// A certificate of no use; those of standard output.
pub(crate) fn run(watch: &Watch) -> anyhow::Result<Verdict> {
    let asking = watch.certificates.asking()?;
    let mut out = std::io::stdout();
    let live = out.is_terminal() && !watch.json;
    let mut shown = String::new();
    for look in 1.. {
        let ask = |&node: &SocketAddr| (node, asking.status(node).map_err(|error| why(&error)));
        let seen: Vec<Seen> = watch.nodes.iter().map(ask).collect();
        let text = match watch.json {
            true => format!("{}\n", as_json(&seen)),
            false => table(&seen),
        };
        if text != shown {
            let clear = if live { CLEAR } else { "" };
            write!(out, "{clear}{text}")?;
            out.flush()?;
            shown = text;
        }
        if watch.looks.is_some_and(|looks| look >= looks) {
            break;
        }
        std::thread::sleep(Duration::from_millis(watch.every_ms));
    }
    Ok(Verdict::Clean)
}

/// A node, and where it stands or why it does not say so.
type Seen = (SocketAddr, Result<Value, String>);

/// The innermost reason, which is the connection's.
fn why(error: &anyhow::Error) -> String {
    error.root_cause().to_string()
}

fn as_json(seen: &[Seen]) -> Value {
    let one = |(node, status): &Seen| {
        let of = |name: &str| status.as_ref().map_or(Value::Null, |status| status[name].clone());
        serde_json::json!({
            "node": node, "answers": status.is_ok(), "error": status.as_ref().err(), "serves": of("serves"), "view": of("view"), "members": of("members"),
            "explanation": of("explanation"),
        })
    };
    seen.iter().map(one).collect()
}

fn table(seen: &[Seen]) -> String {
    let mut text = format!("{:<22} {:>6} {:>8} {:>10}  {}\n", "NODE", "VIEW", "MEMBERS", "KEYS", "STANDS");
    for (node, status) in seen {
        let node = node.to_string();
        let status = match status {
            Ok(status) => status,
            Err(why) => {
                text.push_str(&format!(
                    "{node:<22} {:>6} {:>8} {:>10}  does not answer: {why}\n",
                    "-", "-", "-"
                ));
                continue;
            }
        };
        let count = |list: &Value| list.as_array().map_or(0, Vec::len);
        let regions = status["regions"].as_array();
        let keys: u64 = regions.into_iter().flatten().filter_map(|region| region["keys"].as_u64()).sum();
        let explanation = status["explanation"].as_str().unwrap_or_default();
        text.push_str(&format!(
            "{node:<22} {:>6} {:>8} {keys:>10}  {explanation}\n",
            status["view"],
            count(&status["members"])
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_does_not_answer_has_a_row_too() {
        let up = serde_json::json!({
            "view": 7, "serves": true, "members": [{}, {}], "explanation": "serves: it does", "regions": [{ "keys": 3 }, { "keys": 4 }],
        });
        let nodes: [SocketAddr; 2] =
            ["127.0.0.1:1", "127.0.0.1:2"].map(|text| text.parse().expect("an address"));
        let seen = [(nodes[0], Ok(up)), (nodes[1], Err("refused".to_owned()))];
        let text = table(&seen);
        let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["127.0.0.1:1", "7", "2", "7", "serves:", "it", "does"]);
        assert_eq!(rows[2], ["127.0.0.1:2", "-", "-", "-", "does", "not", "answer:", "refused"]);
        let json = as_json(&seen);
        assert_eq!((&json[0]["view"], &json[1]["answers"]), (&Value::from(7), &Value::from(false)));
    }
}
