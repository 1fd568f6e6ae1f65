//! Who belongs to a group at one moment: views, and the identities of those in them and of those who want to be.

use crate::codec::{Reader, Truncated, put_bytes};
use crate::id::{Incarnation, StoreId};
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most members of a view.
pub const MEMBERS_MAX: usize = 64;

/// Greatest weight of a member, in votes.
pub const WEIGHT_MAX: u32 = 1 << 16;

/// Most roles that a member offers.
pub const ROLES_MAX: usize = 16;

/// Longest name of a role, in bytes.
pub const ROLE_BYTES_MAX: usize = 32;

/// The number of a view: one more than that of the view before, for ever, across total restarts too. 0 is before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ViewId(pub u64);

impl ViewId {
    /// Before the first view.
    pub const NONE: Self = Self(0);

    /// The number after this one.
    ///
    /// # Panics
    /// When the numbers are used up, which no deployment reaches.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.checked_add(1).expect("view numbers are never used up"))
    }
}

impl fmt::Display for ViewId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

impl fmt::Debug for ViewId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where a process listens. An IPv4 address is written as IPv6 does (`::ffff:a.b.c.d`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Address {
    /// The IPv6 address, in network order.
    pub ip: [u8; 16],
    /// The TCP port.
    pub port: u16,
}

impl Address {
    /// Encoded length, in bytes.
    pub const BYTES: usize = 18;

    /// That of an IPv4 address.
    #[must_use]
    pub const fn v4(ip: [u8; 4], port: u16) -> Self {
        let [a, b, c, d] = ip;
        Self { ip: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d], port }
    }

    /// Appends the encoding: 16 bytes in network order, port (u16, little-endian).
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.ip);
        out.extend_from_slice(&self.port.to_le_bytes());
    }

    /// Reads what [`Self::put`] wrote.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    pub fn take(from: &mut Reader<'_>) -> Result<Self, Truncated> {
        Ok(Self { ip: take_16(from)?, port: from.u16()? })
    }
}

/// As people write it: `10.0.0.7:7171`, or `[2001:db8:0:0:0:0:0:1]:7171`.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d] = self.ip {
            return write!(f, "{a}.{b}.{c}.{d}:{}", self.port);
        }
        let words =
            self.ip.chunks_exact(2).map(|word| format!("{:x}", u16::from_be_bytes([word[0], word[1]])));
        write!(f, "[{}]:{}", words.collect::<Vec<_>>().join(":"), self.port)
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A life of a store at an address: who speaks while no view has made a member of it, and what a view makes a member of.
///
/// Deliberately another type than [`MemberId`], with no view that could be a wildcard (Geode's id without a view equals every id of its
/// address, so that its equality is not transitive).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct JoinerId {
    /// Where it listens.
    pub address: Address,
    /// Its directory, which votes.
    pub store: StoreId,
    /// Its life: raised, durably, whenever the directory is opened.
    pub life: Incarnation,
}

impl JoinerId {
    /// Encoded length, in bytes.
    pub const BYTES: usize = Address::BYTES + 16 + 8;

    /// Appends the encoding: address, store (16 bytes), life (u64).
    pub fn put(&self, out: &mut Vec<u8>) {
        self.address.put(out);
        out.extend_from_slice(&self.store.0);
        out.extend_from_slice(&self.life.0.to_le_bytes());
    }

    /// Reads what [`Self::put`] wrote.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    pub fn take(from: &mut Reader<'_>) -> Result<Self, Truncated> {
        Ok(Self {
            address: Address::take(from)?,
            store: StoreId(take_16(from)?),
            life: Incarnation(from.u64()?),
        })
    }
}

impl fmt::Display for JoinerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (store {}, life {})", self.address, self.store, self.life)
    }
}

/// An incarnation: an address and the view in which it was born there. Never given twice (Schuchardt 2010, JGroups address reuse).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct MemberId {
    /// Where it listens.
    pub address: Address,
    /// The first view it was in.
    pub born: ViewId,
}

impl MemberId {
    /// Encoded length, in bytes.
    pub const BYTES: usize = Address::BYTES + 8;

    /// Appends the encoding: address, view (u64).
    pub fn put(&self, out: &mut Vec<u8>) {
        self.address.put(out);
        out.extend_from_slice(&self.born.0.to_le_bytes());
    }

