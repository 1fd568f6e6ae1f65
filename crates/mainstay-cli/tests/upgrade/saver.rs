//! The service: money is saved, and each deposit told to the outside. From version 2 on the state has another shape.

use mainstay::command_line::serve_with;
use mainstay::{Context, OutputPort, Refusal, RestoreError, SavedState, Server, Service};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::ExitCode;

/// Environment: where notices are sent.
pub(crate) const NOTICES: &str = "SAVER_NOTICES";

/// What is asked of it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Deposit {
    /// More than zero.
    pub(crate) amount: u64,
    /// Whether the outside is told.
    #[serde(default)]
    pub(crate) notice: bool,
}

/// What can be read.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct View {
    pub(crate) total: u64,
    /// Deposits since version 2.
    pub(crate) deposits: Option<u64>,
}

/// Version 1.
#[derive(Default, Serialize, Deserialize)]
struct First {
    total: u64,
}

/// Versions from 2 on.
#[derive(Default, Serialize, Deserialize)]
struct Later<const VERSION: u32> {
    deposits: u64,
    total: u64,
}

/// Version 2 with another idea of what a large deposit is worth.
#[derive(Default, Serialize, Deserialize)]
struct Generous(Later<2>);

/// Version 2 that takes over nothing.
#[derive(Default, Serialize, Deserialize)]
struct Forgetful(Later<2>);

/// Kept as a function of its own, for a debugger to stop in.
#[inline(never)]
fn tell(deposit: &Deposit, version: u32, context: &mut Context<'_>) {
    if deposit.notice {
        context.send("notices", format!(r#"{{"amount":{},"by":{version}}}"#, deposit.amount));
    }
}

impl Service for First {
    const NAME: &'static str = "saver";
    type Command = Deposit;
    type Answer = u64;
    type Query = ();
    type View = View;

    fn handle(&mut self, deposit: Deposit, context: &mut Context<'_>) -> Result<u64, Refusal> {
        self.total += deposit.amount;
        tell(&deposit, Self::VERSION, context);
        Ok(self.total)
    }

    fn query(&self, (): ()) -> Result<View, Refusal> {
        Ok(View { total: self.total, deposits: None })
    }
}

impl<const VERSION: u32> Service for Later<VERSION> {
    const NAME: &'static str = "saver";
    const VERSION: u32 = VERSION;
    type Command = Deposit;
    type Answer = u64;
    type Query = ();
    type View = View;

    fn handle(&mut self, deposit: Deposit, context: &mut Context<'_>) -> Result<u64, Refusal> {
        self.total += deposit.amount;
        self.deposits += 1;
        // The same notice as ever, so that the versions can be compared.
        tell(&deposit, 1, context);
        Ok(self.total)
    }

    fn query(&self, (): ()) -> Result<View, Refusal> {
        Ok(View { total: self.total, deposits: Some(self.deposits) })
    }

    fn migrate(saved: SavedState<'_>) -> Result<Self, RestoreError> {
        match saved.version() {
            1 => Ok(Self { deposits: 0, total: saved.read::<First>()?.total }),
            _ => saved.read(),
        }
    }
}

impl Service for Generous {
    const NAME: &'static str = "saver";
    const VERSION: u32 = 2;
    type Command = Deposit;
    type Answer = u64;
    type Query = ();
    type View = View;

    fn handle(&mut self, mut deposit: Deposit, context: &mut Context<'_>) -> Result<u64, Refusal> {
        deposit.amount += u64::from(deposit.amount >= 100);
        self.0.handle(deposit, context)
    }

    fn query(&self, (): ()) -> Result<View, Refusal> {
        self.0.query(())
    }

    fn migrate(saved: SavedState<'_>) -> Result<Self, RestoreError> {
        Later::migrate(saved).map(Self)
    }
}

impl Service for Forgetful {
    const NAME: &'static str = "saver";
    const VERSION: u32 = 2;
    type Command = Deposit;
    type Answer = u64;
    type Query = ();
    type View = View;

    fn handle(&mut self, deposit: Deposit, context: &mut Context<'_>) -> Result<u64, Refusal> {
        self.0.handle(deposit, context)
    }

    fn query(&self, (): ()) -> Result<View, Refusal> {
        self.0.query(())
    }

    fn migrate(saved: SavedState<'_>) -> Result<Self, RestoreError> {
        Err(RestoreError { reason: format!("nothing is taken over from version {}", saved.version()) })
    }
}

/// Serves, or replays, if this program was started under the name of a version.
pub(crate) fn run_if_named_so() -> Option<ExitCode> {
    let started_as = std::env::args_os().next()?;
    let name = Path::new(&started_as).file_name()?.to_str()?;
    let code = match name {
        "saver-1" => serve(First::default),
        "saver-2" => serve(Later::<2>::default),
        "saver-3" => serve(Later::<3>::default),
        "saver-4" => serve(Later::<4>::default),
        "saver-generous" => serve(Generous::default),
        "saver-forgetful" => serve(Forgetful::default),
        _ => {
            return crate::instances::run_if_named_so(name).or_else(|| crate::cluster::run_if_named_so(name));
        }
    };
    Some(code)
}

fn serve<S: Service>(make: impl Fn() -> S + Send + Sync + 'static) -> ExitCode {
    let notices = std::env::var(NOTICES).unwrap_or_else(|_| "http://127.0.0.1:9/notices".to_owned());
    serve_with(Server::new(make).pages(3, 64 << 10).output(OutputPort::http("notices", notices)).limits(
        |limits| {
            limits.body_bytes_max = 16 << 10;
            limits.checkpoint_log_bytes = 64 << 10;
        },
    ))
}
