//! Campaigns on instances over several nodes: sound ones pass and are crashed everywhere; every planted fault is found, and told in a
//! short history.

use mainstay::instance::{Caller, Context, Instance, Key, Node, Reply};
use mainstay::testing::{Call, CampaignFailure, Guarantee, InstanceCampaign, campaign_of_instances};
use mainstay::{Outcome, OutputId, Policy, Refusal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What is wrong with an account.
trait Flaw: Default + Clone + Serialize + DeserializeOwned + Send + 'static {
    /// Added to every answer.
    fn answers(account: &Account<Self>) -> u64 {
        let _ = account;
        0
    }

    /// Who is greeted, and in which order.
    fn greets(account: &Account<Self>) -> Vec<String> {
        let mut friends: Vec<_> = account.friends.keys().cloned().collect();
        friends.sort_unstable();
        friends
    }

    /// Whether the arrival of money is confirmed.
    fn confirms(amount: u64) -> bool {
        let _ = amount;
        true
    }

    /// How much of it arrives.
    fn arrives(amount: u64) -> u64 {
        amount
    }
}

/// An account by its owner's name: money goes from one to another, and who sent it is answered when it has arrived.
#[derive(Default, Serialize, Deserialize)]
#[serde(bound = "")]
struct Account<F: Flaw> {
    balance: u64,
    deposited: u64,
    sent: u64,
    waiting: BTreeMap<u64, Caller<u64>>,
    saving: BTreeMap<u64, Caller<u64>>,
    friends: HashMap<String, u64>,
    greeted: Vec<String>,
    mailed: u64,
    #[serde(skip)]
    handled: u64,
    flaw: PhantomData<F>,
}

#[derive(Serialize, Deserialize)]
enum Command {
    Deposit {
        amount: u64,
    },
    Send {
        to: Key,
        amount: u64,
    },
    /// Answered after a while.
    Save,
}

#[derive(Serialize, Deserialize)]
enum Message {
    Take { amount: u64, number: u64 },
    Taken { number: u64 },
    Greeting,
}

impl<F: Flaw> Instance for Account<F> {
    const TYPE: &'static str = "account";
    type Command = Command;
    type Answer = u64;
    type Message = Message;
    type Query = ();
    type View = u64;

    fn handle(&mut self, command: Command, context: &mut Context<'_, Self>) -> Result<Reply<u64>, Refusal> {
        self.handled += 1;
        match command {
            Command::Deposit { amount } => {
                self.balance += amount;
                self.deposited += amount;
                for friend in F::greets(self) {
                    context.tell::<Self>(&friend, &Message::Greeting);
                }
                Ok(Reply::Now(self.balance.wrapping_add(F::answers(self))))
            }
            Command::Send { to, amount } => {
                self.balance = self.balance.checked_sub(amount).ok_or("not that much")?;
                self.sent += 1;
                self.waiting.insert(self.sent, context.caller());
                *self.friends.entry(to.to_string()).or_default() += 1;
                context.tell::<Self>(&to, &Message::Take { amount, number: self.sent });
                Ok(Reply::Later)
            }
            Command::Save => {
                let token = context.random_u64();
                self.saving.insert(token, context.caller());
                context.set_timer(Duration::from_millis(token % 7_200_000), token);
                Ok(Reply::Later)
            }
        }
    }

    fn message(&mut self, message: Message, context: &mut Context<'_, Self>) {
        let from = context.sender().expect("it is a message").key.clone();
        match message {
            Message::Take { amount, number } => {
                self.balance += F::arrives(amount);
                context.send("mail", format!("{amount} from {from}"));
                if F::confirms(amount) {
                    context.tell::<Self>(&from, &Message::Taken { number });
                }
            }
            Message::Taken { number } => {
                let caller = self.waiting.remove(&number).expect("it is waited for");
                context.answer(caller, Ok(self.balance));
            }
            Message::Greeting => self.greeted.push(from),
        }
    }