    /// Reads what [`Self::put`] wrote.
    ///
    /// # Errors
    /// [`Truncated`] at the end.
    pub fn take(from: &mut Reader<'_>) -> Result<Self, Truncated> {
        Ok(Self { address: Address::take(from)?, born: ViewId(from.u64()?) })
    }
}

/// As in `10.0.0.7:7171<v3>`.
impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}<{}>", self.address, self.born)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What a member is there for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum MemberKind {
    /// It votes, may lead and holds data.
    Server,
    /// It looks on: no vote, never the lead, never the coordinator, stamps nothing.
    Administrator,
}

/// What a process brings into a group: fixed for as long as it is the same member.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Offer {
    /// What it is there for.
    pub kind: MemberKind,
    /// Its votes: 0 for an administrator, at most [`WEIGHT_MAX`].
    pub weight: u32,
    /// The roles that it plays: at most [`ROLES_MAX`] names of at most [`ROLE_BYTES_MAX`] bytes.
    pub roles: Vec<String>,
}

impl Offer {
    /// A server with one vote and no role.
    #[must_use]
    pub fn server() -> Self {
        Self { kind: MemberKind::Server, weight: 1, roles: Vec::new() }
    }

    /// Appends the encoding: kind (u8: 0 server, 1 administrator), weight (u32), count of roles (u8), each with its length (u32).
    pub fn put(&self, out: &mut Vec<u8>) {
        out.push(match self.kind {
            MemberKind::Server => 0,
            MemberKind::Administrator => 1,
        });
        out.extend_from_slice(&self.weight.to_le_bytes());
        out.push(u8::try_from(self.roles.len()).expect("roles are limited"));
        self.roles.iter().for_each(|role| put_bytes(out, role.as_bytes()));
    }

    /// Reads what [`Self::put`] wrote.
    ///
    /// # Errors
    /// [`ViewError`].
    pub fn take(from: &mut Reader<'_>) -> Result<Self, ViewError> {
        let kind = match from.u8()? {
            0 => MemberKind::Server,
            1 => MemberKind::Administrator,
            kind => return Err(ViewError::Kind { kind }),
        };
        let weight = from.u32()?;
        if weight > WEIGHT_MAX || (kind == MemberKind::Administrator && weight != 0) {
            return Err(ViewError::Weight { weight });
        }
        let count = usize::from(from.u8()?);
        if count > ROLES_MAX {
            return Err(ViewError::Roles { count });
        }
        let mut roles = Vec::with_capacity(count);
        for _ in 0..count {
            let name = from.bytes()?;
            let text = str::from_utf8(name).ok().filter(|text| {
                text.len() <= ROLE_BYTES_MAX && !text.is_empty() && !text.chars().any(char::is_control)
            });
            roles.push(text.ok_or(ViewError::Role)?.to_owned());
        }
        Ok(Self { kind, weight, roles })
    }
}

/// One entry of a view.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The view in which it was born.
    pub born: ViewId,
    /// The life that the view made a member.
    pub joiner: JoinerId,
    /// What it brings.
    pub offer: Offer,
}

impl Member {
    /// By what name it speaks.
    #[must_use]
    pub fn id(&self) -> MemberId {
        MemberId { address: self.joiner.address, born: self.born }
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.born.0.to_le_bytes());
        self.joiner.put(out);
        self.offer.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, ViewError> {
        Ok(Self { born: ViewId(from.u64()?), joiner: JoinerId::take(from)?, offer: Offer::take(from)? })
    }
}

/// The members of a group at one moment, agreed by a majority of the view before.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct View {
    /// Its number.
    pub id: ViewId,
    /// Whether an outside arbiter decides its successor, instead of a majority of its stores.
    pub arbitrated: bool,
    /// Its members, the oldest first. No two have an address or a store in common.
    pub members: Vec<Member>,
}

impl View {
    /// The member that this life of a store is in it.
    #[must_use]
    pub fn member(&self, joiner: &JoinerId) -> Option<&Member> {
        self.members.iter().find(|member| member.joiner == *joiner)
    }

    /// The member of that store, whichever life.
    #[must_use]
    pub fn of_store(&self, store: StoreId) -> Option<&Member> {
        self.members.iter().find(|member| member.joiner.store == store)
    }

