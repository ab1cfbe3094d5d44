//! Visibility of documents, derived only from the acknowledged changes and their times: a second, short implementation
//! of the rules of design/channels.md.
//!
//! Each item has one of the states that it may have had at some moment of a span. Possible rights are the union of the
//! rights of all combinations of states; sure rights are their intersection. An outcome between the two may go either
//! way.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use flatbed_testkit::timeline::{KEPT, Span, Timeline};

pub const USERS: usize = 40;
pub const ROLES: usize = 10;
pub const CHANNELS: u32 = 60;

/// The bit of `!` in a [`Mask`].
pub const EVERYONE: u32 = CHANNELS;

/// The numbers of plain documents, of documents that grant something, and of documents that end.
pub const PLAIN: usize = 80;
pub const GIVING: usize = 20;
pub const ENDING: usize = 16;
pub const DOCS: usize = PLAIN + GIVING + ENDING;

/// A set of channels, or of roles: one bit each.
pub type Mask = u64;

const TURNED: Mask = (1 << CHANNELS) - 1;

pub fn user_name(user: usize) -> String {
    format!("u{user:02}")
}

pub fn role_name(role: usize) -> String {
    format!("r{role}")
}

pub fn channel_name(channel: u32) -> String {
    if channel == EVERYONE { "!".into() } else { format!("c{channel}") }
}

pub fn doc_id(doc: usize) -> String {
    match doc {
        0..PLAIN => format!("d{doc:03}"),
        _ if doc < PLAIN + GIVING => format!("g{doc:03}"),
        _ => format!("e{doc:03}"),
    }
}

pub fn doc_of(id: &str) -> Option<usize> {
    id.get(1..)?.parse().ok().filter(|doc| *doc < DOCS && doc_id(*doc) == id)
}

pub fn gives_things(doc: usize) -> bool {
    doc >= PLAIN
}

pub fn ends(doc: usize) -> bool {
    doc >= PLAIN + GIVING
}

pub fn bits(mask: Mask) -> impl Iterator<Item = u32> {
    (0..Mask::BITS).filter(move |bit| mask >> bit & 1 == 1)
}

fn names(mask: Mask) -> Vec<String> {
    bits(mask).map(channel_name).collect()
}

/// A user as last written by the administrator.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct User {
    pub is_disabled: bool,
    /// True if the user has `*`.
    pub has_all: bool,
    pub channels: Mask,
    pub roles: Mask,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    User(usize),
    Role(usize),
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let User { is_disabled, has_all, channels, roles } = self;
        let roles: Vec<u32> = bits(*roles).collect();
        write!(f, "disabled {is_disabled}, all {has_all}, {:?}, roles {roles:?}", names(*channels))
    }
}

/// The content of a revision.
#[derive(Clone, Default)]
pub struct Body {
    /// Differs in each revision.
    pub number: u64,
    pub deleted: bool,
    pub channels: Mask,
    /// True if its channels, and those that it grants, change with each function.
    pub turns: bool,
    pub gives: Vec<(To, u32)>,
    /// The users, each with a role that the document assigns.
    pub roles: Vec<(usize, usize)>,
    /// The channel that a writer of the document must have.
    pub needs: Option<u32>,
    pub ends: Option<Instant>,
    pub has_file: bool,
    /// The user who pushed it.
    pub writer: Option<usize>,
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Body { number, deleted, channels, turns, gives, roles, needs, ends, has_file, writer } = self;
        write!(f, "{number} in {:?}", names(*channels))?;
        for (what, is_so) in [("deleted", *deleted), ("turns", *turns), ("a file", *has_file), ("ends", ends.is_some())]
        {
            write!(f, "{}", if is_so { format!(", {what}") } else { String::new() })?;
        }
        write!(f, ", gives {gives:?} {roles:?}, needs {needs:?}, by {writer:?}")
    }
}

