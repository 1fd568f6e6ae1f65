//! A node's handler without a process around it.

use super::*;
use crate::instance::{Caller, Context as InstanceContext, Instance, Never, Node, Reply};
use crate::refusal::Refusal;
use mainstay_process::handler::SendError;
use mainstay_types::id::DeliveryIndex;
use mainstay_types::time::Time;
use std::time::Duration;

/// What was asked of the process.
#[derive(Debug, Default)]
struct Process {
    delivery: u64,
    answers: Vec<(RequestId, Answer)>,
    messages: Vec<(NodeId, Vec<u8>)>,
    timers: Vec<u64>,
    outputs: u64,
}

impl Ask for Process {
    fn now(&self) -> Time {
        Time(0)
    }

    fn random_u64(&mut self) -> u64 {
        4
    }

    fn request(&self) -> RequestId {
        RequestId(DeliveryIndex(self.delivery))
    }

    fn answer(&mut self, request: RequestId, answer: Answer) {
        self.answers.push((request, answer));
    }

    fn tell(&mut self, to: NodeId, body: Vec<u8>) {
        self.messages.push((to, body));
    }

    fn try_send(&mut self, _: &str, _: Vec<u8>) -> Result<OutputId, SendError> {
        self.outputs += 1;
        Ok(OutputId(self.outputs))
    }

    fn set_timer(&mut self, _: Duration, token: u64) {
        self.timers.push(token);
    }
}

/// Tells the echo at `to`, which tells it back; then answers.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Asker {
    caller: Option<Caller<Vec<String>>>,
    heard: Vec<String>,
    ticks: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
enum Command {
    Ask { to: Vec<String> },
    Remind { token: u64 },
    Emit,
    End,
    Forget,
}

impl Instance for Asker {
    const TYPE: &'static str = "asker";
    type Command = Command;
    type Answer = Vec<String>;
    type Message = String;
    type Query = ();
    type View = (Vec<String>, Vec<u64>);

    fn handle(
        &mut self,
        command: Command,
        context: &mut InstanceContext<'_, Self>,
    ) -> Result<Reply<Vec<String>>, Refusal> {
        match command {
            Command::Ask { to } => {
                self.caller = Some(context.caller());
                for echo in to {
                    context.tell::<Echo>(
                        &echo,
                        &Told { back_to: context.key().to_owned(), caller: self.caller },
                    );
                }
                return Ok(Reply::Later);
            }
            Command::Remind { token } => context.set_timer(Duration::from_secs(1), token),
            Command::Emit => drop(context.send("mail", "x")),
            Command::End => context.end(),
            Command::Forget => return Ok(Reply::Later),
        }
        Ok(Reply::Now(Vec::new()))
    }

    fn message(&mut self, message: String, context: &mut InstanceContext<'_, Self>) {
        let from = context.sender().expect("somebody told it").to_string();
        self.heard.push(format!("{message} from {from}"));
        if self.heard.len() == 2 {
            context.answer(self.caller.expect("it was asked"), Ok(self.heard.clone()));
        }
    }

    fn query(&self, (): ()) -> Result<Self::View, Refusal> {
        Ok((self.heard.clone(), self.ticks.clone()))
    }

    fn timer(&mut self, token: u64, _: &mut InstanceContext<'_, Self>) {
        self.ticks.push(token);
    }

