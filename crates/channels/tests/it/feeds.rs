//! Feeds as recorded with a Sync Gateway, with its sequences renamed.

use std::collections::{BTreeMap, BTreeSet};

use flatbed_channels::{
    DirectGrant, DocumentState, FeedRow, FeedScope, GrantedItem, HeldChannels, Periods, Position, RoleRows, RowKind,
    Stamp,
};
use flatbed_flatten::json::{Limits, Value, parse};

/// A principal: whether it is a role, and the name.
type PrincipalKey = (bool, String);

#[derive(Default)]
struct Database {
    seq: u64,
    docs: BTreeMap<String, DocumentState>,
    /// The sources of each grant: an administrator (an empty id) or documents.
    ways: BTreeMap<(PrincipalKey, GrantedItem), BTreeSet<String>>,
    periods: BTreeMap<(PrincipalKey, GrantedItem), Periods>,
    roles: BTreeMap<String, Periods>,
    users: BTreeMap<String, Stamp>,
}

fn texts(of: &Value<'_>) -> Vec<String> {
    match of {
        Value::Array(items) => items.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    }
}

impl Database {
    fn now(&self) -> Stamp {
        Stamp::of(self.seq)
    }

    /// Sets all grants of one source, as of now.
    fn gives(&mut self, source: &str, is_of: impl Fn(&PrincipalKey) -> bool, gives: &[(PrincipalKey, GrantedItem)]) {
        let known: Vec<_> = self.ways.keys().cloned().chain(gives.iter().cloned()).collect();
        for key in known.into_iter().filter(|(who, _)| is_of(who)) {
            let ways = self.ways.entry(key.clone()).or_default();
            if gives.contains(&key) {
                ways.insert(source.to_owned())
            } else {
                ways.remove(source)
            };
            let is_given = !ways.is_empty();
            let (seq, periods) = (Stamp::of(self.seq), self.periods.entry(key).or_default());
            let before = std::mem::take(periods);
            *periods = if is_given { before.given(seq) } else { before.taken(seq) };
        }
    }

    fn step(&mut self, step: &Value<'_>) {
        self.seq += 1;
        let text = |member: &str| step.get(member).and_then(Value::as_str).map(str::to_owned);
        let list = |member: &str| step.get(member).map(texts).unwrap_or_default();
        if let Some(name) = text("user") {
            let who = (false, name.clone());
            let channels = list("channels").into_iter().map(GrantedItem::Channel);
            let given = channels.chain(list("roles").into_iter().map(GrantedItem::Role));
            let given: Vec<_> = given.map(|what| (who.clone(), what)).collect();
            self.gives("", |other| *other == who, &given);
            self.users.insert(name, self.now());
        } else if let Some(name) = text("role") {
            let who = (true, name.clone());
            let given: Vec<_> =
                list("channels").into_iter().map(|name| (who.clone(), GrantedItem::Channel(name))).collect();
            self.gives("", |other| *other == who, &given);
            let now = self.now();
            let exists = self.roles.entry(name).or_default();
            let before = std::mem::take(exists);
            *exists = if step.get("channels") == Some(&Value::Null) { before.taken(now) } else { before.given(now) };
        } else if let Some(id) = text("purged") {
            self.docs.remove(&id);
            self.gives(&id, |_| true, &[]);
        } else if let Some(id) = text("id") {
            let channels = list("channels").into_iter().collect();
            let deleted = step.get("deleted") == Some(&Value::Bool(true));
            let (rev, before) = (text("rev").unwrap(), self.docs.get(&id));
            let (state, _) = DocumentState::changed(before, self.now(), rev, deleted, channels);
            self.docs.insert(id.clone(), state);
            let Some(Value::Array(grants)) = step.get("grants") else { return };
            let given = grants.iter().map(texts).map(|grant| {
                let who = match grant[0].strip_prefix("role:") {
                    Some(role) => (true, role.to_owned()),
                    None => (false, grant[0].clone()),
                };
                (who, GrantedItem::Channel(grant[1].clone()))
            });
            let given: Vec<_> = given.collect();
            self.gives(&id, |_| true, &given);
        }
    }