impl Body {
    fn turned(&self, mask: Mask, function: u64) -> Mask {
        if !self.turns {
            return mask;
        }
        let by = (function % u64::from(CHANNELS)) as u32;
        let turned = mask & TURNED;
        (turned << by | turned >> (CHANNELS - by)) & TURNED | mask & !TURNED
    }

    /// Returns the channels of the revision by a function.
    pub fn channels_by(&self, function: u64) -> Mask {
        self.turned(self.channels, function)
    }
}

#[derive(Clone)]
pub struct Leaf {
    pub generation: u64,
    /// Empty until the write is acknowledged.
    pub rev: Arc<OnceLock<String>>,
    pub body: Arc<Body>,
}

impl fmt::Debug for Leaf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} ({:?})", self.generation, self.rev.get(), self.body)
    }
}

/// The leaves of a document; none: it was never written.
#[derive(Debug, Clone, Default)]
pub struct Doc {
    pub leaves: Vec<Leaf>,
}

impl Doc {
    /// Returns the winner, or several candidates if a leaf's revision id is unknown.
    pub fn winners(&self) -> Vec<&Leaf> {
        let rank = |leaf: &&Leaf| (!leaf.body.deleted, leaf.generation);
        let Some(first) = self.leaves.iter().map(|leaf| rank(&leaf)).max() else { return Vec::new() };
        let mut found: Vec<&Leaf> = self.leaves.iter().filter(|leaf| rank(leaf) == first).collect();
        if found.iter().all(|leaf| leaf.rev.get().is_some()) {
            found.sort_by_key(|leaf| leaf.rev.get());
            found.drain(..found.len() - 1);
        }
        found
    }
}

/// The rights of a user.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rights {
    pub is_enabled: bool,
    pub has_all: bool,
    pub channels: Mask,
}

impl fmt::Debug for Rights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "enabled {}, all {}, {:?}", self.is_enabled, self.has_all, names(self.channels))
    }
}

impl Rights {
    pub fn sees(&self, channels: Mask) -> bool {
        self.is_enabled && (self.has_all || self.channels & channels != 0)
    }
}

pub struct Model {
    /// The start of its records.
    began: Instant,
    pub users: Vec<Timeline<User>>,
    /// The channels that an administrator gave; `None`: the role does not exist.
    pub roles: Vec<Timeline<Option<Mask>>>,
    pub docs: Vec<Timeline<Arc<Doc>>>,
    /// The functions by which documents are routed. A function is over once the next one has routed all documents.
    pub functions: Timeline<u64>,
    pub bodies: HashMap<u64, Arc<Body>>,
    /// Bodies by document and revision.
    pub revs: HashMap<(usize, String), Arc<Body>>,
    /// The first time at which each user may have lost something.
    pub lost: Vec<Option<Instant>>,
}

/// The grants of all documents to a user and to all roles: the possible or the sure ones.
struct Gives {
    channels: Mask,
    roles: Mask,
    of_roles: [Mask; ROLES],
}

impl Model {
    pub fn new() -> Model {
        Model {
            began: Instant::now(),
            users: (0..USERS).map(|_| Timeline::new(User::default())).collect(),
            roles: (0..ROLES).map(|_| Timeline::new(None)).collect(),
            docs: (0..DOCS).map(|_| Timeline::new(Arc::default())).collect(),
            functions: Timeline::new(0),
            bodies: HashMap::new(),
            revs: HashMap::new(),
            lost: vec![None; USERS],
        }
    }

    fn functions(&self, span: Span) -> Vec<u64> {
        self.functions.possible(span).into_iter().copied().collect()
    }

