//! What the processes of a group say to each other, byte for byte as in docs/group.md.

use crate::ballot::{Ballot, Departure, Promised, Proposal};
use mainstay_types::codec::{Reader, Truncated, put_bytes};
use mainstay_types::id::ClusterId;
use mainstay_types::view::{Address, JoinerId, MEMBERS_MAX, MemberId, Offer, ViewError, ViewId};

/// The version of the messages. A change of any message changes it.
pub const PROTOCOL: u8 = 2;

/// A message: who says it, in which view, and what.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The group; `None` from who does not know it yet.
    pub cluster: Option<ClusterId>,
    /// The view of the one who speaks: the last that its store knows to be installed. Whatever is about the view is heard only by who has the same.
    pub view: ViewId,
    /// Who speaks. Which member that is, if any, follows from the view.
    pub from: JoinerId,
    /// What.
    pub body: Body,
}

/// What is said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// The one who speaks is up.
    Beat {
        /// When it was sent, in nanoseconds by the sender's clock.
        sent: u64,
        /// `sent` of the latest beat of the receiver that the sender has taken in, in this view; 0 for none. It shows that the sender hears.
        echo: u64,
        /// The sender owes the receiver a lease for that beat: never once it has promised.
        grants: bool,
        /// The sender has all the data of the view.
        ready: bool,
    },
    /// Who else hears nothing of this member? Sent to all, itself among them.
    Verify {
        /// The member.
        suspect: MemberId,
    },
    /// The answer.
    Verified {
        /// The member.
        suspect: MemberId,
        /// Nothing was heard of it for as long as that is allowed.
        silent: bool,
    },
    /// The one who speaks wants to be out of the next view.
    Leave,
    /// The one who speaks wants to be in the next view.
    Join {
        /// What it brings.
        offer: Offer,
        /// Its store has promises of the view that it names, and votes on what follows that.
        votes: bool,
        /// It has lately heard somebody who is in a view. Who hears nothing is not let in.
        hears: bool,
        /// Its regions have been filled with what the group has.
        learned: bool,
    },
    /// Where to ask: the answer to `Join` of who does not let in.
    Located {
        /// Who lets in.
        coordinator: Address,
    },
    /// Who else asks at the one who speaks, which is in no view either: the answer to `Join` there.
    Askers {
        /// Others, with what they are and where.
        joiners: Vec<JoinerId>,
    },
    /// Promise to hear no lower ballot about the view that follows this one, and stop serving.
    Prepare {
        /// The ballot.
        ballot: Ballot,
    },
    /// The promise.
    Promise {
        /// The ballot.
        ballot: Ballot,
        /// What the store has and has accepted.
        promised: Box<Promised>,
    },
    /// A higher ballot was promised.
    Rejected {
        /// The higher one.
        promised: Ballot,
    },
    /// Accept this.
    Accept {
        /// The ballot.
        ballot: Ballot,
        /// What.
        proposal: Proposal,
    },
    /// It is accepted, durably.
    Accepted {
        /// The ballot.
        ballot: Ballot,
    },
    /// This is decided. Said to who asks to be let in and is not named by it, it shows what to learn first.
    Install {
        /// What.
        proposal: Proposal,
    },
    /// The one who is spoken to is not in the view of the one who speaks, which is newer.
    Shunned {
        /// Since when and why, if that is still known.
        departure: Option<Departure>,
    },
    /// The one who asked to be let in is not.
    Refused {
        /// Why.
        refusal: Refusal,
    },
}

/// Why somebody is not let in. Nothing was changed on either side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// It belongs to another group.
    #[error(
        "this process belongs to group {theirs}, and the one it asked to group {ours}: two groups were begun, or an address belongs to another \
         one; nothing was changed: correct the addresses to ask at, or, to give up the group that was begun by mistake, start its nodes \
         on empty directories without --init"
    )]
    OtherCluster {
        /// The group of who refuses.
        ours: ClusterId,
        /// The group of who is refused.
        theirs: ClusterId,
    },
    /// The view has as many members as it may have.
    #[error(
        "the group has {members} members, which is its limit; nothing was changed: let one leave, or raise members_max"
    )]
    Full {
        /// The limit.
        members: u16,
    },
    /// So many wait to be let in that no more are heard.
    #[error(
        "{joiners} processes wait to be let in, which is the limit joiners_max; nothing was changed: it is asked again by itself"
    )]
    Busy {
        /// The limit.
        joiners: u16,
    },
}