    /// The member of that name.
    #[must_use]
    pub fn named(&self, id: MemberId) -> Option<&Member> {
        self.members.iter().find(|member| member.id() == id)
    }

    /// The oldest server: leads whatever has one leader. Never an administrator.
    #[must_use]
    pub fn lead(&self) -> Option<&Member> {
        self.members.iter().find(|member| member.offer.kind == MemberKind::Server)
    }

    /// All votes in it.
    #[must_use]
    pub fn weight(&self) -> u64 {
        self.members.iter().map(|member| u64::from(member.offer.weight)).sum()
    }

    /// The votes of a store; 0 if it is not in it.
    #[must_use]
    pub fn weight_of(&self, store: StoreId) -> u64 {
        self.of_store(store).map_or(0, |member| u64::from(member.offer.weight))
    }

    /// Whether so many votes are strictly more than half: two sides never both are.
    #[must_use]
    pub fn is_majority(&self, weight: u64) -> bool {
        weight > self.weight() / 2
    }

    /// Appends the encoding: id (u64), arbitrated (u8), count (u16), members.
    pub fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.0.to_le_bytes());
        out.push(u8::from(self.arbitrated));
        let count = u16::try_from(self.members.len()).expect("members are limited");
        out.extend_from_slice(&count.to_le_bytes());
        self.members.iter().for_each(|member| member.put(out));
    }

    /// Reads what [`Self::put`] wrote.
    ///
    /// # Errors
    /// [`ViewError`], also for a view that could not have been agreed on.
    pub fn take(from: &mut Reader<'_>) -> Result<Self, ViewError> {
        let id = ViewId(from.u64()?);
        let arbitrated = match from.u8()? {
            0 => false,
            1 => true,
            flag => return Err(ViewError::Flag { flag }),
        };
        let count = usize::from(from.u16()?);
        if count == 0 || count > MEMBERS_MAX {
            return Err(ViewError::Members { count });
        }
        let members = (0..count).map(|_| Member::take(from)).collect::<Result<Vec<_>, _>>()?;
        let view = Self { id, arbitrated, members };
        view.check()?;
        Ok(view)
    }

    fn check(&self) -> Result<(), ViewError> {
        let mut oldest = ViewId(1);
        for (place, member) in self.members.iter().enumerate() {
            if member.born < oldest || member.born > self.id {
                return Err(ViewError::Age { member: member.id() });
            }
            oldest = member.born;
            let shared = self.members[..place].iter().any(|earlier| {
                earlier.joiner.address == member.joiner.address || earlier.joiner.store == member.joiner.store
            });
            if shared {
                return Err(ViewError::Twice { member: member.id() });
            }
        }
        if self.lead().is_none() || self.weight() == 0 {
            return Err(ViewError::NoVoter);
        }
        Ok(())
    }
}

/// As in `v3 [10.0.0.1:7171<v1>, 10.0.0.2:7171<v2>]`.
impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<String> = self.members.iter().map(|member| member.id().to_string()).collect();
        write!(f, "{} [{}]", self.id, members.join(", "))
    }
}

/// Bytes that are no view, or one that could not have been agreed on. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ViewError {
    /// They end too early.
    #[error("the view is too short: {0}")]
    Truncated(#[from] Truncated),
    /// No member, or more than [`MEMBERS_MAX`].
    #[error("the view has {count} members; 1 to {MEMBERS_MAX} are possible")]
    Members {
        /// How many.
        count: usize,
    },
    /// A flag is neither set nor clear.
    #[error("a flag of the view has the value {flag}")]
    Flag {
        /// Its value.
        flag: u8,
    },
    /// A kind of member that is not known.
    #[error("members of kind {kind} are not known to this version")]
    Kind {
        /// The kind.
        kind: u8,
    },
    /// Above [`WEIGHT_MAX`], or an administrator's.
    #[error("a member cannot have weight {weight}")]
    Weight {
        /// The weight.
        weight: u32,
    },
    /// More than [`ROLES_MAX`].
    #[error("a member offers {count} roles; {ROLES_MAX} are possible")]
    Roles {
        /// How many.
        count: usize,
    },
    /// The name of a role is empty, too long, not UTF-8 or holds control characters.
    #[error("the name of a role is empty, longer than {ROLE_BYTES_MAX} bytes, or no text")]
    Role,
    /// A member is out of the order of age, or younger than the view.
    #[error("{member} is not where its age puts it")]
    Age {
        /// The member.
        member: MemberId,
    },
    /// Two members have an address or a store in common.
    #[error("the address or the store of {member} is in the view twice")]
    Twice {
        /// The second of them.
        member: MemberId,
    },
    /// Nobody could vote or lead.
    #[error("no member of the view is a server with a vote")]
    NoVoter,
}