    fn given(&self, user: usize, span: Span, surely: bool) -> Gives {
        let functions = self.functions(span);
        let mut all = Gives { channels: 0, roles: 0, of_roles: [0; ROLES] };
        for doc in PLAIN..DOCS {
            // The grants of each possible state of the document.
            let mut either: Option<Gives> = None;
            for state in self.docs[doc].possible(span) {
                let winners = state.winners();
                let none = winners.is_empty().then_some(None);
                for winner in winners.into_iter().map(Some).chain(none) {
                    let over = |leaf: &Leaf| leaf.body.deleted || surely && leaf.body.ends.is_some();
                    let body = winner.filter(|leaf| !over(leaf)).map(|leaf| &leaf.body);
                    for function in &functions {
                        let mut one = Gives { channels: 0, roles: 0, of_roles: [0; ROLES] };
                        if let Some(body) = body {
                            for (to, channel) in &body.gives {
                                let mask = body.turned(1 << channel, *function);
                                match to {
                                    To::User(name) if *name == user => one.channels |= mask,
                                    To::User(_) => {}
                                    To::Role(role) => one.of_roles[*role] |= mask,
                                }
                            }
                            let roles = body.roles.iter().filter(|(name, _)| *name == user);
                            one.roles |= roles.map(|(_, role)| 1 << role).fold(0, |all, one: Mask| all | one);
                        }
                        either = Some(match either {
                            Some(either) => either.and(&one, surely),
                            None => one,
                        });
                    }
                }
            }
            if let Some(either) = either {
                all = all.and(&either, false);
            }
        }
        all
    }

    fn rights(&self, user: usize, span: Span, surely: bool) -> Rights {
        let users = self.users[user].possible(span);
        let given = self.given(user, span, surely);
        let all_of = |masks: &mut dyn Iterator<Item = Mask>| {
            masks.reduce(|a, b| if surely { a & b } else { a | b }).unwrap_or_default()
        };
        let enabled = |user: &&&User| !user.is_disabled;
        let is_enabled =
            if surely { users.iter().all(|user| enabled(&user)) } else { users.iter().any(|user| enabled(&user)) };
        let users: Vec<&User> = users.into_iter().filter(|user| enabled(&user)).collect();
        let mut channels = all_of(&mut users.iter().map(|user| user.channels)) | given.channels;
        let has_all = all_of(&mut users.iter().map(|user| Mask::from(user.has_all))) == 1;
        let member = all_of(&mut users.iter().map(|user| user.roles)) | given.roles;
        for role in bits(member).map(|role| role as usize) {
            let states = self.roles[role].possible(span);
            let is_there = |state: &&Option<Mask>| state.is_some();
            if if surely { states.iter().all(is_there) } else { states.iter().any(is_there) } {
                channels |= all_of(&mut states.into_iter().flatten().copied()) | given.of_roles[role];
            }
        }
        Rights { is_enabled, has_all, channels: channels | 1 << EVERYONE }
    }

    /// Returns the rights that a user may have had at some moment of a span.
    pub fn possible(&self, user: usize, span: Span) -> Rights {
        self.rights(user, span, false)
    }

    /// Returns the rights that a user had for a whole span.
    pub fn sure(&self, user: usize, span: Span) -> Rights {
        self.rights(user, span, true)
    }

    /// Returns whether these rights may have shown a revision.
    pub fn may_show(&self, rights: Rights, doc: usize, body: &Body, span: Span) -> bool {
        let states = self.docs[doc].possible(span);
        let is_leaf = states.iter().any(|state| state.leaves.iter().any(|leaf| leaf.body.number == body.number));
        let functions = if is_leaf { self.functions(span) } else { (0..=*self.functions.newest()).collect() };
        functions.into_iter().any(|function| rights.sees(body.channels_by(function)))
    }

    /// Like [`Model::may_show`], for any revision of a document that has a file.
    pub fn may_show_a_file(&self, rights: Rights, doc: usize, span: Span) -> bool {
        let mut with_file = self.revs.iter().filter(|((of, _), body)| *of == doc && body.has_file);
        with_file.any(|(_, body)| self.may_show(rights, doc, body, span))
    }

    /// Returns whether these rights may show a revision by any function so far.
    pub fn may_be_seen(&self, rights: Rights, body: &Body) -> bool {
        (0..=*self.functions.newest()).any(|function| rights.sees(body.channels_by(function)))
    }

