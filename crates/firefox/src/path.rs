//! The targets of paths, and their methods.

use std::borrow::Cow;

use flatbed_syncstorage::{CollectionName, RecordId, Uid};
use hyper::Method;

use crate::route::Route;

/// The digits of a user's number.
const UID_DIGITS_MAX: usize = 10;

/// The target of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// `/`
    Front,
    /// `/__heartbeat__`
    Heartbeat,
    /// `/__lbheartbeat__`
    LoadBalancerHeartbeat,
    /// `/__version__`
    Version,
    /// `/1.0/{application}/{version}`
    Token {
        /// `sync`
        application: String,
        /// `1.5`
        version: String,
    },
    /// A path below `/1.0` without a target.
    NoToken,
    /// A part of a user's storage.
    Of(Uid, StoragePart),
    /// An unknown path.
    Nothing,
}

/// The part of a user's storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoragePart {
    /// `info/collections` and the like.
    Info(Info),
    /// The root, and `storage`.
    All,
    /// `storage/{collection}`
    Collection(CollectionName),
    /// `storage/{collection}/{id}`
    Object(CollectionName, RecordId),
}

/// The kind of information about a user's storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Info {
    /// The time of each collection's last change.
    Collections,
    /// The number of objects in each collection.
    Counts,
    /// The size of each collection in kB.
    Usage,
    /// The used kB, and the quota.
    Quota,
    /// The server's limits.
    Configuration,
}

impl Target {
    /// Parses a path without its query.
    pub(crate) fn parse(path: &str) -> Target {
        let mut parts = path.split('/');
        let (Some(""), Some(first)) = (parts.next(), parts.next()) else { return Target::Nothing };
        let rest: Vec<&str> = parts.by_ref().take(5).collect();
        match (first, rest.as_slice()) {
            ("", []) => Target::Front,
            ("__heartbeat__", []) => Target::Heartbeat,
            ("__lbheartbeat__", []) => Target::LoadBalancerHeartbeat,
            ("__version__", []) => Target::Version,
            ("1.0", [application, version]) if !application.is_empty() && !version.is_empty() => {
                Target::Token { application: (*application).to_owned(), version: (*version).to_owned() }
            }
            ("1.0", _) => Target::NoToken,
            ("1.5", [uid, rest @ ..]) => {
                uid_of(uid).zip(StoragePart::parse(rest)).map_or(Target::Nothing, |(uid, of)| Target::Of(uid, of))
            }
            _ => Target::Nothing,
        }
    }

    /// Returns the route under which it is counted.
    pub(crate) fn route(&self) -> Route {
        match self {
            Target::Front => Route::Front,
            Target::Heartbeat | Target::LoadBalancerHeartbeat | Target::Version => Route::Heartbeat,
            Target::Token { .. } => Route::Token,
            Target::Of(_, StoragePart::Info(Info::Collections)) => Route::InfoCollections,
            Target::Of(_, StoragePart::Info(Info::Configuration)) => Route::InfoConfiguration,
            Target::Of(_, StoragePart::Info(_)) => Route::Info,
            Target::Of(_, StoragePart::All) => Route::All,
            Target::Of(_, StoragePart::Collection(_)) => Route::Collection,
            Target::Of(_, StoragePart::Object(..)) => Route::Object,
            Target::NoToken | Target::Nothing => Route::Nothing,
        }
    }

    /// Returns its methods, as `Allow` lists them; `None` for an unknown path.
    pub(crate) fn methods(&self) -> Option<&'static [Method]> {
        Some(match self {
            Target::Front
            | Target::Heartbeat
            | Target::LoadBalancerHeartbeat
            | Target::Version
            | Target::Token { .. }
            | Target::Of(_, StoragePart::Info(_)) => &[Method::GET],
            Target::Of(_, StoragePart::All) => &[Method::DELETE],
            Target::Of(_, StoragePart::Collection(_)) => &[Method::DELETE, Method::GET, Method::POST],
            Target::Of(_, StoragePart::Object(..)) => &[Method::DELETE, Method::GET, Method::PUT],
            Target::NoToken | Target::Nothing => return None,
        })
    }

    /// Returns whether it is a health check. Such answers have no time.
    pub(crate) fn is_heartbeat(&self) -> bool {
        matches!(self, Target::Heartbeat | Target::LoadBalancerHeartbeat)
    }
}

