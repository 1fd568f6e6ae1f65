//! What MPI promises about the order of messages, and nothing more: messages of one sender on one communicator stay in order,
//! all others come as they like; a message goes to the first post that takes it, a post takes the first message that fits.

use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) send: usize,
    pub(crate) source: usize,
    pub(crate) tag: i64,
    pub(crate) data: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Going,
    Done,
    Cancelled,
}

/// Sends are done when they are on their way, arrived, or matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Eager,
    Arrived,
    Matched,
}

#[derive(Debug)]
struct Post {
    rank: usize,
    comm: usize,
    source: Option<usize>,
    tag: Option<i64>,
    got: Option<Message>,
    progress: Progress,
}

#[derive(Debug, Default)]
pub(crate) struct Network {
    channels: BTreeMap<(usize, usize, usize), VecDeque<Message>>,
    /// Arrived and not matched, by rank and communicator.
    unexpected: BTreeMap<(usize, usize), VecDeque<Message>>,
    posts: Vec<Post>,
    sends: Vec<(Mode, Progress)>,
}

fn takes(source: Option<usize>, tag: Option<i64>, message: &Message) -> bool {
    source.is_none_or(|source| source == message.source) && tag.is_none_or(|tag| tag == message.tag)
}

impl Network {
    pub(crate) fn send(&mut self, to: usize, comm: usize, mode: Mode, message: Message) -> usize {
        let send = self.sends.len();
        let progress = if mode == Mode::Eager { Progress::Done } else { Progress::Going };
        self.sends.push((mode, progress));
        let channel = self.channels.entry((message.source, to, comm)).or_default();
        channel.push_back(Message { send, ..message });
        send
    }

    pub(crate) fn send_progress(&self, send: usize) -> Progress {
        self.sends[send].1
    }

    /// Takes a send back unless it arrived already.
    pub(crate) fn cancel_send(&mut self, send: usize) {
        for channel in self.channels.values_mut() {
            let before = channel.len();
            channel.retain(|message| message.send != send);
            if channel.len() < before {
                self.sends[send].1 = Progress::Cancelled;
            }
        }
    }

    pub(crate) fn post(
        &mut self,
        rank: usize,
        comm: usize,
        source: Option<usize>,
        tag: Option<i64>,
    ) -> usize {
        let got = self.take(rank, comm, source, tag);
        let progress = if got.is_some() { Progress::Done } else { Progress::Going };
        self.posts.push(Post { rank, comm, source, tag, got, progress });
        self.posts.len() - 1
    }

    /// A post of a message that was probed and taken.
    pub(crate) fn post_of(&mut self, rank: usize, comm: usize, message: Message) -> usize {
        let (got, progress) = (Some(message), Progress::Done);
        self.posts.push(Post { rank, comm, source: None, tag: None, got, progress });
        self.posts.len() - 1
    }

    pub(crate) fn post_progress(&self, post: usize) -> Progress {
        self.posts[post].progress
    }

    /// What a post takes.
    pub(crate) fn wanted(&self, post: usize) -> (usize, Option<usize>, Option<i64>) {
        let post = &self.posts[post];
        (post.comm, post.source, post.tag)
    }

    pub(crate) fn comm_of(&self, post: usize) -> usize {
        self.posts[post].comm
    }

    pub(crate) fn got(&self, post: usize) -> &Message {
        self.posts[post].got.as_ref().expect("a post that is done")
    }

    pub(crate) fn cancel_post(&mut self, post: usize) {
        let post = &mut self.posts[post];
        if post.progress == Progress::Going {
            post.progress = Progress::Cancelled;
        }
    }

    /// The first message that a probe finds.
    pub(crate) fn probe(
        &self,
        rank: usize,
        comm: usize,
        source: Option<usize>,
        tag: Option<i64>,
    ) -> Option<&Message> {
        self.unexpected.get(&(rank, comm))?.iter().find(|message| takes(source, tag, message))
    }

    /// The same, taken.
    pub(crate) fn take(
        &mut self,
        rank: usize,
        comm: usize,
        source: Option<usize>,
        tag: Option<i64>,
    ) -> Option<Message> {
        let waiting = self.unexpected.get_mut(&(rank, comm))?;
        let at = waiting.iter().position(|message| takes(source, tag, message))?;
        let message = waiting.remove(at)?;
        self.matched(message.send);
        Some(message)
    }

    /// One message arrives. Whether there was one.
    pub(crate) fn deliver(&mut self, random: &mut fastrand::Rng) -> bool {
        let going: Vec<_> =
            self.channels.iter().filter(|(_, channel)| !channel.is_empty()).map(|(at, _)| *at).collect();
        let Some((from, to, comm)) = random.choice(going) else {
            return false;
        };
        let channel = self.channels.get_mut(&(from, to, comm)).expect("a channel with a message");
        let message = channel.pop_front().expect("a channel with a message");
        if self.sends[message.send].0 == Mode::Arrived {
            self.sends[message.send].1 = Progress::Done;
        }
        let post = self.posts.iter_mut().find(|post| {
            post.progress == Progress::Going
                && (post.rank, post.comm) == (to, comm)
                && takes(post.source, post.tag, &message)
        });
        let send = message.send;
        if let Some(post) = post {
            (post.got, post.progress) = (Some(message), Progress::Done);
            self.matched(send);
        } else {
            self.unexpected.entry((to, comm)).or_default().push_back(message);
        }
        true
    }

    fn matched(&mut self, send: usize) {
        if self.sends[send].1 == Progress::Going {
            self.sends[send].1 = Progress::Done;
        }
    }
}
