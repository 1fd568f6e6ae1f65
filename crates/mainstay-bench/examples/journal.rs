//! Runs `bench journal` alone: `cargo run --release -p mainstay-bench --example journal -- [--quick] [--json] [--threads] [ONLY]`.

use mainstay_bench::journal::{JournalOptions, journal};
use mainstay_disk::disk::Backend;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let options = JournalOptions {
        directory: std::env::current_dir()?,
        quick: has("--quick"),
        backend: if has("--threads") {
            Backend::Threads
        } else if has("--uring") {
            Backend::Uring
        } else {
            Backend::Auto
        },
        only: arguments.iter().find(|argument| !argument.starts_with("--")).cloned().unwrap_or_default(),
    };
    let report = journal(&options, &mut |name| eprintln!("{name} ..."))?;
    if has("--json") {
        println!("{}", report.json());
    } else {
        println!("{report}");
    }
    Ok(())
}