fn take_16(from: &mut Reader<'_>) -> Result<[u8; 16], Truncated> {
    Ok(from.take(16)?.try_into().expect("16 bytes were taken"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(number: u8, born: u64, weight: u32) -> Member {
        let joiner = JoinerId {
            address: Address::v4([10, 0, 0, number], 7171),
            store: StoreId([number; 16]),
            life: Incarnation(1),
        };
        Member { born: ViewId(born), joiner, offer: Offer { weight, ..Offer::server() } }
    }

    fn view(members: Vec<Member>) -> View {
        View { id: ViewId(9), arbitrated: false, members }
    }

    fn read(view: &View) -> Result<View, ViewError> {
        let mut bytes = Vec::new();
        view.put(&mut bytes);
        View::take(&mut Reader::new(&bytes))
    }

    #[test]
    fn a_view_reads_back_and_one_that_nobody_agreed_on_is_refused() {
        let mut whole = view(vec![member(1, 1, 1), member(2, 4, 2), member(3, 9, 1)]);
        whole.members[1].offer.roles = vec!["stock".to_owned(), "prices".to_owned()];
        assert_eq!(read(&whole), Ok(whole.clone()));
        let refused = [
            (view(Vec::new()), ViewError::Members { count: 0 }),
            (view(vec![member(1, 4, 1), member(2, 1, 1)]), ViewError::Age { member: member(2, 1, 1).id() }),
            (view(vec![member(1, 10, 1)]), ViewError::Age { member: member(1, 10, 1).id() }),
            (view(vec![member(1, 1, 1), member(1, 2, 1)]), ViewError::Twice { member: member(1, 2, 1).id() }),
            (view(vec![member(1, 1, 0)]), ViewError::NoVoter),
            (view(vec![member(1, 1, WEIGHT_MAX + 1)]), ViewError::Weight { weight: WEIGHT_MAX + 1 }),
        ];
        for (bad, error) in refused {
            assert_eq!(read(&bad), Err(error));
        }
    }

    /// GEODE-9822: with two sides of 49 % each both went on. Integers, and strictly more than half.
    #[test]
    fn at_most_one_side_of_any_split_is_a_majority() {
        for weights in [&[1, 1][..], &[1, 1, 1], &[1; 4], &[10, 10, 15, 10], &[49, 2, 49], &[3, 3, 1]] {
            let members = (1..).zip(weights).map(|(number, &weight)| member(number, 1, weight)).collect();
            let view = view(members);
            for side in 0..1_u32 << weights.len() {
                let votes = |side: u32| {
                    (0..weights.len()).filter(|at| side >> at & 1 == 1).map(|at| u64::from(weights[at])).sum()
                };
                let both = view.is_majority(votes(side)) && view.is_majority(votes(!side));
                assert!(!both, "{weights:?} split as {side:b}");
            }
        }
    }

    #[test]
    fn an_administrator_never_leads() {
        let mut administrator = member(1, 1, 0);
        administrator.offer.kind = MemberKind::Administrator;
        let view = view(vec![administrator, member(2, 2, 1)]);
        assert_eq!(view.lead().map(Member::id), Some(member(2, 2, 1).id()));
        assert_eq!(read(&view), Ok(view));
    }

    #[test]
    fn addresses_are_written_as_people_do() {
        assert_eq!(Address::v4([10, 0, 0, 7], 7171).to_string(), "10.0.0.7:7171");
        let mut six = Address { ip: [0; 16], port: 80 };
        (six.ip[0], six.ip[1], six.ip[15]) = (0x20, 0x01, 1);
        assert_eq!(six.to_string(), "[2001:0:0:0:0:0:0:1]:80");
    }
}
