//! Parses paths and lists their methods.

use hyper::Method;

use crate::query::decode;
use crate::route::Route;

/// A parsed path.
#[derive(Debug)]
pub struct Path(pub(crate) Target);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    Welcome,
    AllDatabases,
    /// A database, or a resource in it.
    Database(String, Resource),
    /// A redirect to this location.
    Moved(String),
    /// An unknown path.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Resource {
    Root,
    AllDocs,
    BulkDocs,
    BulkGet,
    Changes,
    RevsDiff,
    EnsureFullCommit,
    Session,
    Local(String),
    /// The complete id.
    Design(String),
    View,
    Document(String),
    Attachment(String, String),
    /// Administrators only, as are all below.
    Administration(Administration),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Administration {
    Users,
    User(String),
    UserChannels(String),
    UserSessions(String),
    UserSession(String, String),
    Roles,
    Role(String),
    SessionOf(String),
    Config,
    ConfigSync,
    Resync,
    Purge,
    Flush,
    Compact,
    Vacuum,
    Repair,
    Dump(String),
    View(String),
    Raw(String),
    RawChannels(String),
    RevTree(String),
    DumpChannel(String),
    Offline,
    Online,
    DryRun,
}

/// Decodes the name of a user or role, except encoded slashes, which stay encoded.
fn principal(text: &str) -> Option<String> {
    let parts: Option<Vec<String>> = text.split("%2F").map(|part| decode(part, false)).collect();
    Some(parts?.join("%2F"))
}

impl Target {
    /// Parses an encoded path.
    pub(crate) fn parse(path: &str, is_for_administrators: bool) -> Target {
        Target::read(path, is_for_administrators).unwrap_or(Target::Unknown)
    }

    /// Parses a path, or returns `None` if it is unknown.
    fn read(path: &str, is_for_administrators: bool) -> Option<Target> {
        let rest = path.strip_prefix('/')?;
        let (first, rest) = match rest.split_once('/') {
            None => (rest, None),
            Some((first, rest)) => (first, Some(rest)),
        };
        match (first, rest) {
            ("", None) => return Some(Target::Welcome),
            ("_all_dbs", None) if is_for_administrators => return Some(Target::AllDatabases),
            _ => {}
        }
        // The server's own databases are not served here.
        let name = decode(first, false).filter(|name| name.starts_with(|first: char| first.is_ascii_alphanumeric()))?;
        let Some(rest) = rest else { return Some(Target::Moved(format!("/{first}/"))) };
        if rest.starts_with('/') {
            return None;
        }
        let moved = |to: &str| Some(Target::Moved(format!("/{first}/{to}")));
        if is_for_administrators && matches!(rest, "_user" | "_role") {
            return moved(&format!("{rest}/"));
        }
        let is_list = rest.is_empty() || (is_for_administrators && matches!(rest, "_user/" | "_role/"));
        if let (false, Some(without)) = (is_list, rest.strip_suffix('/')) {
            let is_there = Resource::read(without).is_some();
            return if is_there { moved(without) } else { None };
        }
        let of = if is_for_administrators { Administration::read(rest) } else { None };
        let of = of.map(Resource::Administration).map_or_else(|| Resource::read(rest), Some)?;
        Some(Target::Database(name, of))
    }

    pub(crate) fn route(&self) -> Route {
        match self {
            Target::Welcome => Route::Welcome,
            Target::AllDatabases => Route::AllDatabases,
            Target::Moved(_) | Target::Unknown => Route::Nothing,
            Target::Database(_, of) => match of {
                Resource::Root => Route::Database,
                Resource::AllDocs => Route::AllDocs,
                Resource::BulkDocs => Route::BulkDocs,
                Resource::BulkGet => Route::BulkGet,
                Resource::Changes => Route::Changes,
                Resource::RevsDiff => Route::RevsDiff,
                Resource::EnsureFullCommit => Route::Database,
                Resource::Session => Route::Session,
                Resource::Local(_) => Route::Local,
                Resource::Design(_) | Resource::View | Resource::Document(_) => Route::Document,
                Resource::Attachment(..) => Route::Attachment,
                Resource::Administration(of) => match of {
                    Administration::Users
                    | Administration::User(_)
                    | Administration::UserChannels(_)
                    | Administration::Roles
                    | Administration::Role(_) => Route::Principal,
                    Administration::UserSessions(_)
                    | Administration::UserSession(..)
                    | Administration::SessionOf(_) => Route::Session,
                    _ => Route::Administration,
                },
            },
        }
    }

    /// Returns whether a request with this method only reads. A `POST` may be a query.
    pub(crate) fn only_reads(&self, method: &Method) -> bool {
        let is_read = matches!(
            self,
            Target::Database(_, Resource::Changes | Resource::AllDocs | Resource::BulkGet | Resource::RevsDiff)
        );
        method.is_safe() || (is_read && *method == Method::POST)
    }

