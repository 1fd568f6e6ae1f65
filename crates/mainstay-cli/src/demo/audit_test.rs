//! The audit must find what is planted: each test spoils the evidence of a faultless run in one way.

use super::super::requests::CLIENTS;
use super::*;
use crate::ledger::Query;
use mainstay_types::level::Level;

/// The evidence of a run without any fault.
struct Run {
    settings: Settings,
    clients: Vec<Vec<Entry>>,
    once: Vec<Received>,
    again: Vec<Received>,
    view: View,
    in_doubt: Vec<ListedOutput>,
}

impl Run {
    fn faultless() -> Self {
        let settings = Settings {
            seed: 3,
            requests: 120,
            kills: 0,
            level: Level::Disk,
            service_port: 1,
            receiver_once_port: 2,
            receiver_again_port: 3,
            record: None,
            skip_syncs: None,
            lose_ring: false,
        };
        let mut run = Self {
            settings,
            clients: vec![Vec::new(); CLIENTS],
            once: Vec::new(),
            again: Vec::new(),
            view: Ledger::default().view(&Query::default()),
            in_doubt: Vec::new(),
        };
        let mut ledger = Ledger::default();
        for number in 0..run.settings.requests / CLIENTS as u64 {
            for client in 0..CLIENTS {
                let (receipt, notice) = ledger.execute(&request(run.settings.seed, client, number));
                run.clients[client].push(Entry::Asked { number });
                run.clients[client].push(answered(number, &receipt));
                for (port, received) in [("once", &mut run.once), ("again", &mut run.again)] {
                    received.extend(notice.iter().map(|notice| Received {
                        key: format!("{port}-{}", notice.operation),
                        body: serde_json::to_string(notice).expect("plain data"),
                        dropped: false,
                    }));
                }
            }
        }
        run.view = ledger.view(&Query::default());
        run
    }

    fn audit(&self) -> Findings {
        audit(&Evidence {
            settings: &self.settings,
            clients: &self.clients,
            once: &self.once,
            again: &self.again,
            view: &self.view,
            in_doubt: &self.in_doubt,
        })
    }
}

fn answered(number: u64, receipt: &Receipt) -> Entry {
    let body = serde_json::to_string(receipt).expect("plain data");
    Entry::Answered { number, status: 200, body, replayed: false }
}

fn receipt(entry: &Entry) -> Receipt {
    let Entry::Answered { body, .. } = entry else { panic!("not an answer") };
    serde_json::from_str(body).expect("a receipt")
}

#[test]
fn a_faultless_run_is_found_faultless() {
    let findings = Run::faultless().audit();
    assert!(findings.kept(), "{findings:?}");
    assert!(findings.outputs > 40);
}

#[test]
fn an_answer_that_never_came_is_lost() {
    let mut run = Run::faultless();
    run.clients[1].pop();
    let findings = run.audit();
    assert_eq!(findings.lost, 1);
    assert!(!findings.kept());
}

#[test]
fn a_request_that_is_refused_for_good_is_lost() {
    let mut run = Run::faultless();
    run.clients[1].pop();
    let body = "no longer remembered".to_owned();
    run.clients[1].push(Entry::Answered { number: 29, status: 410, body, replayed: false });
    assert_eq!(run.audit().lost, 1);
}

/// The service acknowledged, crashed, forgot, and gave the same place to another request.
#[test]
fn a_place_given_twice_is_a_lost_request() {
    let mut run = Run::faultless();
    let other = receipt(&run.clients[2][21]).operation;
    let mut given_again = receipt(&run.clients[1][21]);
    given_again.operation = other;
    run.clients[1][21] = answered(10, &given_again);
    let findings = run.audit();
    assert_eq!(findings.lost, 1);
    assert!(!findings.kept());
}

/// The service acknowledged its last operation and does not know of it any more.
#[test]
fn an_acknowledged_operation_beyond_the_last_state_is_lost() {
    let mut run = Run::faultless();
    run.view.operations -= 1;
    assert_eq!(run.audit().lost, 1);
}

/// A retry was executed a second time and its second answer was given.
#[test]
fn an_operation_executed_twice_is_doubled() {
    let mut run = Run::faultless();
    let mut ledger = Ledger::default();
    for entries in &mut run.clients {
        entries.clear();
    }
    for number in 0..run.settings.requests / CLIENTS as u64 {
        for client in 0..CLIENTS {
            let command = request(run.settings.seed, client, number);
            let (mut receipt, _) = ledger.execute(&command);
            if (client, number) == (2, 12) {
                receipt = ledger.execute(&command).0;
            }
            run.clients[client].push(answered(number, &receipt));
        }
    }
    run.view = ledger.view(&Query::default());
    let findings = run.audit();
    assert_eq!(findings.doubled, 1);
    assert_eq!(findings.lost, 0);
    assert!(findings.answers_wrong > 0, "the chains do not show it");
}

#[test]
fn an_answer_of_another_history_is_wrong() {
    let mut run = Run::faultless();
    let mut altered = receipt(&run.clients[0][31]);
    altered.accounts[0].balance += 1;
    run.clients[0][31] = answered(15, &altered);
    assert_eq!(run.audit().answers_wrong, 1);
}

#[test]
fn a_last_state_that_differs_in_one_cent_is_found() {
    let mut run = Run::faultless();
    run.view.accounts[3].balance += 1;
    let findings = run.audit();
    assert!(!findings.state_equal);
    assert!(!findings.kept());
}

#[test]
fn a_missing_output_is_lost_at_either_receiver() {
    let mut run = Run::faultless();
    run.once.remove(5);
    run.again.remove(7);
    assert_eq!(run.audit().outputs_lost, 2);
}

#[test]
fn a_missing_output_that_is_listed_in_doubt_is_not_lost_and_one_that_arrived_excuses_no_other() {
    let mut run = Run::faultless();
    let removed = run.again.remove(7);
    let listed = |key: &str| ListedOutput {
        id: 1,
        port: NOTIFY_AGAIN.to_owned(),
        key: key.to_owned(),
        state: "in-doubt".to_owned(),
    };
    run.in_doubt = vec![listed(&removed.key)];
    let findings = run.audit();
    assert_eq!((findings.outputs_lost, findings.outputs_in_doubt), (0, 1));
    assert!(findings.kept());

    run.in_doubt = vec![listed(&run.again[3].key)];
    let findings = run.audit();
    assert_eq!((findings.outputs_lost, findings.outputs_in_doubt_arrived), (1, 1));
}

#[test]
fn an_output_that_takes_effect_twice_is_doubled_and_one_that_is_dropped_is_not() {
    let mut run = Run::faultless();
    run.again.push(run.again[4].clone());
    run.once.push(Received { dropped: true, ..run.once[4].clone() });
    let findings = run.audit();
    assert_eq!((findings.outputs_doubled, findings.outputs_dropped), (1, 1));

    run.once.push(run.once[4].clone());
    assert_eq!(run.audit().outputs_doubled, 2);
}

#[test]
fn an_output_from_nowhere_is_unexplained() {
    let mut run = Run::faultless();
    let notice = Notice { operation: 9999, account: "account-0".to_owned(), amount: 1 };
    let body = serde_json::to_string(&notice).expect("plain data");
    run.again.push(Received { key: "x".to_owned(), body, dropped: false });
    assert_eq!(run.audit().outputs_unexplained, 1);
}
