//! Labels of requests in metrics and traces, without names of databases or documents.

flatbed_metrics::labels! {
    /// A family of CouchDB's paths. Most values are the path.
    // The value of each variant is its path: a doc comment would repeat it.
    #[allow(missing_docs)]
    pub enum Route: "route" {
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
        /// Paths beneath `/_worker/_api`.
        Worker = "/_worker",
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
        DesignInfo = "/{db}/_design/{ddoc}/_info",
        ViewCleanup = "/{db}/_view_cleanup",
        LocalDocument = "/{db}/_local/{docid}",
        LocalDocs = "/{db}/_local_docs",
        AllDocs = "/{db}/_all_docs",
        DesignDocs = "/{db}/_design_docs",
        BulkDocs = "/{db}/_bulk_docs",
        BulkGet = "/{db}/_bulk_get",
        Changes = "/{db}/_changes",
        Find = "/{db}/_find",
        Count = "/{db}/_count",
        Index = "/{db}/_index",
        Explain = "/{db}/_explain",
        RevsDiff = "/{db}/_revs_diff",
        MissingRevs = "/{db}/_missing_revs",
        RevsLimit = "/{db}/_revs_limit",
        EnsureFullCommit = "/{db}/_ensure_full_commit",
        Compact = "/{db}/_compact",
        Purge = "/{db}/_purge",
        PurgedInfos = "/{db}/_purged_infos",
        PurgedInfosLimit = "/{db}/_purged_infos_limit",
        RawKeys = "/{db}/_raw_keys",
        Security = "/{db}/_security",
        DatabaseOther = "/{db}/_other",
        /// A CORS preflight.
        Preflight = "preflight",
        /// An invalid path.
        Invalid = "invalid",
    }
}
