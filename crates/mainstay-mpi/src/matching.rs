//! Which send a receive got, found afterwards from logs that do not say it.
//!
//! MPI lets no message overtake another of the same sender, receiver, communicator and tag. So the k-th send of such a *class*
//! went to the k-th receive of it, counted in the order in which the receives were *posted*, which need not be the order in
//! which they were done. A receive of any source or tag counts in the class of what it got.
//!
//! A post whose end the log does not show may have taken a message as well. There is no more to know about it than that the
//! messages behind must fit: each receive gets the first send that is not before its predecessor's and has its length and CRC.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A communicator, named alike in the logs of all its members: its groups as ranks of the world, and how many communicators of
/// the same groups were made before it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommKey {
    /// One group, or the two of an inter-communicator, the lower one first.
    pub groups: Vec<Vec<i64>>,
    /// How many with these groups came before.
    pub index: u64,
}

/// Messages to one rank that cannot overtake each other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// Their communicator: one value for all its messages, whose groups may be long.
    pub comm: Arc<CommKey>,
    /// The sender, as a rank of the world.
    pub source: i64,
    /// Their tag.
    pub tag: i64,
}

/// A receive that got a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Received {
    /// Of which class.
    pub class: Class,
    /// Number of its post.
    pub post: u64,
    /// Bytes that came.
    pub length: u64,
    /// Their CRC-32C.
    pub crc: u32,
}

/// A post whose end the log does not show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenPost {
    /// Its number.
    pub post: u64,
    /// On which communicator.
    pub comm: Arc<CommKey>,
    /// From which rank of the world; `None` for any.
    pub source: Option<i64>,
    /// With which tag; `None` for any.
    pub tag: Option<i64>,
}

/// A message that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    /// Its number among the sends of its rank.
    pub number: u64,
    /// Bytes.
    pub length: u64,
    /// Their CRC-32C.
    pub crc: u32,
}

/// Parts of the rule, each of which the tests turn off to see that it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Messages with other tags may overtake.
    pub by_tag: bool,
    /// Messages on other communicators may overtake.
    pub by_comm: bool,
    /// Receives count in the order of their posts, not of their ends.
    pub by_post: bool,
    /// A send that was cancelled is none.
    pub without_cancelled: bool,
    /// A post whose end is not shown may have taken a message.
    pub open_posts: bool,
}

impl Rule {
    /// The whole rule.
    pub const WHOLE: Self =
        Self { by_tag: true, by_comm: true, by_post: true, without_cancelled: true, open_posts: true };

    fn class(self, class: &Class) -> Class {
        let mut class = class.clone();
        if !self.by_tag {
            class.tag = 0;
        }
        if !self.by_comm {
            class.comm = Arc::new(CommKey { groups: Vec::new(), index: 0 });
        }
        class
    }
}

/// A receive has another message than the rule gives it: a log is not what it seems, or the program did something that the
/// rule does not cover (posts of several threads at one time).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "receive {post} got {length} bytes with CRC {crc:08x} from rank {source_rank}, tag {tag}; no message that rank {source_rank} sent in \
     its place has them"
)]
pub struct Unpaired {
    /// Number of the post.
    pub post: u64,
    /// The sender, as a rank of the world.
    pub source_rank: i64,
    /// The tag.
    pub tag: i64,
    /// Bytes that came.
    pub length: u64,
    /// Their CRC-32C.
    pub crc: u32,
}

/// Sends by class, each in their order.
pub type Sends = BTreeMap<Class, Vec<Sent>>;

