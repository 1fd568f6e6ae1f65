//! The bundled service: accounts whose balances never fall below zero, with a hash chain per account.
//!
//! Every operation on an account, refused ones included, extends the account's chain by what was asked and what came of
//! it. Operations therefore do not commute, every receipt can be audited, and a receipt that was made twice or in
//! another order shows.

use mainstay::{Context, Refusal, Service};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use xxhash_rust::xxh3::xxh3_128;

/// The port whose receiver drops a key it has seen.
pub(crate) const NOTIFY_ONCE: &str = "notify-once";

/// The port whose receiver does not.
pub(crate) const NOTIFY_AGAIN: &str = "notify-again";

/// Longest name of an account, in bytes.
pub(crate) const ACCOUNT_NAME_BYTES_MAX: usize = 64;

/// All accounts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    /// Operations executed, refused ones included.
    pub(crate) operations: u64,
    /// The accounts by name.
    pub(crate) accounts: BTreeMap<String, Account>,
}

/// One account.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Account {
    /// In cents.
    pub(crate) balance: u64,
    /// The account's whole history, as a hash.
    pub(crate) chain: Chain,
}

/// A hash over an account's history: each link covers the one before it. XXH3-128: against accidents, not against forgers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Chain(pub u128);

/// What can be asked of the ledger.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Command {
    /// Opens an account with a balance of zero.
    Open {
        /// Its name.
        account: String,
    },
    /// Puts money into an account.
    Deposit {
        /// Where it goes.
        account: String,
        /// In cents.
        amount: u64,
    },
    /// Takes money out of an account.
    Withdraw {
        /// Where it comes from.
        account: String,
        /// In cents.
        amount: u64,
    },
    /// Moves money between two accounts.
    Transfer {
        /// Where it comes from.
        from: String,
        /// Where it goes.
        to: String,
        /// In cents.
        amount: u64,
    },
}

/// The answer to a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Receipt {
    /// The place of this operation among all operations of the ledger; the first is 1.
    pub(crate) operation: u64,
    /// What came of it.
    pub(crate) outcome: Outcome,
    /// The accounts concerned, as they are after it.
    pub(crate) accounts: Vec<Entry>,
}

/// What came of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Outcome {
    /// It was done.
    Done,
    /// Refused: the account has been opened before.
    AlreadyOpen,
    /// Refused: there is no such account.
    NoSuchAccount,
    /// Refused: the balance would fall below zero.
    InsufficientFunds,
    /// Refused: the balance would be more than can be counted.
    TooMuch,
    /// Refused: from an account to itself.
    SameAccount,
    /// Refused: a name is 1 to [`ACCOUNT_NAME_BYTES_MAX`] bytes.
    InvalidName,
}

/// One account in a receipt or a view.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// Its name.
    pub(crate) account: String,
    /// In cents.
    pub(crate) balance: u64,
    /// The last link of its chain.
    pub(crate) chain: Chain,
}

/// What the outside is told of a deposit or a transfer that was done.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct Notice {
    /// The operation it is about.
    pub(crate) operation: u64,
    /// The account that received money.
    pub(crate) account: String,
    /// In cents.
    pub(crate) amount: u64,
}

/// A read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Query {
    /// Only this account; all of them if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) account: Option<String>,
}

/// The answer to a read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct View {
    /// Operations executed so far.
    pub(crate) operations: u64,
    /// The accounts asked for, by name.
    pub(crate) accounts: Vec<Entry>,
}

impl Service for Ledger {
    const NAME: &'static str = "ledger";
    type Command = Command;
    type Answer = Receipt;
    type Query = Option<Query>;
    type View = View;

    fn handle(&mut self, command: Command, context: &mut Context<'_>) -> Result<Receipt, Refusal> {
        let (receipt, notice) = self.execute(&command);
        if let Some(notice) = notice {
            let body = serde_json::to_vec(&notice).expect("numbers and text are JSON");
            context.send(NOTIFY_ONCE, body.clone());
            context.send(NOTIFY_AGAIN, body);
        }
        Ok(receipt)
    }

    fn query(&self, query: Option<Query>) -> Result<View, Refusal> {
        Ok(self.view(&query.unwrap_or_default()))
    }
}

impl Ledger {
    /// Executes a command: its receipt, and the notice for the outside if there is something to tell.
    pub(crate) fn execute(&mut self, command: &Command) -> (Receipt, Option<Notice>) {
        self.operations += 1;
        let (outcome, names) = match command {
            Command::Open { account } => (self.open(account), vec![account]),
            Command::Deposit { account, amount } => {
                (self.move_money(None, Some(account), *amount), vec![account])
            }
            Command::Withdraw { account, amount } => {
                (self.move_money(Some(account), None, *amount), vec![account])
            }
            Command::Transfer { from, to, .. } if from == to => (Outcome::SameAccount, vec![from]),
            Command::Transfer { from, to, amount } => {
                (self.move_money(Some(from), Some(to), *amount), vec![from, to])
            }
        };
        let notice = match command {
            Command::Deposit { account: to, amount } | Command::Transfer { to, amount, .. }
                if outcome == Outcome::Done =>
            {
                Some(Notice { operation: self.operations, account: to.clone(), amount: *amount })
            }
            _ => None,
        };
        for name in &names {
            if let Some(account) = self.accounts.get_mut(*name) {
                account.chain = account.chain.extended(command, outcome, account.balance);
            }
        }
        let accounts = names.into_iter().filter_map(|name| self.entry(name)).collect();
        (Receipt { operation: self.operations, outcome, accounts }, notice)
    }