    /// Returns the value of the `allow` header; `None` for an unknown path.
    pub(crate) fn methods(&self, is_for_administrators: bool) -> Option<&'static str> {
        Some(match self {
            Target::Welcome | Target::AllDatabases => "GET, HEAD",
            Target::Moved(_) | Target::Unknown => return None,
            Target::Database(_, of) => match of {
                Resource::Root if is_for_administrators => "GET, HEAD, POST, PUT, DELETE",
                Resource::Root => "GET, HEAD, POST, PUT",
                Resource::AllDocs | Resource::Changes => "GET, HEAD, POST",
                Resource::BulkDocs | Resource::BulkGet | Resource::RevsDiff | Resource::EnsureFullCommit => "POST",
                Resource::Session if is_for_administrators => "GET, HEAD, POST",
                Resource::Session => "GET, HEAD, POST, DELETE",
                Resource::Local(_) | Resource::Design(_) | Resource::Document(_) => "GET, HEAD, PUT, DELETE",
                Resource::View => "GET, HEAD",
                Resource::Attachment(..) => "GET, HEAD, PUT",
                Resource::Administration(of) => match of {
                    Administration::Users | Administration::Roles => "GET, HEAD, POST",
                    Administration::User(_) | Administration::Role(_) | Administration::ConfigSync => {
                        "GET, HEAD, PUT, DELETE"
                    }
                    Administration::UserChannels(_)
                    | Administration::RawChannels(_)
                    | Administration::Raw(_)
                    | Administration::RevTree(_)
                    | Administration::DumpChannel(_)
                    | Administration::Dump(_)
                    | Administration::View(_) => "GET, HEAD",
                    Administration::UserSessions(_) => "DELETE",
                    Administration::UserSession(..) => "DELETE",
                    Administration::SessionOf(_) => "GET, HEAD, DELETE",
                    Administration::Config => "GET, HEAD, PUT",
                    Administration::Resync => "GET, HEAD, POST",
                    Administration::Purge
                    | Administration::Flush
                    | Administration::Compact
                    | Administration::Vacuum
                    | Administration::Repair
                    | Administration::Offline
                    | Administration::Online
                    | Administration::DryRun => "POST",
                },
            },
        })
    }
}

impl Resource {
    fn read(rest: &str) -> Option<Resource> {
        Some(match rest {
            "" => Resource::Root,
            "_all_docs" => Resource::AllDocs,
            "_bulk_docs" => Resource::BulkDocs,
            "_bulk_get" => Resource::BulkGet,
            "_changes" => Resource::Changes,
            "_revs_diff" => Resource::RevsDiff,
            "_ensure_full_commit" => Resource::EnsureFullCommit,
            "_session" => Resource::Session,
            _ => {
                if let Some(id) = rest.strip_prefix("_local/") {
                    return Some(Resource::Local(decode(id, false)?));
                }
                if let Some(name) = rest.strip_prefix("_design/") {
                    return Some(match name.split_once('/') {
                        None => Resource::Design(format!("_design/{}", decode(name, false)?)),
                        Some((_, rest)) if rest.starts_with("_view/") => Resource::View,
                        Some(_) => return None,
                    });
                }
                let (id, attachment) = match rest.split_once('/') {
                    None => (rest, None),
                    Some((id, name)) => (id, Some(name)),
                };
                let id = decode(id, false).filter(|id| !id.is_empty() && !id.starts_with('_'))?;
                match attachment {
                    None => Resource::Document(id),
                    Some(name) => Resource::Attachment(id, decode(name, false)?),
                }
            }
        })
    }
}