    fn held(&self, name: &str) -> HeldChannels {
        let of = |who: PrincipalKey| {
            self.periods.iter().filter(move |((other, _), _)| *other == who).map(|((_, what), periods)| (what, periods))
        };
        let rows = of((false, name.to_owned()))
            .map(|(what, periods)| DirectGrant { what: what.clone(), periods: periods.clone() });
        HeldChannels::of(rows, |role| {
            let channels = of((true, role.to_owned())).filter_map(|(what, periods)| match what {
                GrantedItem::Channel(name) => Some((name.clone(), periods.clone())),
                GrantedItem::Role(_) => None,
            });
            Some(RoleRows { exists: self.roles.get(role)?.clone(), channels: channels.collect() })
        })
    }

    /// The rows of a feed; the last one is its new position.
    fn feed(&self, asked: &Value<'_>, since: Position) -> Vec<FeedRow> {
        let name = asked.get("feed").and_then(Value::as_str).unwrap();
        let channels = asked.get("channels").map(texts).filter(|channels| !channels.is_empty());
        let channels = channels.as_ref().map(|channels| channels.iter().map(String::as_str));
        let (held, user) = match channels {
            Some(channels) if name == "admin" => (HeldChannels::since_ever(channels), None),
            Some(channels) => (self.held(name).only(channels), self.users.get(name)),
            None => (self.held(name), self.users.get(name)),
        };
        let active_only = asked.get("active_only") == Some(&Value::Bool(true));
        let scope = FeedScope { held, revocations: false, user: user.copied(), active_only };
        let mut rows: Vec<_> = self.docs.iter().filter_map(|(doc, state)| scope.row_of(doc, state)).collect();
        rows.extend(scope.user.map(|at| FeedRow {
            position: Position::at(at),
            kind: RowKind::User,
            doc: format!("_user/{name}"),
            rev: String::new(),
            deleted: false,
            removed: Vec::new(),
        }));
        rows.retain(|row| row.position > since);
        rows.sort_by_key(|row| row.position);
        let limit = match asked.get("limit") {
            Some(Value::Number(limit)) => limit.parse().unwrap(),
            _ => 0,
        };
        if limit > 0 {
            rows.truncate(limit);
        }
        rows
    }
}

#[derive(Default)]
struct Names(BTreeMap<String, Stamp>);

impl Names {
    fn position(&self, text: &str) -> Option<Position> {
        Position::parse(text, |name| if name == "0" { Some(Stamp::ZERO) } else { self.0.get(name).copied() })
    }

    /// Records the name of a sequence; returns false if it contradicts an earlier one.
    fn learn(&mut self, text: &str, position: Position) -> bool {
        let names: Vec<&str> = text.split(':').collect();
        let stamps: Vec<Stamp> = [position.at].into_iter().chain(position.of).collect();
        let mut pairs = names.iter().zip(&stamps);
        names.len() == stamps.len()
            && pairs.all(|(name, stamp)| {
                let is_new = !self.0.contains_key(*name) && !self.0.values().any(|known| known == stamp);
                if is_new {
                    self.0.insert((*name).to_owned(), *stamp);
                }
                self.0.get(*name) == Some(stamp)
            })
    }

    fn shown(&self, row: &FeedRow) -> String {
        let name = |stamp: Stamp| {
            let found = self.0.iter().find(|(_, known)| **known == stamp);
            found.map_or_else(|| format!("{stamp:?}"), |(name, _)| name.clone())
        };
        let flags = if row.deleted { " deleted" } else { "" };
        let removed = if row.removed.is_empty() { String::new() } else { format!(" -{}", row.removed.join(" -")) };
        format!("{} {}{flags}{removed}", row.position.text(name), row.doc)
    }
}

fn is_of(row: &FeedRow, recorded: &Value<'_>) -> bool {
    let text = |member: &str| recorded.get(member).and_then(Value::as_str);
    text("id") == Some(&row.doc) && text("changes").unwrap_or_default() == row.rev
}

