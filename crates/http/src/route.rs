//! What requests are for, as far as they are told apart in metrics and traces: never by a database's or a document's name.

use hyper::Method;

flatbed_metrics::labels! {
    /// A family of CouchDB's paths.
    pub(crate) enum Route: "route" {
        Root = "/",
        Up = "/_up",
        Session = "/_session",
        Uuids = "/_uuids",
        AllDbs = "/_all_dbs",
        DbsInfo = "/_dbs_info",
        DbUpdates = "/_db_updates",
        ActiveTasks = "/_active_tasks",
        Replicate = "/_replicate",
        Scheduler = "/_scheduler",
        Metrics = "/metrics",
        Node = "/_node",
        Server = "/_other",
        Database = "/{db}",
        Document = "/{db}/{docid}",
        Attachment = "/{db}/{docid}/{attachment}",
        DesignDocument = "/{db}/_design/{ddoc}",
        DesignAttachment = "/{db}/_design/{ddoc}/{attachment}",
        DesignFunction = "/{db}/_design/{ddoc}/_other",
        View = "/{db}/_design/{ddoc}/_view/{view}",
        LocalDocument = "/{db}/_local/{docid}",
        LocalDocs = "/{db}/_local_docs",
        AllDocs = "/{db}/_all_docs",
        DesignDocs = "/{db}/_design_docs",
        BulkDocs = "/{db}/_bulk_docs",
        BulkGet = "/{db}/_bulk_get",
        Changes = "/{db}/_changes",
        Find = "/{db}/_find",
        Index = "/{db}/_index",
        Explain = "/{db}/_explain",
        RevsDiff = "/{db}/_revs_diff",
        MissingRevs = "/{db}/_missing_revs",
        RevsLimit = "/{db}/_revs_limit",
        EnsureFullCommit = "/{db}/_ensure_full_commit",
        Compact = "/{db}/_compact",
        Purge = "/{db}/_purge",
        PurgedInfosLimit = "/{db}/_purged_infos_limit",
        Security = "/{db}/_security",
        DatabaseOther = "/{db}/_other",
        Preflight = "preflight",
        Invalid = "invalid",
    }
}

flatbed_metrics::labels! {
    /// A request's method; those that CouchDB does not know are one.
    pub(crate) enum Verb: "method" {
        Get = "GET",
        Head = "HEAD",
        Post = "POST",
        Put = "PUT",
        Delete = "DELETE",
        Copy = "COPY",
        Options = "OPTIONS",
        Other = "other",
    }
}

impl From<&Method> for Verb {
    fn from(method: &Method) -> Verb {
        match method.as_str() {
            "GET" => Verb::Get,
            "HEAD" => Verb::Head,
            "POST" => Verb::Post,
            "PUT" => Verb::Put,
            "DELETE" => Verb::Delete,
            "COPY" => Verb::Copy,
            "OPTIONS" => Verb::Options,
            _ => Verb::Other,
        }
    }
}

impl Route {
    /// That of a path's decoded segments.
    pub(crate) fn of(segments: &[String]) -> Route {
        let names: Vec<&str> = segments.iter().take(4).map(String::as_str).collect();
        match names[..] {
            [] => Route::Root,
            ["_up"] => Route::Up,
            ["_session"] => Route::Session,
            ["_uuids"] => Route::Uuids,
            ["_all_dbs"] => Route::AllDbs,
            ["_dbs_info"] => Route::DbsInfo,
            ["_db_updates"] => Route::DbUpdates,
            ["_active_tasks"] => Route::ActiveTasks,
            ["_replicate"] => Route::Replicate,
            ["_scheduler", ..] => Route::Scheduler,
            ["metrics"] | ["_node", _, "_prometheus"] => Route::Metrics,
            ["_node", ..] => Route::Node,
            [name, ..] if name.starts_with('_') && !DATABASES_OF_THE_SYSTEM.contains(&name) => Route::Server,
            [_] => Route::Database,
            [_, "_local", ..] => Route::LocalDocument,
            [_, "_design", _] => Route::DesignDocument,
            [_, "_design", _, "_view", ..] => Route::View,
            [_, "_design", _, name, ..] if name.starts_with('_') => Route::DesignFunction,
            [_, "_design", _, ..] => Route::DesignAttachment,
            [_, name, ref rest @ ..] if name.starts_with('_') => match (name.split('/').next(), rest) {
                // The second slash may come encoded.
                (Some("_design"), []) if name.contains('/') => Route::DesignDocument,
                (Some("_design"), _) if name.contains('/') => Route::DesignAttachment,
                (Some("_local"), _) if name.contains('/') => Route::LocalDocument,
                _ => Route::of_database(name),
            },
            [_, _] => Route::Document,
            _ => Route::Attachment,
        }
    }

    fn of_database(name: &str) -> Route {
        match name {
            "_local_docs" => Route::LocalDocs,
            "_all_docs" => Route::AllDocs,
            "_design_docs" => Route::DesignDocs,
            "_bulk_docs" => Route::BulkDocs,
            "_bulk_get" => Route::BulkGet,
            "_changes" => Route::Changes,
            "_find" => Route::Find,
            "_index" => Route::Index,
            "_explain" => Route::Explain,
            "_revs_diff" => Route::RevsDiff,
            "_missing_revs" => Route::MissingRevs,
            "_revs_limit" => Route::RevsLimit,
            "_ensure_full_commit" => Route::EnsureFullCommit,
            "_compact" => Route::Compact,
            "_purge" => Route::Purge,
            "_purged_infos_limit" => Route::PurgedInfosLimit,
            "_security" => Route::Security,
            _ => Route::DatabaseOther,
        }
    }
}

/// Names that begin with an underscore and are databases all the same.
pub(crate) const DATABASES_OF_THE_SYSTEM: [&str; 3] = ["_users", "_replicator", "_global_changes"];

#[cfg(test)]
mod tests {
    use flatbed_metrics::Label;

    use super::*;

    #[test]
    fn paths_and_their_routes() {
        for (path, route) in [
            ("", "/"),
            ("_up", "/_up"),
            ("_node _local _prometheus", "/metrics"),
            ("_node _local _stats", "/_node"),
            ("_replicator", "/{db}"),
            ("_users org.couchdb.user:a", "/{db}/{docid}"),
            ("_nothing", "/_other"),
            ("db", "/{db}"),
            ("db d", "/{db}/{docid}"),
            ("db d a b", "/{db}/{docid}/{attachment}"),
            ("db _design d", "/{db}/_design/{ddoc}"),
            ("db _design/d", "/{db}/_design/{ddoc}"),
            ("db _design/d a", "/{db}/_design/{ddoc}/{attachment}"),
            ("db _design d a b c", "/{db}/_design/{ddoc}/{attachment}"),
            ("db _design d _view v", "/{db}/_design/{ddoc}/_view/{view}"),
            ("db _design d _update u", "/{db}/_design/{ddoc}/_other"),
            ("db _local d", "/{db}/_local/{docid}"),
            ("db _local/d", "/{db}/_local/{docid}"),
            ("db _local_docs", "/{db}/_local_docs"),
            ("db _all_docs queries", "/{db}/_all_docs"),
            ("db _nothing", "/{db}/_other"),
            ("db _design", "/{db}/_other"),
        ] {
            let segments: Vec<String> = path.split_whitespace().map(str::to_owned).collect();
            assert_eq!(Route::of(&segments).value(), route, "{path}");
        }
        assert!(Route::ALL.iter().enumerate().all(|(at, route)| route.index() == at));
    }
}