/// Bytes that are no message of this version. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// They end too early.
    #[error("the message is too short: {0}")]
    Truncated(#[from] Truncated),
    /// They go on behind the last field.
    #[error("the message goes on for {bytes} bytes behind its end")]
    Trailing {
        /// Bytes too many.
        bytes: usize,
    },
    /// Another version of the messages.
    #[error(
        "the message is of version {found} of the protocol of groups, and this is version {PROTOCOL}: run the same version of mainstay on all nodes"
    )]
    Protocol {
        /// Its version.
        found: u8,
    },
    /// A kind of message that is not known.
    #[error("messages of kind {kind} are not known to this version")]
    Kind {
        /// The kind.
        kind: u8,
    },
    /// A flag is neither set nor clear.
    #[error("a flag has the value {flag}")]
    Flag {
        /// Its value.
        flag: u8,
    },
    /// A reason for a departure or a refusal that is not known.
    #[error("reasons of kind {kind} are not known to this version")]
    Reason {
        /// The kind.
        kind: u8,
    },
    /// More of something than a view has members.
    #[error("{count} {what} are named, and a view has at most {MEMBERS_MAX} members")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
    },
    /// A view that cannot be.
    #[error(transparent)]
    View(#[from] ViewError),
}

impl Message {
    /// Appends its bytes.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&[PROTOCOL, self.body.kind()]);
        put_cluster(self.cluster, out);
        out.extend_from_slice(&self.view.0.to_le_bytes());
        self.from.put(out);
        self.body.put(out);
    }

    /// Reads what [`Self::put`] wrote: exactly one message.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut from = Reader::new(bytes);
        let protocol = from.u8()?;
        if protocol != PROTOCOL {
            return Err(MessageError::Protocol { found: protocol });
        }
        let kind = from.u8()?;
        let cluster = take_cluster(&mut from)?;
        let view = ViewId(from.u64()?);
        let speaker = JoinerId::take(&mut from)?;
        let body = Body::take(kind, &mut from)?;
        match from.rest().len() {
            0 => Ok(Self { cluster, view, from: speaker, body }),
            bytes => Err(MessageError::Trailing { bytes }),
        }
    }
}

impl Body {
    /// Its name, for people.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Beat { .. } => "Beat",
            Self::Verify { .. } => "Verify",
            Self::Verified { .. } => "Verified",
            Self::Leave => "Leave",
            Self::Join { .. } => "Join",
            Self::Located { .. } => "Located",
            Self::Prepare { .. } => "Prepare",
            Self::Promise { .. } => "Promise",
            Self::Rejected { .. } => "Rejected",
            Self::Accept { .. } => "Accept",
            Self::Accepted { .. } => "Accepted",
            Self::Install { .. } => "Install",
            Self::Shunned { .. } => "Shunned",
            Self::Refused { .. } => "Refused",
            Self::Askers { .. } => "Askers",
        }
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Beat { .. } => 1,
            Self::Verify { .. } => 2,
            Self::Verified { .. } => 3,
            Self::Leave => 4,
            Self::Join { .. } => 5,
            Self::Located { .. } => 6,
            Self::Prepare { .. } => 7,
            Self::Promise { .. } => 8,
            Self::Rejected { .. } => 9,
            Self::Accept { .. } => 10,
            Self::Accepted { .. } => 11,
            Self::Install { .. } => 12,
            Self::Shunned { .. } => 13,
            Self::Refused { .. } => 14,
            Self::Askers { .. } => 15,
        }
    }

    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Beat { sent, echo, grants, ready } => {
                out.extend_from_slice(&sent.to_le_bytes());
                out.extend_from_slice(&echo.to_le_bytes());
                out.extend_from_slice(&[u8::from(*grants), u8::from(*ready)]);
            }
            Self::Verify { suspect } => suspect.put(out),
            Self::Verified { suspect, silent } => {
                suspect.put(out);
                out.push(u8::from(*silent));
            }
            Self::Leave => {}
            Self::Join { offer, votes, hears, learned } => {
                offer.put(out);
                out.extend_from_slice(&[u8::from(*votes), u8::from(*hears), u8::from(*learned)]);
            }
            Self::Located { coordinator } => coordinator.put(out),
            Self::Prepare { ballot } | Self::Accepted { ballot } | Self::Rejected { promised: ballot } => {
                ballot.put(out);
            }
            Self::Promise { ballot, promised } => {
                ballot.put(out);
                put_promised(promised, out);
            }
            Self::Accept { ballot, proposal } => {
                ballot.put(out);
                proposal.put(out);
            }
            Self::Install { proposal } => proposal.put(out),
            Self::Shunned { departure } => {
                out.push(u8::from(departure.is_some()));
                if let Some(departure) = departure {
                    departure.put(out);
                }
            }
            Self::Refused { refusal } => put_refusal(refusal, out),
            Self::Askers { joiners } => {
                let count = u16::try_from(joiners.len()).expect("those who ask are limited");
                out.extend_from_slice(&count.to_le_bytes());
                joiners.iter().for_each(|joiner| joiner.put(out));
            }
        }
    }

    fn take(kind: u8, from: &mut Reader<'_>) -> Result<Self, MessageError> {
        Ok(match kind {
            1 => {
                let (sent, echo) = (from.u64()?, from.u64()?);
                Self::Beat { sent, echo, grants: take_flag(from)?, ready: take_flag(from)? }
            }
            2 => Self::Verify { suspect: MemberId::take(from)? },
            3 => Self::Verified { suspect: MemberId::take(from)?, silent: take_flag(from)? },
            4 => Self::Leave,
            5 => Self::Join {
                offer: Offer::take(from)?,
                votes: take_flag(from)?,
                hears: take_flag(from)?,
                learned: take_flag(from)?,
            },
            6 => Self::Located { coordinator: Address::take(from)? },
            7 => Self::Prepare { ballot: Ballot::take(from)? },
            8 => Self::Promise { ballot: Ballot::take(from)?, promised: Box::new(take_promised(from)?) },
            9 => Self::Rejected { promised: Ballot::take(from)? },
            10 => Self::Accept { ballot: Ballot::take(from)?, proposal: Proposal::take(from)? },
            11 => Self::Accepted { ballot: Ballot::take(from)? },
            12 => Self::Install { proposal: Proposal::take(from)? },
            13 => Self::Shunned { departure: take_flag(from)?.then(|| Departure::take(from)).transpose()? },
            14 => Self::Refused { refusal: take_refusal(from)? },
            15 => Self::Askers { joiners: take_joiners(from)? },
            kind => return Err(MessageError::Kind { kind }),
        })
    }
}