impl StoragePart {
    fn parse(parts: &[&str]) -> Option<StoragePart> {
        Some(match parts {
            [] | ["storage"] => StoragePart::All,
            ["info", what] => StoragePart::Info(match *what {
                "collections" => Info::Collections,
                "collection_counts" => Info::Counts,
                "collection_usage" => Info::Usage,
                "quota" => Info::Quota,
                "configuration" => Info::Configuration,
                _ => return None,
            }),
            ["storage", collection] => StoragePart::Collection(collection_of(collection)?),
            ["storage", collection, id] => StoragePart::Object(collection_of(collection)?, id_of(id)?),
            _ => return None,
        })
    }
}

fn uid_of(text: &str) -> Option<Uid> {
    let is_number = (1..=UID_DIGITS_MAX).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_number).map(Uid)
}

fn collection_of(text: &str) -> Option<CollectionName> {
    decoded(text).and_then(|name| CollectionName::new(&name))
}

fn id_of(text: &str) -> Option<RecordId> {
    decoded(text).and_then(|id| RecordId::new(&id))
}

/// Removes a text's percent-encoding; `None` if the result is not UTF-8.
pub(crate) fn decoded(text: &str) -> Option<Cow<'_, str>> {
    if !text.contains('%') {
        return Some(Cow::Borrowed(text));
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digit = |index: usize| after.get(index).and_then(|byte| char::from(*byte).to_digit(16));
        match (first, digit(0).zip(digit(1))) {
            (b'%', Some((high, low))) => {
                bytes.push((high * 16 + low) as u8);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_paths_name() {
        let of = |of: StoragePart| Target::Of(Uid(1), of);
        let name = |name: &str| CollectionName::new(name).unwrap();
        let object = |collection: &str, id: &str| of(StoragePart::Object(name(collection), RecordId::new(id).unwrap()));
        for (path, target) in [
            ("/", Target::Front),
            ("/__heartbeat__", Target::Heartbeat),
            ("/1.5/1", of(StoragePart::All)),
            ("/1.5/0000000001/storage", of(StoragePart::All)),
            ("/1.5/1/info/quota", of(StoragePart::Info(Info::Quota))),
            ("/1.5/1/storage/a", of(StoragePart::Collection(name("a")))),
            ("/1.5/1/storage/%61", of(StoragePart::Collection(name("a")))),
            ("/1.5/1/storage/a/b%2Fc", object("a", "b/c")),
            ("/1.5/1/storage/a/%7e%20", object("a", "~ ")),
            ("/1.5/1/storage/a/100%", object("a", "100%")),
            ("/1.5/1/storage/info/collections", object("info", "collections")),
            ("/1.0/sync/1.5", Target::Token { application: "sync".into(), version: "1.5".into() }),
            ("/1.0/sync", Target::NoToken),
            ("/1.0/sync/1.5/", Target::NoToken),
            ("/1.0/", Target::NoToken),
        ] {
            assert_eq!(Target::parse(path), target, "{path}");
        }
        for path in [
            "",
            "x",
            "//",
            "/1.5",
            "/1.5/",
            "/1.5/1/",
            "/1.5/x",
            "/1.5/+1",
            "/1.5/12345678901",
            "/1.5/1/storage/",
            "/1.5/1/storage/a/",
            "/1.5/1/storage/a/b/c",
            "/1.5/1/storage/a/b/",
            "/1.5/1/storage/a%2Fb",
            "/1.5/1/storage/a b",
            "/1.5/1/storage/a/%C3%A9",
            "/1.5/1/storage/a/%0A",
            "/1.5/1/storage/a/%FF",
            "/1.5/1/info",
            "/1.5/1/info/x",
            "/1.1/1/info/collections",
        ] {
            assert_eq!(Target::parse(path), Target::Nothing, "{path}");
        }
        assert_eq!(Target::parse(&format!("/1.5/1/storage/a/{}", "x".repeat(64))), object("a", &"x".repeat(64)));
        assert_eq!(Target::parse(&format!("/1.5/1/storage/a/{}", "x".repeat(65))), Target::Nothing);
        assert_eq!(Target::parse(&format!("/1.5/1/storage/{}", "x".repeat(33))), Target::Nothing);
    }

    proptest! {
        #[test]
        fn any_path_is_taken(path in "/(1\\.[05]/)?[0-9]{0,3}(/(info|storage|%[0-9a-f]{2}|.{0,3})){0,5}") {
            if Target::parse(&path).methods().is_none() {
                prop_assert!(matches!(Target::parse(&path), Target::NoToken | Target::Nothing));
            }
        }
    }
}
