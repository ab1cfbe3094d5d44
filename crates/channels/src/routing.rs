//! The output of a sync function for a revision.

use std::collections::BTreeSet;

use flatbed_flatten::json::Value;

use crate::name::{IllegalChannel, check_channel};

/// The most channels, and the most grants, of a revision. Each takes at least one row.
pub const ROUTING_ENTRIES_MAX: usize = 1_000;

/// The most bytes of keys and values for a revision's channels and grants.
pub const ROUTING_ROWS_BYTES_MAX: usize = 100_000;

/// The bytes of a row beside the names in it: the prefix of its key, a sequence, a revision, flags.
const ROW_BYTES: usize = 80;

/// The rows of a channel: its entry in the order of commits, and the one by the document's id.
const ROWS_OF_CHANNEL: usize = 2;

/// The rows of a grant: by grantee, by document, and the further row of the first of several.
const ROWS_OF_GRANT: usize = 3;

/// The channels of a document and the grants that it makes while this revision wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Routing {
    /// The channels of the document.
    pub channels: BTreeSet<String>,
    /// The grants.
    pub grants: BTreeSet<Grant>,
    /// The document's expiry, in seconds of Unix time.
    pub expires_at: Option<u64>,
}

/// A grant that a document makes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Grant {
    /// The grantee.
    pub to: Grantee,
    /// The granted channel or role.
    pub what: GrantedItem,
}

/// The grantee, which need not exist.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Grantee {
    /// A user by name; the guest's is empty.
    User(String),
    /// A role, without its prefix.
    Role(String),
}

/// A granted channel or role.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GrantedItem {
    /// A channel.
    Channel(String),
    /// A role, without its prefix. Only users get roles.
    Role(String),
}

/// The revision exceeds the limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the revision has {channels} channels and {grants} grants, {rows_bytes} bytes of rows; {ROUTING_ENTRIES_MAX} of \
     {ROUTING_ROWS_BYTES_MAX} bytes are allowed"
)]
pub struct RoutingTooLarge {
    /// The number of its channels.
    pub channels: usize,
    /// The number of its grants.
    pub grants: usize,
    /// The bytes of their rows.
    pub rows_bytes: usize,
}

impl Grantee {
    fn name(&self) -> &str {
        let (Grantee::User(name) | Grantee::Role(name)) = self;
        name
    }
}

impl GrantedItem {
    fn name(&self) -> &str {
        let (GrantedItem::Channel(name) | GrantedItem::Role(name)) = self;
        name
    }
}

impl Routing {
    /// Returns the routing of a document in a database without a function: its member `channels`, a string or an
    /// array. Other items than strings are ignored. `*` is kept beside others.
    ///
    /// # Errors
    /// [`IllegalChannel`], an error of the client here.
    pub fn without_function(body: &Value<'_>) -> Result<Routing, IllegalChannel> {
        let mut routing = Routing::default();
        match body.get("channels") {
            Some(Value::String(name)) => routing.enter(name)?,
            Some(Value::Array(items)) => {
                items.iter().filter_map(Value::as_str).try_for_each(|name| routing.enter(name))?
            }
            _ => {}
        }
        Ok(routing)
    }

    fn enter(&mut self, name: &str) -> Result<(), IllegalChannel> {
        check_channel(name)?;
        self.channels.insert(name.to_owned());
        Ok(())
    }

    /// Returns the bytes of keys and values of the rows, for a document with an id of this length.
    pub fn rows_bytes(&self, id_bytes: usize) -> usize {
        let of_channel = |name: &String| ROWS_OF_CHANNEL * (name.len() + id_bytes + ROW_BYTES);
        let of_grant =
            |grant: &Grant| ROWS_OF_GRANT * (grant.to.name().len() + grant.what.name().len() + id_bytes + ROW_BYTES);
        self.channels.iter().map(of_channel).sum::<usize>() + self.grants.iter().map(of_grant).sum::<usize>()
    }

    /// Checks the limits.
    ///
    /// # Errors
    /// [`RoutingTooLarge`], with the counts.
    pub fn check(&self, id_bytes: usize) -> Result<(), RoutingTooLarge> {
        let (channels, grants) = (self.channels.len(), self.grants.len());
        let rows_bytes = self.rows_bytes(id_bytes);
        if channels + grants > ROUTING_ENTRIES_MAX || rows_bytes > ROUTING_ROWS_BYTES_MAX {
            return Err(RoutingTooLarge { channels, grants, rows_bytes });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;

    fn without(body: &str) -> Result<Vec<String>, String> {
        let body = parse(body.as_bytes(), &Limits::default()).unwrap();
        let routing = Routing::without_function(&body).map_err(|error| error.to_string())?;
        assert!(routing.grants.is_empty() && routing.expires_at.is_none());
        Ok(routing.channels.into_iter().collect())
    }

    #[test]
    fn without_a_function_channels_are_named_in_the_document() {
        for (body, channels) in [
            (r#"{"channels":"A"}"#, &["A"][..]),
            (r#"{"channels":["A","B","A"]}"#, &["A", "B"]),
            (r#"{"channels":["A",5,null,true,{"x":1},["B"]]}"#, &["A"]),
            (r#"{"channels":["*","A"]}"#, &["*", "A"]),
            (r#"{"channels":null}"#, &[]),
            (r#"{"channels":5}"#, &[]),
            (r#"{"channels":{"A":true}}"#, &[]),
            ("{}", &[]),
        ] {
            assert_eq!(without(body).unwrap(), channels, "{body}");
        }
        assert_eq!(without(r#"{"channels":""}"#).unwrap_err(), r#"Illegal channel name """#);
        assert_eq!(without(r#"{"channels":["a","b,c"]}"#).unwrap_err(), r#"Illegal channel name "b,c""#);
    }

    #[test]
    fn what_is_kept_is_bounded_by_number_and_bytes() {
        let channels = |count: usize, length: usize| Routing {
            channels: (0..count).map(|at| format!("{at:0length$}")).collect(),
            ..Routing::default()
        };
        // 2 rows of 20 + 0 + 80 bytes.
        assert_eq!(channels(500, 20).rows_bytes(0), 100_000);
        assert_eq!(channels(500, 20).check(0), Ok(()));
        assert_eq!(channels(500, 20).check(1), Err(RoutingTooLarge { channels: 500, grants: 0, rows_bytes: 101_000 }),);
        let grant = |at: usize| Grant {
            to: if at < 200 { Grantee::User("u".into()) } else { Grantee::Role("u".into()) },
            what: if at % 4 < 2 {
                GrantedItem::Channel(format!("{at:018}"))
            } else {
                GrantedItem::Role(format!("{at:018}"))
            },
        };
        let grants = |count: usize| Routing { grants: (0..count).map(grant).collect(), ..Routing::default() };
        assert_eq!(grants(2).rows_bytes(1), 2 * 3 * 100);
        let error = grants(400).check(1).unwrap_err();
        let said = "the revision has 0 channels and 400 grants, 120000 bytes of rows; 1000 of 100000 bytes are allowed";
        assert_eq!(error.to_string(), said);
    }
}