pub(crate) fn put_accepted(accepted: Option<&(Ballot, Proposal)>, out: &mut Vec<u8>) {
    out.push(u8::from(accepted.is_some()));
    if let Some((ballot, proposal)) = accepted {
        ballot.put(out);
        proposal.put(out);
    }
}

pub(crate) fn take_accepted(from: &mut Reader<'_>) -> Result<Option<(Ballot, Proposal)>, MessageError> {
    take_flag(from)?.then(|| Ok((Ballot::take(from)?, Proposal::take(from)?))).transpose()
}

pub(crate) fn put_cluster(cluster: Option<ClusterId>, out: &mut Vec<u8>) {
    out.push(u8::from(cluster.is_some()));
    if let Some(cluster) = cluster {
        out.extend_from_slice(&cluster.0);
    }
}

pub(crate) fn take_cluster(from: &mut Reader<'_>) -> Result<Option<ClusterId>, MessageError> {
    take_flag(from)?.then(|| take_id(from)).transpose()
}

pub(crate) fn take_flag(from: &mut Reader<'_>) -> Result<bool, MessageError> {
    match from.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        flag => Err(MessageError::Flag { flag }),
    }
}

fn take_id(from: &mut Reader<'_>) -> Result<ClusterId, MessageError> {
    Ok(ClusterId(from.take(16)?.try_into().expect("16 bytes were taken")))
}

fn put_promised(promised: &Promised, out: &mut Vec<u8>) {
    put_accepted(promised.accepted.as_ref(), out);
    put_bytes(out, &promised.report);
    out.extend_from_slice(&u16::try_from(promised.grants.len()).expect("members are limited").to_le_bytes());
    for (member, left_ns) in &promised.grants {
        member.put(out);
        out.extend_from_slice(&left_ns.to_le_bytes());
    }
    out.extend_from_slice(&promised.ready.0.to_le_bytes());
}

fn take_promised(from: &mut Reader<'_>) -> Result<Promised, MessageError> {
    let accepted = take_accepted(from)?;
    let report = from.bytes()?.to_vec();
    let count = usize::from(from.u16()?);
    if count > MEMBERS_MAX {
        return Err(MessageError::TooMany { what: "grants", count });
    }
    let grants: Result<Vec<_>, Truncated> =
        (0..count).map(|_| Ok((MemberId::take(from)?, from.u64()?))).collect();
    Ok(Promised { accepted, report, grants: grants?, ready: ViewId(from.u64()?) })
}

fn take_joiners(from: &mut Reader<'_>) -> Result<Vec<JoinerId>, MessageError> {
    let count = usize::from(from.u16()?);
    if count > MEMBERS_MAX {
        return Err(MessageError::TooMany { what: "joiners", count });
    }
    Ok((0..count).map(|_| JoinerId::take(from)).collect::<Result<_, _>>()?)
}

fn put_refusal(refusal: &Refusal, out: &mut Vec<u8>) {
    match refusal {
        Refusal::OtherCluster { ours, theirs } => {
            out.push(1);
            out.extend_from_slice(&ours.0);
            out.extend_from_slice(&theirs.0);
        }
        Refusal::Full { members: count } => {
            out.push(2);
            out.extend_from_slice(&count.to_le_bytes());
        }
        Refusal::Busy { joiners: count } => {
            out.push(3);
            out.extend_from_slice(&count.to_le_bytes());
        }
    }
}

fn take_refusal(from: &mut Reader<'_>) -> Result<Refusal, MessageError> {
    Ok(match from.u8()? {
        1 => Refusal::OtherCluster { ours: take_id(from)?, theirs: take_id(from)? },
        2 => Refusal::Full { members: from.u16()? },
        3 => Refusal::Busy { joiners: from.u16()? },
        kind => return Err(MessageError::Reason { kind }),
    })
}