    fn output_settled(&mut self, output: OutputId, _: &Outcome, _: &mut InstanceContext<'_, Self>) {
        self.ticks.push(1000 + output.0);
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Echo;

#[derive(Serialize, Deserialize)]
struct Told {
    back_to: String,
    caller: Option<Caller<Vec<String>>>,
}

impl Instance for Echo {
    const TYPE: &'static str = "echo";
    type Command = Never;
    type Answer = ();
    type Message = Told;
    type Query = ();
    type View = ();

    fn handle(&mut self, never: Never, _: &mut InstanceContext<'_, Self>) -> Result<Reply<()>, Refusal> {
        match never {}
    }

    fn message(&mut self, told: Told, context: &mut InstanceContext<'_, Self>) {
        match context.key() {
            "straight" => {
                let caller = told.caller.expect("it came along");
                context.answer(caller, Ok(vec!["straight".to_owned()]));
            }
            "for-ever" => context.tell::<Self>("for-ever", &told),
            _ => context.tell::<Asker>(&told.back_to, &"echo".to_owned()),
        }
    }

    fn query(&self, (): ()) -> Result<(), Refusal> {
        Ok(())
    }
}

/// Its form has no names: where `note` is left out, `rest` is read in its place.
#[derive(Default, Serialize, Deserialize)]
struct Lopsided {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    rest: Vec<u8>,
}

impl Instance for Lopsided {
    const TYPE: &'static str = "lopsided";
    type Command = Option<String>;
    type Answer = ();
    type Message = Never;
    type Query = ();
    type View = ();

    fn handle(
        &mut self,
        note: Option<String>,
        _: &mut InstanceContext<'_, Self>,
    ) -> Result<Reply<()>, Refusal> {
        self.note = note;
        Ok(Reply::Now(()))
    }

    fn message(&mut self, never: Never, _: &mut InstanceContext<'_, Self>) {
        match never {}
    }

    fn query(&self, (): ()) -> Result<(), Refusal> {
        Ok(())
    }
}

/// A node of so many; echoes are on `echoes_on`.
fn node(me: u32, count: u32, echoes_on: u32) -> NodeHandler {
    node_with(me, count, &Node::named("test").host_on::<Asker>(1).host_on::<Echo>(echoes_on).types)
}

fn node_with(me: u32, count: u32, types: &[HostedType]) -> NodeHandler {
    let facts = Facts {
        me: NodeId(me),
        nodes: (1..=count).map(NodeId).collect(),
        placements: types.iter().map(|hosted| (hosted.name, hosted.placement.clone())).collect(),
        message_bytes_max: 200,
    };
    NodeHandler::new(Arc::new(facts), types)
}

fn call(node: &mut NodeHandler, process: &mut Process, key: &str, command: &Command) -> Option<Answer> {
    process.delivery += 1;
    let body = serde_json::to_vec(command).expect("a command is JSON");
    let work = Work { request: Some(process.request()), ..Work::default() };
    node.run(&Address::new("asker", key), What::Command(&body), work, process)
}

fn view(node: &NodeHandler, key: &str) -> (Vec<String>, Vec<u64>) {
    let answer = node.query(format!("asker/{key}\nnull").as_bytes());
    serde_json::from_slice(&answer.body).expect("a view")
}

fn ask(to: &[&str]) -> Command {
    Command::Ask { to: to.iter().map(|key| (*key).to_owned()).collect() }
}

#[test]
fn what_follows_on_the_same_node_belongs_to_the_same_delivery() {
    let (mut node, mut process) = (node(1, 1, 1), Process::default());
    let answer = call(&mut node, &mut process, "a", &ask(&["x", "y"])).expect("all of it is here");
    assert_eq!((answer.status, answer.body), (200, br#"["echo from echo/x","echo from echo/y"]"#.to_vec()));
    assert!(process.answers.is_empty() && process.messages.is_empty());
}

#[test]
fn over_two_nodes_an_answer_comes_in_a_later_delivery() {
    let (mut asks, mut echoes) = (node(1, 2, 2), node(2, 2, 2));
    let (mut at_1, mut at_2) = (Process::default(), Process::default());
    assert_eq!(call(&mut asks, &mut at_1, "a", &ask(&["x", "y"])), None);
    for (to, bytes) in std::mem::take(&mut at_1.messages) {
        assert_eq!(to, NodeId(2));
        let Some(Envelope::Tell(told)) = Envelope::from_bytes(&bytes) else { panic!("{bytes:?}") };
        echoes.run(&told.to, What::Message(&told.from, &told.message), Work::default(), &mut at_2);
    }
    for (to, bytes) in at_2.messages {
        assert_eq!(to, NodeId(1));
        assert!(at_1.answers.is_empty(), "one of two has come back");
        let Some(Envelope::Tell(told)) = Envelope::from_bytes(&bytes) else { panic!("{bytes:?}") };
        asks.run(&told.to, What::Message(&told.from, &told.message), Work::default(), &mut at_1);
    }
    let [(request, answer)] = &at_1.answers[..] else { panic!("{:?}", at_1.answers) };
    assert_eq!((request.0.0, answer.status), (1, 200));
}

#[test]
fn whoever_has_the_caller_answers_wherever_the_request_was_taken() {
    let (mut asks, mut echoes) = (node(1, 2, 2), node(2, 2, 2));
    let (mut at_1, mut at_2) = (Process::default(), Process { delivery: 8, ..Process::default() });
    assert_eq!(call(&mut asks, &mut at_1, "a", &ask(&["straight"])), None);
    let Some(Envelope::Tell(told)) = Envelope::from_bytes(&at_1.messages[0].1) else { panic!("{at_1:?}") };
    echoes.run(&told.to, What::Message(&told.from, &told.message), Work::default(), &mut at_2);
    assert!(at_2.answers.is_empty(), "the request was taken elsewhere");
    let [(to, bytes)] = &at_2.messages[..] else { panic!("{at_2:?}") };
    let Some(Envelope::Answer(request, answer)) = Envelope::from_bytes(bytes) else { panic!("{bytes:?}") };
    assert_eq!((*to, request.0.0, answer.body), (NodeId(1), 1, br#"["straight"]"#.to_vec()));
}

#[test]
fn timers_and_outcomes_find_their_instance_also_after_a_restart() {
    let (mut before, mut process) = (node(1, 1, 1), Process::default());
    for (key, command) in
        [("a", Command::Remind { token: 7 }), ("b", Command::Remind { token: 7 }), ("b", Command::Emit)]
    {
        call(&mut before, &mut process, key, &command);
    }
    assert_eq!(process.timers, [1, 2], "the process tells timers of two instances apart");
    let mut saved = Vec::new();
    before.save(&mut saved).expect("memory has room");
    let mut after = node(1, 1, 1);
    after.restore(&saved).expect("it was saved a moment ago");
    let (of, token) = after.book.due(2).expect("it was set");
    after.run(&of, What::Timer(token), Work::default(), &mut process);
    let of = after.book.settled(OutputId(1)).expect("it was sent");
    after.run(&of, What::Settled(OutputId(1), &Outcome::Abandoned), Work::default(), &mut process);
    assert_eq!((view(&after, "a").1, view(&after, "b").1), (vec![], vec![7, 1001]));
    assert_eq!(after.book.timers.len(), 1);
}

#[test]
fn instances_that_cannot_be_read_back_are_not_saved() {
    let save = |commands: &[(&str, &str)]| {
        let all = Node::named("test").host_on::<Asker>(1).host_on::<Lopsided>(1).host_on::<Echo>(1);
        let (mut node, mut process) = (node_with(1, 1, &all.types), Process::default());
        call(&mut node, &mut process, "a", &ask(&["x", "y"]));
        for (key, command) in commands {
            let to = Address::new("lopsided", key);
            node.run(&to, What::Command(command.as_bytes()), Work::default(), &mut process);
        }
        let mut bytes = Vec::new();
        node.save_checked(&mut bytes).map_err(|error| error.kind())
    };
    assert_eq!(save(&[]), Ok(()));
    assert_eq!(save(&[("a", r#""here""#), ("b", r#""there""#)]), Ok(()));
    assert_eq!(save(&[("a", r#""here""#), ("b", "null")]), Err(io::ErrorKind::InvalidData));
}

#[test]
fn what_has_ended_is_gone_with_its_timers() {
    let (mut node, mut process) = (node(1, 1, 1), Process::default());
    call(&mut node, &mut process, "a", &Command::Remind { token: 7 });
    call(&mut node, &mut process, "a", &Command::Emit);
    call(&mut node, &mut process, "a", &Command::End);
    assert_eq!(node.book.due(1), None);
    assert_eq!(node.book.settled(OutputId(1)), None, "a later instance of this key never sent it");
}

#[test]
fn a_state_that_was_placed_otherwise_is_refused() {
    let mut saved = Vec::new();
    node(1, 2, 2).save(&mut saved).expect("memory has room");
    assert_eq!(node(1, 2, 2).restore(&saved), Ok(()));
    for (other, said) in [
        (node(1, 3, 2), "[node 1, node 2, node 3]"),
        (node(2, 2, 2), "this is node 2"),
        (node(1, 2, 1), "now they are all on node 1"),
    ] {
        let mut other = other;
        let error =
            other.restore(&saved).expect_err("its instances would be looked for elsewhere").to_string();
        assert!(error.contains(said), "`{error}` does not say `{said}`");
    }
    saved.push(0);
    assert!(node(1, 2, 2).restore(&saved).is_err());
}

#[test]
#[should_panic(expected = "echo/x lives on node 2, this is node 1")]
fn a_message_for_another_node_is_a_bug() {
    let told = serde_json::to_vec(&Told { back_to: "a".to_owned(), caller: None }).expect("JSON");
    let from = Address::new("asker", "a");
    node(1, 2, 2).run(
        &Address::new("echo", "x"),
        What::Message(&from, &told),
        Work::default(),
        &mut Process::default(),
    );
}

#[test]
#[should_panic(expected = "more than 100000 messages")]
fn telling_for_ever_is_a_bug() {
    call(&mut node(1, 1, 1), &mut Process::default(), "a", &ask(&["for-ever"]));
}

#[test]
#[should_panic(expected = "a message of asker/a to echo")]
fn a_message_is_as_long_here_as_between_nodes() {
    call(&mut node(1, 1, 1), &mut Process::default(), "a", &ask(&[&"x".repeat(200)]));
}

#[test]
#[should_panic(expected = "Context::caller")]
fn nobody_can_answer_later_who_was_not_asked_for() {
    call(&mut node(1, 1, 1), &mut Process::default(), "a", &Command::Forget);
}
