//! Asking a running service over HTTP: what the commands share that look at one.

use crate::verdict::UsageError;
use anyhow::{Context, bail};
use mainstay_disk::lock::LOCK_FILE;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// How long a running service may take to answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// An HTTP client that takes every status for an answer, and waits `timeout` for a whole one.
pub(crate) fn agent(timeout: Duration) -> ureq::Agent {
    ureq::Agent::config_builder()
        .http_status_as_error(false)
        .timeout_global(Some(timeout))
        .build()
        .new_agent()
}

/// What stands at `url`, at most `bytes_max` long.
///
/// # Errors
/// When nobody answers, or with another status than success.
pub(crate) fn get(url: &str, bytes_max: u64) -> anyhow::Result<String> {
    let answered = agent(ANSWER_TIMEOUT).get(url).call();
    let mut response = answered.with_context(|| format!("{url} does not answer"))?;
    let read = response.body_mut().with_config().limit(bytes_max).read_to_string();
    let text = read.with_context(|| format!("{url} broke off"))?;
    if !response.status().is_success() {
        bail!("{url} answers {}: {text}", response.status());
    }
    Ok(text)
}

/// The address of a service named by its URL, or by its directory: then the lock file there says where it listens.
pub(crate) fn url_of(service: &str) -> anyhow::Result<String> {
    if service.starts_with("http://") || service.starts_with("https://") {
        return Ok(service.trim_end_matches('/').to_owned());
    }
    let directory = Path::new(service);
    if !directory.is_dir() {
        let explanation = format!("`{service}` is neither a URL (http://127.0.0.1:7070) nor a directory");
        return Err(UsageError { explanation }.into());
    }
    if mainstay_disk::lock::writer(directory).is_none() {
        bail!(
            "no process serves {service}: outputs are known to a running service only. Start it and ask again; \
             `mainstay journal dump {service}` shows what is recorded of them"
        );
    }
    let lock = std::fs::read_to_string(directory.join(LOCK_FILE)).unwrap_or_default();
    let mut addresses = lock.split_whitespace().filter_map(|word| word.parse().ok());
    // Port 0 was the wish for any port.
    let address = addresses.find(|address: &SocketAddr| address.port() != 0);
    match address {
        Some(address) => Ok(format!("http://{address}")),
        None => {
            bail!("the process that serves {service} has not written down where it listens: name its URL")
        }
    }
}