    /// Answers a read.
    #[must_use]
    pub(crate) fn view(&self, query: &Query) -> View {
        let accounts = match &query.account {
            Some(name) => self.entry(name).into_iter().collect(),
            None => self.accounts.keys().filter_map(|name| self.entry(name)).collect(),
        };
        View { operations: self.operations, accounts }
    }

    fn open(&mut self, name: &str) -> Outcome {
        if name.is_empty() || name.len() > ACCOUNT_NAME_BYTES_MAX {
            return Outcome::InvalidName;
        }
        if self.accounts.contains_key(name) {
            return Outcome::AlreadyOpen;
        }
        self.accounts.insert(name.to_owned(), Account { balance: 0, chain: Chain::default() });
        Outcome::Done
    }

    fn move_money(&mut self, from: Option<&String>, to: Option<&String>, amount: u64) -> Outcome {
        let balance = |name: &String| self.accounts.get(name).map(|account| account.balance);
        let mut after = Vec::with_capacity(2);
        if let Some(name) = from {
            let Some(balance) = balance(name) else { return Outcome::NoSuchAccount };
            let Some(rest) = balance.checked_sub(amount) else { return Outcome::InsufficientFunds };
            after.push((name, rest));
        }
        if let Some(name) = to {
            let Some(balance) = balance(name) else { return Outcome::NoSuchAccount };
            let Some(sum) = balance.checked_add(amount) else { return Outcome::TooMuch };
            after.push((name, sum));
        }
        for (name, balance) in after {
            self.accounts.get_mut(name).expect("its balance was just read").balance = balance;
        }
        Outcome::Done
    }

    fn entry(&self, name: &str) -> Option<Entry> {
        let account = self.accounts.get(name)?;
        Some(Entry { account: name.to_owned(), balance: account.balance, chain: account.chain })
    }
}

impl Chain {
    fn extended(self, command: &Command, outcome: Outcome, balance: u64) -> Self {
        let mut link = self.0.to_le_bytes().to_vec();
        serde_json::to_writer(&mut link, &(command, outcome, balance))
            .expect("a vector takes every byte of plain data");
        Self(xxh3_128(&link))
    }
}

impl fmt::Display for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Serialize for Chain {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Chain {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let digits = String::deserialize(deserializer)?;
        u128::from_str_radix(&digits, 16).map(Self).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(json: &str) -> Command {
        serde_json::from_str(json).expect("a command of the test")
    }

    fn run(commands: &[&str]) -> (Ledger, Vec<Receipt>, Vec<Notice>) {
        let mut ledger = Ledger::default();
        let mut notices = Vec::new();
        let receipts = commands
            .iter()
            .map(|json| {
                let (receipt, notice) = ledger.execute(&command(json));
                notices.extend(notice);
                receipt
            })
            .collect();
        (ledger, receipts, notices)
    }

    #[test]
    fn money_is_neither_made_nor_lost_and_balances_stay_above_zero() {
        let (ledger, receipts, notices) = run(&[
            r#"{"open":{"account":"a"}}"#,
            r#"{"open":{"account":"b"}}"#,
            r#"{"deposit":{"account":"a","amount":100}}"#,
            r#"{"transfer":{"from":"a","to":"b","amount":70}}"#,
            r#"{"transfer":{"from":"a","to":"b","amount":70}}"#,
            r#"{"withdraw":{"account":"b","amount":30}}"#,
            r#"{"transfer":{"from":"a","to":"nobody","amount":1}}"#,
        ]);
        let outcomes: Vec<Outcome> = receipts.iter().map(|receipt| receipt.outcome).collect();
        use Outcome::{Done, InsufficientFunds, NoSuchAccount};
        assert_eq!(outcomes, [Done, Done, Done, Done, InsufficientFunds, Done, NoSuchAccount]);
        assert_eq!(ledger.accounts["a"].balance, 30);
        assert_eq!(ledger.accounts["b"].balance, 40);
        assert_eq!(notices.iter().map(|notice| notice.operation).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn the_order_of_operations_shows_in_the_chain_though_the_balance_is_the_same() {
        let open = r#"{"open":{"account":"a"}}"#;
        let (one, two) =
            (r#"{"deposit":{"account":"a","amount":1}}"#, r#"{"deposit":{"account":"a","amount":2}}"#);
        let (forth, ..) = run(&[open, one, two]);
        let (back, ..) = run(&[open, two, one]);
        assert_eq!(forth.accounts["a"].balance, back.accounts["a"].balance);
        assert_ne!(forth.accounts["a"].chain, back.accounts["a"].chain);
    }

    #[test]
    fn a_refused_operation_shows_in_the_chain() {
        let open = r#"{"open":{"account":"a"}}"#;
        let (without, ..) = run(&[open]);
        let (with, ..) = run(&[open, r#"{"withdraw":{"account":"a","amount":1}}"#]);
        assert_ne!(without.accounts["a"].chain, with.accounts["a"].chain);
    }

    #[test]
    fn unknown_fields_and_commands_are_refused() {
        for json in [
            r#"{"deposit":{"account":"a","amount":1,"currency":"EUR"}}"#,
            r#"{"deposit":{"account":"a","amount":-1}}"#,
            r#"{"close":{"account":"a"}}"#,
            r#"{}"#,
        ] {
            assert!(serde_json::from_str::<Command>(json).is_err(), "{json} was taken");
        }
    }
}
