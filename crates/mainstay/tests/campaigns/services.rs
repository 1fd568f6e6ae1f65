//! Campaigns on handlers of users: a sound one passes and is crashed everywhere; every planted fault is found, and told in a
//! short history.

use mainstay::testing::{Campaign, CampaignFailure, Guarantee, campaign};
use mainstay::{Context, Outcome, OutputId, Refusal, Service};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// What is wrong with a bank.
trait Flaw: Default + Clone + Serialize + DeserializeOwned + Send + 'static {
    /// Added to every answer.
    fn answers(bank: &Bank<Self>) -> u64 {
        let _ = bank;
        0
    }

    /// Whether money may be taken that is not there.
    fn overdraws(bank: &Bank<Self>) -> bool {
        let _ = bank;
        false
    }

    /// Panics, perhaps.
    fn timer() {}
}

/// Accounts; a withdrawal is confirmed to the outside, and a deposit later earns a bonus.
#[derive(Default, Serialize, Deserialize)]
#[serde(bound = "")]
struct Bank<F: Flaw> {
    accounts: BTreeMap<u8, u64>,
    owners: HashMap<u8, u64>,
    #[serde(skip)]
    handled: u64,
    confirmed: u64,
    flaw: PhantomData<F>,
}

#[derive(Serialize, Deserialize)]
enum Command {
    Deposit { account: u8, amount: u64 },
    Withdraw { account: u8, amount: u64 },
    Save { account: u8 },
}

impl<F: Flaw> Service for Bank<F> {
    const NAME: &'static str = "bank";
    type Command = Command;
    type Answer = u64;
    type Query = u8;
    type View = u64;

    fn handle(&mut self, command: Command, context: &mut Context<'_>) -> Result<u64, Refusal> {
        self.handled += 1;
        let balance = match command {
            Command::Deposit { account, amount } => {
                self.owners.insert(account, amount);
                let balance = self.accounts.entry(account).or_default();
                *balance += amount;
                *balance
            }
            Command::Withdraw { account, amount } => {
                let overdraws = F::overdraws(self);
                let balance = self.accounts.entry(account).or_default();
                *balance = match balance.checked_sub(amount) {
                    Some(left) => left,
                    None if overdraws => balance.wrapping_sub(amount),
                    None => return Err("not that much".into()),
                };
                let left = *balance;
                context.send("mail", format!("{amount} of account {account}"));
                left
            }
            Command::Save { account } => {
                context.set_timer(Duration::from_secs(3600), u64::from(account));
                context.random_u64() % 100
            }
        };
        Ok(balance.wrapping_add(F::answers(self)))
    }

    fn query(&self, account: u8) -> Result<u64, Refusal> {
        self.accounts.get(&account).copied().ok_or_else(|| "no such account".into())
    }

    fn timer(&mut self, account: u64, context: &mut Context<'_>) {
        F::timer();
        let bonus = context.now().0 % 3;
        *self.accounts.entry(account as u8).or_default() += bonus;
    }

    fn output_settled(&mut self, _: OutputId, _: &Outcome, _: &mut Context<'_>) {
        self.confirmed += 1;
    }
}

fn bank<F: Flaw>(seeds: u64) -> Campaign<Bank<F>> {
    campaign::<Bank<F>>(0..seeds)
        .commands(|random| {
            let account = random.below(3) as u8;
            match random.below(10) {
                0..5 => Command::Deposit { account, amount: random.below(100) },
                5..9 => Command::Withdraw { account, amount: random.below(50) },
                _ => Command::Save { account },
            }
        })
        .queries([0, 1, 2, 3])
        .output("mail", Guarantee::Deduplicated)
        .invariant(|bank| {
            let all: u128 = bank.accounts.values().map(|&balance| u128::from(balance)).sum();
            assert!(all < 1 << 40, "the bank has {all}");
        })
}

fn found<F: Flaw>() -> CampaignFailure {
    crate::found::found(&bank::<F>(200).report())
}