    /// Returns whether a document may ever have been in a channel that a user had at the time, even while disabled.
    /// Otherwise no row may tell of its loss.
    pub fn may_have_had(&self, user: usize, doc: usize) -> bool {
        let was_had = |(state, span): (&Arc<Doc>, Span)| {
            let (rights, functions) = (self.possible(user, span), self.functions(span));
            let mut channels =
                state.winners().into_iter().flat_map(|leaf| functions.iter().map(|by| leaf.body.channels_by(*by)));
            // The possible rights of a disabled user lack the user's channels.
            self.users[user].possible(span).iter().any(|user| user.is_disabled)
                || rights.has_all && !state.leaves.is_empty()
                || channels.any(|channels| channels & rights.channels != 0)
        };
        self.began.elapsed() >= KEPT || self.docs[doc].spans_of().any(was_had)
    }

    /// Returns whether these sure rights must have shown a revision, by each possible function.
    pub fn must_show(&self, rights: Rights, body: &Body, span: Span) -> bool {
        self.functions(span).into_iter().all(|function| rights.sees(body.channels_by(function)))
    }

    /// Returns the winner that a user must see; `None`: it may be missing, hidden or over.
    pub fn must_see(&self, user: usize, doc: usize, span: Span) -> Option<Vec<Arc<Body>>> {
        self.must_see_with(self.sure(user, span), doc, span)
    }

    pub fn must_see_with(&self, rights: Rights, doc: usize, span: Span) -> Option<Vec<Arc<Body>>> {
        let mut all = Vec::new();
        for state in self.docs[doc].possible(span) {
            let winners = state.winners();
            let is_seen = |leaf: &&Leaf| {
                !leaf.body.deleted && leaf.body.ends.is_none() && self.must_show(rights, &leaf.body, span)
            };
            if winners.is_empty() || !winners.iter().all(is_seen) {
                return None;
            }
            all.extend(winners.into_iter().map(|leaf| leaf.body.clone()));
        }
        Some(all)
    }

    /// Returns the recent changes, for the failure message.
    pub fn history(&self, user: usize, doc: Option<usize>) -> String {
        let now = Instant::now();
        let span = Span { from: now.checked_sub(Duration::from_secs(5)).unwrap_or(now), to: now };
        let given = self.given(user, span, false);
        let users = self.users[user].possible(span);
        let member = users.into_iter().map(|user| user.roles).fold(given.roles, |all, one| all | one);
        let mut text = format!("the user: {}\nfunctions: {}\n", self.users[user].history(), self.functions.history());
        for role in bits(member) {
            text += &format!("role {role}: {}\n", self.roles[role as usize].history());
        }
        let gives_this = |body: &Body| {
            let mut gives = body.gives.iter().map(|(to, _)| *to);
            gives.any(|to| match to {
                To::User(name) => name == user,
                To::Role(role) => member >> role & 1 == 1,
            }) || body.roles.iter().any(|(name, _)| *name == user)
        };
        for giving in PLAIN..DOCS {
            let states = self.docs[giving].possible(span);
            if states.iter().any(|state| state.leaves.iter().any(|leaf| gives_this(&leaf.body))) {
                text += &format!("{}: {}\n", doc_id(giving), self.docs[giving].history());
            }
        }
        text + &doc.map(|doc| format!("the document: {}", self.docs[doc].history())).unwrap_or_default()
    }
}

impl Gives {
    /// Returns the intersection of both grants, or their union.
    fn and(self, other: &Gives, both: bool) -> Gives {
        let join = |a: Mask, b: Mask| if both { a & b } else { a | b };
        Gives {
            channels: join(self.channels, other.channels),
            roles: join(self.roles, other.roles),
            of_roles: std::array::from_fn(|role| join(self.of_roles[role], other.of_roles[role])),
        }
    }
}
