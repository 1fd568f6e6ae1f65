//! The audit against evidence of a run without failures, and against the same with something wrong in it.

use super::*;
use crate::ledger::Chain;

const SEED: u64 = 11;
const REQUESTS: u64 = 60;

/// Client and number of a request, its folds so far.
type OnTheWay = (usize, u64, Vec<Fold>);

struct Run {
    clients: Vec<Vec<Entry>>,
    views: Vec<Chains>,
    repeated: Vec<Repeated>,
}

/// A ring that never fails; nodes take turns with messages and requests.
fn sound() -> Run {
    let mut views = vec![Chains::default(); NODES];
    let mut clients: Vec<Vec<Entry>> = vec![Vec::new(); CLIENTS];
    let mut coming: Vec<VecDeque<OnTheWay>> = vec![VecDeque::new(); NODES];
    let mut asked: VecDeque<(usize, u64)> = (0..share(REQUESTS, 0))
        .flat_map(|number| (0..CLIENTS).map(move |client| (client, number)))
        .filter(|(client, number)| *number < share(REQUESTS, *client))
        .collect();
    for turn in 0.. {
        let node = turn % NODES;
        let asks = turn % 4 == 0 || coming[node].is_empty();
        let next = match asked.pop_front_if(|_| asks) {
            Some((client, number)) => Some((request(SEED, client, number).0, (client, number, Vec::new()))),
            None => coming[node].pop_front().map(|message| (node, message)),
        };
        let Some((node, (client, number, mut folds))) = next else {
            if asked.is_empty() && coming.iter().all(VecDeque::is_empty) {
                break;
            }
            continue;
        };
        folds.push(views[node].fold(node, &request(SEED, client, number).1, &folds));
        if folds.len() == FOLDS {
            let body = serde_json::to_string(&Receipt { folds }).expect("plain data");
            clients[client].push(Entry::Answered { number, status: 200, body, replayed: false });
        } else {
            coming[(node + 1) % NODES].push_back((client, number, folds));
        }
    }
    Run { clients, views, repeated: Vec::new() }
}

fn audited(run: &Run) -> Findings {
    let Run { clients, views, repeated } = run;
    audit(&Evidence { seed: SEED, requests: REQUESTS, clients, repeated, views })
}

/// Changes the receipt of a client's first answer.
fn change(run: &mut Run, client: usize, how: impl Fn(&mut Receipt)) {
    let Entry::Answered { body, .. } = &mut run.clients[client][0] else { panic!("it is an answer") };
    let mut receipt = serde_json::from_str(body).expect("it is a receipt");
    how(&mut receipt);
    *body = serde_json::to_string(&receipt).expect("plain data");
}

#[test]
fn a_run_without_failures_is_as_the_oracle_says() {
    let findings = audited(&sound());
    assert!(findings.kept(), "{findings:?}");
    let folds: u64 = sound().views.iter().map(|view| view.folds).sum();
    assert_eq!(folds, REQUESTS * FOLDS as u64);
}

#[test]
fn a_missing_answer_is_lost_and_its_folds_answer_nothing() {
    let mut run = sound();
    run.clients[1].pop();
    let findings = audited(&run);
    assert_eq!((findings.lost, findings.doubled), (1, FOLDS as u64), "{findings:?}");
}

#[test]
fn a_fold_that_answers_no_request_is_doubled() {
    let mut run = sound();
    let (_, first) = request(SEED, 0, 0);
    run.views[1].fold(1, &first, &[]);
    let findings = audited(&run);
    assert_eq!((findings.lost, findings.doubled), (0, 1), "{findings:?}");
    assert!(!findings.state_equal);
}

#[test]
fn a_node_that_forgot_its_last_fold_has_lost_it() {
    let mut run = sound();
    run.views[2].folds -= 1;
    let findings = audited(&run);
    assert_eq!(findings.lost, 1, "{findings:?}");
}

#[test]
fn a_chain_of_another_history_is_a_wrong_answer() {
    let mut run = sound();
    change(&mut run, 2, |receipt| receipt.folds[1].chain = Chain(7));
    assert_eq!(audited(&run).answers_wrong, 1);
}

#[test]
fn another_answer_the_second_time_is_wrong() {
    let mut run = sound();
    let Entry::Answered { body, .. } = &run.clients[0][0] else { panic!("it is an answer") };
    let again = |body: &str| Repeated { client: 0, number: 0, status: 200, body: body.as_bytes().to_vec() };
    let (same, other) = (again(body), again("{}"));
    run.repeated.push(same);
    assert!(audited(&run).kept());
    run.repeated.push(other);
    assert_eq!(audited(&run).answers_wrong, 1);
}

/// What an orphan looks like: the second node folded a message before the first node had made it.
#[test]
fn an_order_that_no_run_without_failures_has_is_found_though_every_place_is_taken_once() {
    let mut run = sound();
    // Two requests of the same node change their places at the next one, which gets its messages in the order of sending.
    let mut asked_of: Vec<Vec<(usize, usize)>> = vec![Vec::new(); NODES];
    for client in 0..CLIENTS {
        for (index, entry) in run.clients[client].iter().enumerate() {
            let Entry::Answered { number, .. } = entry else { continue };
            asked_of[request(SEED, client, *number).0].push((client, index));
        }
    }
    let [one, two] = asked_of[0][..2] else { panic!("the first node was asked twice") };
    let receipt = |run: &Run, (client, index): (usize, usize)| -> Receipt {
        let Entry::Answered { body, .. } = &run.clients[client][index] else { panic!("it is an answer") };
        serde_json::from_str(body).expect("it is a receipt")
    };
    let (mut first, mut second) = (receipt(&run, one), receipt(&run, two));
    std::mem::swap(&mut first.folds[1], &mut second.folds[1]);
    for ((client, index), changed) in [(one, first), (two, second)] {
        let Entry::Answered { body, .. } = &mut run.clients[client][index] else { panic!("it is an answer") };
        *body = serde_json::to_string(&changed).expect("plain data");
    }
    let findings = audited(&run);
    assert_eq!((findings.lost, findings.doubled), (0, 0), "{findings:?}");
    assert!(
        findings.described.iter().any(|finding| finding.contains("cannot have happened")),
        "{findings:?}"
    );
}