    fn query(&self, (): ()) -> Result<u64, Refusal> {
        Ok(self.balance)
    }

    fn timer(&mut self, token: u64, context: &mut Context<'_, Self>) {
        let caller = self.saving.remove(&token).expect("it was set for a caller");
        context.answer(caller, Ok(self.balance));
    }

    fn output_settled(&mut self, _: OutputId, _: &Outcome, _: &mut Context<'_, Self>) {
        self.mailed += 1;
    }
}

fn bank<F: Flaw>(seeds: u64) -> InstanceCampaign {
    campaign_of_instances(Node::named("bank").host::<Account<F>>(), 0..seeds)
        .commands(|random| {
            let names = ["ada", "ben", "cem", "dee"];
            let mut name = || *random.pick(&names);
            let (of, to) = (name(), Key::try_from(name().to_owned()).expect("it is a key"));
            let amount = random.below(50);
            let command = match random.below(10) {
                0..4 => Command::Deposit { amount },
                4..9 => Command::Send { to, amount },
                _ => Command::Save,
            };
            Call::to::<Account<F>>(of, command)
        })
        .output("mail", Guarantee::Deduplicated)
        .invariant::<Account<F>>(|name, account| {
            assert!(account.balance < 1 << 40, "{name} has {}", account.balance);
        })
        .at_rest(|rest| {
            let sum =
                |of: fn(&Account<F>) -> u64| rest.all::<Account<F>>().map(|(_, one)| of(one)).sum::<u64>();
            assert_eq!(
                sum(|one| one.balance),
                sum(|one| one.deposited),
                "money came from nowhere, or is gone"
            );
            assert!(rest.get::<Account<F>>("nobody").is_none());
        })
}

fn found<F: Flaw>() -> CampaignFailure {
    crate::found::found(&bank::<F>(100).report())
}

