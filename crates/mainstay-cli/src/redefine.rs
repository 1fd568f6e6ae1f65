//! `mainstay region set`: another pattern for a region in use.

use crate::node::Asked;
use crate::redis::Said;
use crate::verdict::Verdict;
use mainstay_node::settings::versioned_pattern;

/// Which region, and what it shall be.
#[derive(Debug, clap::Args)]
pub(crate) struct Set {
    #[command(flatten)]
    asked: Asked,
    /// The region's name.
    #[arg(value_name = "NAME")]
    region: String,
    /// How writes shall travel, from the next view on.
    #[arg(long, value_name = "PATTERN", value_parser = versioned_pattern)]
    pattern: &'static str,
}

impl Set {
    /// Asks the node, and waits until the pattern is in effect.
    ///
    /// # Errors
    /// When the node does not answer, or says that the pattern is not in effect.
    pub(crate) fn run(&self) -> anyhow::Result<Verdict> {
        let (region, pattern) = (self.region.as_str(), self.pattern);
        let said = self.asked.say(&[b"MAINSTAY.PATTERN", region.as_bytes(), pattern.as_bytes()])?;
        let Said::Integer(view) = said else { anyhow::bail!("{}: {said}", self.asked.node) };
        match self.asked.json {
            true => println!("{}", serde_json::json!({ "region": region, "pattern": pattern, "view": view })),
            false => println!("region {region}: {pattern} from view {view} on, at every member"),
        }
        Ok(Verdict::Clean)
    }
}