impl Administration {
    fn read(rest: &str) -> Option<Administration> {
        let (first, more) = rest.split_once('/').map_or((rest, None), |(first, more)| (first, Some(more)));
        let Some(more) = more else {
            return Some(match first {
                "_config" => Administration::Config,
                "_resync" => Administration::Resync,
                "_purge" => Administration::Purge,
                "_flush" => Administration::Flush,
                "_compact" => Administration::Compact,
                "_vacuum" => Administration::Vacuum,
                "_repair" => Administration::Repair,
                "_offline" => Administration::Offline,
                "_online" => Administration::Online,
                "_sync" => Administration::DryRun,
                _ => return None,
            });
        };
        let below = more.split_once('/').map_or((more, None), |(first, more)| (first, Some(more)));
        Some(match (first, below) {
            ("_config", ("sync", None)) => Administration::ConfigSync,
            ("_user", ("", None)) => Administration::Users,
            ("_role", ("", None)) => Administration::Roles,
            ("_user", (name, None)) => Administration::User(principal(name)?),
            ("_user", (name, Some("_channels"))) => Administration::UserChannels(principal(name)?),
            ("_user", (name, Some("_session"))) => Administration::UserSessions(principal(name)?),
            ("_user", (name, Some(rest))) => {
                let id = rest.strip_prefix("_session/").filter(|id| !id.contains('/'))?;
                Administration::UserSession(principal(name)?, decode(id, false)?)
            }
            ("_role", (name, None)) => Administration::Role(principal(name)?),
            ("_session", (id, None)) => Administration::SessionOf(decode(id, false)?),
            ("_raw", (id, None)) => Administration::Raw(decode(id, false)?),
            ("_raw", (id, Some("_channels"))) => Administration::RawChannels(decode(id, false)?),
            ("_revtree", (id, None)) => Administration::RevTree(decode(id, false)?),
            ("_dumpchannel", (name, None)) => Administration::DumpChannel(decode(name, false)?),
            ("_dump", (name, None)) => Administration::Dump(decode(name, false)?),
            ("_view", (name, None)) => Administration::View(decode(name, false)?),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(path: &str, is_for_administrators: bool) -> Option<Resource> {
        match Target::parse(path, is_for_administrators) {
            Target::Database(name, of) if name == "db" => Some(of),
            _ => None,
        }
    }

    #[test]
    fn queries_change_nothing() {
        let reads = |path: &str, method: &Method| Target::parse(path, false).only_reads(method);
        for path in ["/db/_changes", "/db/_all_docs", "/db/_bulk_get", "/db/_revs_diff"] {
            assert!(reads(path, &Method::POST) && !reads(path, &Method::PUT), "{path}");
        }
        assert!(
            !reads("/db/_bulk_docs", &Method::POST) && !reads("/db/", &Method::POST) && reads("/db/", &Method::GET)
        );
    }

    #[test]
    fn paths() {
        let id = |id: &str| Some(Resource::Document(id.to_owned()));
        for (path, wanted) in [
            ("/db/", Some(Resource::Root)),
            ("/db/a", id("a")),
            ("/db/with%2Fslash", id("with/slash")),
            ("/db/plus+sign", id("plus+sign")),
            ("/db/a/b/c", Some(Resource::Attachment("a".to_owned(), "b/c".to_owned()))),
            ("/db/_local/x", Some(Resource::Local("x".to_owned()))),
            ("/db/_design/x", Some(Resource::Design("_design/x".to_owned()))),
            ("/db/_design/x/_view/y", Some(Resource::View)),
            ("/db/_changes", Some(Resource::Changes)),
            ("/db/_f", None),
            ("/db/%5Ff", None),
            ("/db//a", None),
            ("/db/%ff", None),
            ("//db/", None),
            ("/db/_nothing/", None),
            ("/_users/", None),
            ("/%5Fusers/a", None),
        ] {
            assert_eq!(of(path, false), wanted, "{path}");
            assert_eq!(of(path, true), wanted, "{path}");
        }
        for path in
            ["/db/_user/", "/db/_user/a", "/db/_role/a", "/db/_raw/a", "/db/_config", "/db/_resync", "/db/_purge"]
        {
            assert_eq!(of(path, false), None, "{path}");
            assert!(matches!(of(path, true), Some(Resource::Administration(_))), "{path}");
        }
        let user = |name: &str| Some(Resource::Administration(Administration::User(name.to_owned())));
        assert_eq!(of("/db/_user/a%20b", true), user("a b"));
        assert_eq!(of("/db/_user/a%2Fb", true), user("a%2Fb"));
    }

    #[test]
    fn what_is_elsewhere() {
        let moved = |path: &str| match Target::parse(path, true) {
            Target::Moved(to) => Some(to),
            _ => None,
        };
        for (path, to) in [("/db", "/db/"), ("/%64b", "/%64b/"), ("/db/a/", "/db/a"), ("/db/_user", "/db/_user/")] {
            assert_eq!(moved(path).as_deref(), Some(to));
        }
        // Redirects never leave this server.
        for path in ["//evil.example", "//evil.example/", "/\\evil.example", "/%2Fevil.example", "/%5Cevil.example"] {
            assert_eq!(moved(path), None, "{path}");
        }
    }

    proptest! {
        #[test]
        fn any_path_is_something_or_nothing(path in "(/|_[a-z]{1,8}|db|%[0-9a-gA-F]{0,2}|\\PC){0,12}", admin: bool) {
            let target = Target::parse(&path, admin);
            target.route();
            target.methods(admin);
            if let Target::Moved(to) = target {
                // `//` or `/\` would start a host name.
                prop_assert!(to.starts_with('/') && !to[1..].starts_with(['/', '\\']), "{to}");
                prop_assert_ne!(Target::parse(&to, admin).route(), Route::Nothing, "{}", to);
            }
        }
    }
}