/// The number of the send, among those of its rank, that each post got. A post is missing where the sender's log ends before.
///
/// # Errors
/// [`Unpaired`] for the first receive that no send fits.
pub fn pair(
    received: &[Received],
    open: &[OpenPost],
    sends: &Sends,
    rule: Rule,
) -> Result<HashMap<u64, u64>, Unpaired> {
    let mut by_class: HashMap<Class, Vec<&Received>> = HashMap::new();
    for receive in received {
        by_class.entry(rule.class(&receive.class)).or_default().push(receive);
    }
    let mut sent_by_class: HashMap<Class, Vec<Sent>> = HashMap::new();
    for (class, sent) in sends {
        sent_by_class.entry(rule.class(class)).or_default().extend(sent);
    }
    sent_by_class.values_mut().for_each(|sent| sent.sort_by_key(|sent| sent.number));
    let mut pairs = HashMap::new();
    for (class, mut receives) in by_class {
        if rule.by_post {
            receives.sort_by_key(|receive| receive.post);
        }
        let mut sent = sent_by_class.get(&class).map_or(&[][..], Vec::as_slice).iter();
        let mut doubtful: Vec<u64> = open
            .iter()
            .filter(|open| rule.open_posts && open.may_take(&class))
            .map(|open| open.post)
            .collect();
        doubtful.sort_unstable();
        let mut doubtful = doubtful.into_iter().peekable();
        let mut skips = 0;
        for receive in receives {
            while doubtful.next_if(|post| *post < receive.post).is_some() {
                skips += 1;
            }
            for sent in sent.by_ref() {
                if (sent.length, sent.crc) == (receive.length, receive.crc) {
                    pairs.insert(receive.post, sent.number);
                    break;
                }
                if skips == 0 {
                    return Err(receive.unpaired());
                }
                skips -= 1;
            }
        }
    }
    Ok(pairs)
}

impl Received {
    fn unpaired(&self) -> Unpaired {
        let Class { source, tag, .. } = self.class;
        Unpaired { post: self.post, source_rank: source, tag, length: self.length, crc: self.crc }
    }
}

impl OpenPost {
    fn may_take(&self, class: &Class) -> bool {
        self.comm == class.comm
            && self.source.is_none_or(|source| source == class.source)
            && self.tag.is_none_or(|tag| tag == class.tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn class(tag: i64) -> Class {
        Class { comm: Arc::new(CommKey { groups: vec![vec![0, 1]], index: 0 }), source: 1, tag }
    }

    fn received(post: u64, tag: i64, crc: u32) -> Received {
        Received { class: class(tag), post, length: 4, crc }
    }

    fn sends(sent: &[(i64, u32)]) -> Sends {
        let mut sends = Sends::new();
        for (number, (tag, crc)) in (0..).zip(sent) {
            sends.entry(class(*tag)).or_default().push(Sent { number, length: 4, crc: *crc });
        }
        sends
    }

    #[test]
    fn receives_count_as_they_were_posted_and_tags_apart() {
        let sends = sends(&[(7, 10), (8, 20), (7, 30)]);
        let received = [received(5, 7, 30), received(2, 7, 10), received(0, 8, 20)];
        let pairs = pair(&received, &[], &sends, Rule::WHOLE).expect("pairs");
        assert_eq!(pairs, HashMap::from([(2, 0), (0, 1), (5, 2)]));
        assert!(pair(&received, &[], &sends, Rule { by_post: false, ..Rule::WHOLE }).is_err());
        assert!(pair(&received, &[], &sends, Rule { by_tag: false, ..Rule::WHOLE }).is_err());
    }

    #[test]
    fn an_open_post_may_have_taken_one_message_and_no_more() {
        let open = [OpenPost { post: 1, comm: class(0).comm, source: None, tag: Some(7) }];
        let taken = sends(&[(7, 10), (7, 30)]);
        let pairs = pair(&[received(2, 7, 30)], &open, &taken, Rule::WHOLE).expect("pairs");
        assert_eq!(pairs, HashMap::from([(2, 1)]));
        let later = [received(0, 7, 30)];
        let Err(unpaired) = pair(&later, &open, &taken, Rule::WHOLE) else { panic!("it was posted before") };
        assert_eq!((unpaired.post, unpaired.crc), (0, 30));
        let two = sends(&[(7, 10), (7, 20), (7, 30)]);
        assert!(pair(&[received(2, 7, 30)], &open, &two, Rule::WHOLE).is_err());
    }

    #[test]
    fn a_sender_that_was_cut_off_leaves_posts_without_a_send() {
        let pairs = pair(&[received(0, 7, 10), received(1, 7, 20)], &[], &sends(&[(7, 10)]), Rule::WHOLE);
        assert_eq!(pairs, Ok(HashMap::from([(0, 0)])));
    }
}