fn is_as_recorded(row: &FeedRow, recorded: &Value<'_>, names: &mut Names) -> bool {
    let text = |member: &str| recorded.get(member).and_then(Value::as_str);
    is_of(row, recorded)
        && (recorded.get("deleted") == Some(&Value::Bool(true))) == row.deleted
        && recorded.get("removed").map(texts).unwrap_or_default() == row.removed
        && names.learn(text("seq").unwrap_or_default(), row.position)
}

/// Rows that differ from the recorded ones on purpose: the scenario, the number of the feed, the rows.
/// design/channels.md has the reasons.
const DIFFERENT: &[(&str, usize, &[&str])] = &[
    // A document in `*`, for a user with `*`: once.
    (
        "default sync function: which channel names are valid",
        1,
        &["s1 _user/alice", "s2 a", "s3 c", "s4 d", "s5 e", "s6 f", "s7 g", "s8 h", "s9 i"],
    ),
    ("a user with the * channel sees everything", 1, &["s1 _user/all", "s2 a", "s3 none", "s4 star"]),
    ("a user with the * channel sees everything", 3, &["s1 _user/all", "s2 a", "s3 none", "s4 star"]),
    // A document that has left a channel and has changed since: once.
    ("a document that leaves a channel", 9, &["s4 _user/both", "s5 d"]),
    ("the same document visible through a user's channel and through a role's", 3, &["s4 d -B"]),
    ("the same document visible through a user's channel and through a role's", 4, &["s1 _user/alice", "s4 d -B"]),
    // A document that was visible before its other channel was granted: not again.
    ("backfill: a channel given later", 2, &["s4:s5 b1", "s4:s6 b2", "s4 _user/alice"]),
    ("backfill: a channel given later", 4, &["s2 a1", "s3 b3", "s4:s5 b1", "s4:s6 b2", "s4 _user/alice"]),
    // The first of two grants is revoked: nothing is replayed.
    ("the same channel from two documents", 2, &[]),
    ("the same channel from two documents", 3, &["s1 _user/alice", "s2:s3 x"]),
    ("a channel given twice: by the administrator", 2, &["s4 _user/alice"]),
];

#[test]
fn feeds_are_as_recorded() {
    let (mut count, mut different) = (0, BTreeSet::new());
    for line in include_str!("../../../../tests/sync-gateway/feeds.jsonl").lines() {
        let scenario = parse(line.as_bytes(), &Limits::default()).unwrap();
        let (Some(Value::String(name)), Some(Value::Array(steps))) = (scenario.get("name"), scenario.get("steps"))
        else {
            panic!("a scenario")
        };
        let (mut database, mut names, mut number) = (Database::default(), Names::default(), 0);
        for step in steps {
            if step.get("feed").is_none() {
                database.step(step);
                continue;
            }
            (count, number) = (count + 1, number + 1);
            let text = |member: &str| step.get(member).and_then(Value::as_str).unwrap();
            let since = names.position(text("since")).expect("a sequence that was shown");
            let rows = database.feed(step, since);
            let Some(Value::Array(recorded)) = step.get("rows") else { panic!("rows") };
            let before: BTreeMap<_, _> = names.0.clone();
            let is_same = rows.len() == recorded.len()
                && rows.iter().zip(recorded).all(|(row, recorded)| is_as_recorded(row, recorded, &mut names));
            if is_same {
                continue;
            }
            names.0 = before;
            // Equal rows teach the names.
            for row in &rows {
                let same = recorded.iter().find(|recorded| is_of(row, recorded));
                if let Some(seq) = same.and_then(|recorded| recorded.get("seq")).and_then(Value::as_str) {
                    names.learn(seq, row.position);
                }
            }
            let shown: Vec<String> = rows.iter().map(|row| names.shown(row)).collect();
            match DIFFERENT.iter().find(|(prefix, of, _)| name.starts_with(prefix) && *of == number) {
                Some((prefix, of, expected)) => {
                    assert_eq!(shown, *expected, "{name}, {number}");
                    different.insert((*prefix, *of));
                }
                None => panic!("{name}, {number}: {shown:?} for {recorded:?}"),
            }
        }
    }
    assert_eq!(count, 153);
    assert_eq!(different.len(), DIFFERENT.len());
}