fn found_in_short<F: Flaw>(property: &str) -> CampaignFailure {
    crate::found::found_in_short(&bank::<F>(100).report(), property, 2)
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct Sound;
impl Flaw for Sound {}

/// In fewer of them hardly any node is rolled back.
const SOUND_SEEDS: u64 = 120;

#[test]
fn sound_instances_pass_and_are_crashed_everywhere() {
    let report = bank::<Sound>(SOUND_SEEDS).report();
    assert_eq!(report.failure, None, "{report}");
    assert!(report.deliveries > SOUND_SEEDS * 20 && report.crashes >= SOUND_SEEDS * 3, "{report}");
    for kind in [
        "kill",
        "power_cut",
        "crash_in_open",
        "crash_in_recovery",
        "crash_while_collecting",
        "connection_broken",
        "frames_lost",
        "partition",
        "two_down",
        "duplicate_after_crash",
        "checkpoint_used",
        "collected",
        "node_rolled_back",
        "mixed_policies",
        "output_again",
        "read",
    ] {
        assert!(report.reached[kind] > 0, "{kind} was never reached: {report}");
    }
}

#[test]
fn a_policy_and_a_number_of_nodes_are_kept_to() {
    for policy in [Policy::SenderBased, Policy::Causal { f: 2 }, Policy::Optimistic] {
        let report = bank::<Sound>(6).nodes(3..=3).policy(policy).report();
        assert_eq!(report.failure, None, "{policy}: {report}");
        assert_eq!(report.reached["mixed_policies"], 0, "{policy}");
        assert_eq!(
            report.reached["node_rolled_back"] > 0,
            policy == Policy::Optimistic,
            "{policy}: {report}"
        );
    }
    let alone = bank::<Sound>(6).nodes(1..=1).report();
    assert_eq!((alone.failure, alone.reached["connection_broken"]), (None, 0));
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct WalksAHashMap;
impl Flaw for WalksAHashMap {
    fn greets(account: &Account<Self>) -> Vec<String> {
        account.friends.keys().cloned().collect()
    }
}

#[test]
fn instances_that_are_told_in_the_order_of_a_hash_map_are_found() {
    // Its order is drawn anew in every run, and when it is read back: which of the two shows first is chance, and so is how short the history gets.
    let failure = found::<WalksAHashMap>();
    assert!(["deterministic", "state-saved"].contains(&failure.property), "{failure}");
    assert!(failure.what.contains("recorded:"), "{failure}");
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct CountsAcrossLives;
impl Flaw for CountsAcrossLives {
    fn answers(_: &Account<Self>) -> u64 {
        static HANDLED: AtomicU64 = AtomicU64::new(0);
        HANDLED.fetch_add(1, Ordering::Relaxed)
    }
}

#[test]
fn a_counter_that_outlives_the_node_is_found() {
    let failure = found_in_short::<CountsAcrossLives>("deterministic");
    assert!(failure.what.contains("a static"), "{failure}");
    assert_eq!(failure.shortest, (1, 0), "{failure}");
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct ForgetsAField;
impl Flaw for ForgetsAField {
    fn answers(account: &Account<Self>) -> u64 {
        account.handled
    }
}

#[test]
fn a_field_that_is_not_saved_is_found() {
    let failure = found_in_short::<ForgetsAField>("state-saved");
    assert!(failure.what.contains("serde(skip)"), "{failure}");
    assert_eq!(failure.shortest.0, 2, "one request to forget, one to show it: {failure}");
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct ForgetsToConfirm;
impl Flaw for ForgetsToConfirm {
    fn confirms(amount: u64) -> bool {
        amount % 8 != 5
    }
}

#[test]
fn an_instance_that_does_not_tell_on_is_found() {
    let failure = found_in_short::<ForgetsToConfirm>("progress");
    assert!(failure.what.contains("nobody has answered\n  account/"), "{failure}");
    assert_eq!(failure.shortest.1, 0, "{failure}");
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct LosesACoin;
impl Flaw for LosesACoin {
    fn arrives(amount: u64) -> u64 {
        amount - u64::from(amount == 13)
    }
}

#[test]
fn an_invariant_over_two_instances_is_found_broken() {
    let failure = found_in_short::<LosesACoin>("invariant");
    assert!(failure.what.contains("money came from nowhere, or is gone"), "{failure}");
    assert!(failure.what.contains("tests/campaigns/instances.rs:"), "it names the assertion: {failure}");
    assert_eq!(failure.shortest.1, 0, "{failure}");
}

#[derive(Default, Clone, Serialize, Deserialize)]
struct PanicsOnMuch;
impl Flaw for PanicsOnMuch {
    fn arrives(amount: u64) -> u64 {
        assert!(amount < 45, "that is too much for me");
        amount
    }
}

#[test]
fn a_panic_in_a_message_is_found() {
    let failure = found_in_short::<PanicsOnMuch>("handler-panics");
    assert!(failure.what.contains("that is too much for me (crates/mainstay/tests"), "{failure}");
}

#[test]
fn a_failing_campaign_prints_the_history_and_the_line_that_runs_it_again() {
    let panicked = std::panic::catch_unwind(|| bank::<LosesACoin>(100).run()).expect_err("it fails");
    let text = panicked.downcast_ref::<String>().expect("a text");
    for part in [
        "shortest history",
        "nodes and their policies: node 1 ",
        "request account/",
        "again: MAINSTAY_SEEDS=",
    ] {
        assert!(text.contains(part), "`{part}` is missing in {text}");
    }
}

#[test]
#[should_panic(expected = "is no command of account/ada")]
fn a_command_that_the_type_does_not_take_is_refused_before_anything_runs() {
    let node = Node::named("bank").host::<Account<Sound>>();
    let _ = campaign_of_instances(node, 0..1).commands(|_| Call::to::<Account<Sound>>("ada", 7)).report();
}
