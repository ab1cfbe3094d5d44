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