fn found_in_short<F: Flaw>(property: &str) -> CampaignFailure {
    crate::found::found_in_short(&bank::<F>(200).report(), property, 3)
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct Sound;
impl Flaw for Sound {}

#[test]
fn a_sound_service_passes_and_is_crashed_everywhere() {
    let report = bank::<Sound>(150).report();
    assert_eq!(report.failure, None, "{report}");
    assert!(report.deliveries > 150 * 10 && report.crashes >= 150 * 3, "{report}");
    for kind in [
        "kill",
        "power_cut",
        "crash_in_open",
        "crash_in_recovery",
        "crash_in_checkpoint_save",
        "crash_in_checkpoint_publish",
        "crash_in_prepare",
        "crash_in_trim",
        "duplicate_after_crash",
        "checkpoint_used",
        "output_again",
        "timer",
        "read",
    ] {
        assert!(report.reached[kind] > 0, "{kind} was never reached: {report}");
    }
    assert!(report.to_string().contains("no violation"), "{report}");
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct WalksAHashMap;
impl Flaw for WalksAHashMap {
    fn answers(bank: &Bank<Self>) -> u64 {
        bank.owners.iter().fold(0, |folded, (account, amount)| folded * 31 + u64::from(*account) + amount)
    }
}

#[test]
fn a_hash_map_walked_in_its_order_is_found() {
    // Its order is drawn anew in every run, and when it is read back: which of the two shows first is chance, and so is how short the history gets.
    let failure = found::<WalksAHashMap>();
    assert!(["deterministic", "state-saved"].contains(&failure.property), "{failure}");
    assert!(failure.what.contains("recorded:"), "{failure}");
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct ReadsAClock;
impl Flaw for ReadsAClock {
    fn answers(_: &Bank<Self>) -> u64 {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
        now.as_nanos() as u64
    }
}

#[test]
fn a_clock_is_found() {
    let failure = found_in_short::<ReadsAClock>("deterministic");
    assert!(failure.what.contains("SystemTime::now") && failure.what.contains("now:"), "{failure}");
    assert_eq!(failure.shortest, (1, 0), "{failure}");
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct CountsAcrossLives;
impl Flaw for CountsAcrossLives {
    fn answers(_: &Bank<Self>) -> u64 {
        static HANDLED: AtomicU64 = AtomicU64::new(0);
        HANDLED.fetch_add(1, Ordering::Relaxed)
    }
}

#[test]
fn a_counter_that_outlives_the_service_is_found() {
    let failure = found_in_short::<CountsAcrossLives>("deterministic");
    assert!(failure.what.contains("a static"), "{failure}");
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct ForgetsAField;
impl Flaw for ForgetsAField {
    fn answers(bank: &Bank<Self>) -> u64 {
        bank.handled
    }
}

#[test]
fn a_field_that_is_not_saved_is_found() {
    let failure = found_in_short::<ForgetsAField>("state-saved");
    assert!(failure.what.contains("serde(skip)"), "{failure}");
    assert_eq!(failure.shortest.0, 2, "one request to forget, one to show it: {failure}");
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct OverdrawsAfterABonus;
impl Flaw for OverdrawsAfterABonus {
    fn overdraws(bank: &Bank<Self>) -> bool {
        bank.accounts.len() == 3 && bank.confirmed == 2
    }
}

#[test]
fn an_invariant_that_a_rare_sequence_breaks_is_found() {
    let failure = found_in_short::<OverdrawsAfterABonus>("invariant");
    assert!(failure.what.contains("the bank has 1844674407"), "{failure}");
    assert!(failure.what.contains("tests/campaigns/services.rs:"), "it names the assertion: {failure}");
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct PanicsInATimer;
impl Flaw for PanicsInATimer {
    fn timer() {
        panic!("no bonus today");
    }
}

#[test]
fn a_panic_is_found() {
    let failure = found_in_short::<PanicsInATimer>("handler-panics");
    assert!(failure.what.contains("no bonus today"), "{failure}");
}

/// A second timer that was due in the same step was tried behind the first one's panic; after that no life could start.
#[test]
fn handlers_that_may_panic_are_given_up_also_when_two_timers_are_due_at_once() {
    let report = bank::<PanicsInATimer>(60).may_panic().report();
    assert_eq!(report.failure, None, "{report}");
    assert!(report.reached["quarantined"] > 0 && report.reached["abandoned"] > 0, "{report}");
}

#[test]
fn a_failing_campaign_prints_the_history_and_the_line_that_runs_it_again() {
    let panicked = std::panic::catch_unwind(|| bank::<ForgetsAField>(200).run()).expect_err("it fails");
    let text = panicked.downcast_ref::<String>().expect("a text");
    let name = "a_failing_campaign_prints_the_history_and_the_line_that_runs_it_again";
    for part in ["shortest history", "delivery d1: request ", "again: MAINSTAY_SEEDS=", name] {
        assert!(text.contains(part), "{text}");
    }
}
