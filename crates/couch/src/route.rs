//! What requests are for, as far as they are told apart in metrics and traces: never by a database's or a document's name.

flatbed_metrics::labels! {
    /// A family of CouchDB's paths.
    pub enum Route: "route" {
        /// `/`
        Root = "/",
        /// `/_up`
        Up = "/_up",
        /// `/_session`
        Session = "/_session",
        /// `/_uuids`
        Uuids = "/_uuids",
        /// `/_all_dbs`
        AllDbs = "/_all_dbs",
        /// `/_dbs_info`
        DbsInfo = "/_dbs_info",
        /// `/_db_updates`
        DbUpdates = "/_db_updates",
        /// `/_active_tasks`
        ActiveTasks = "/_active_tasks",
        /// `/_replicate`
        Replicate = "/_replicate",
        /// `/_scheduler`
        Scheduler = "/_scheduler",
        /// `/_worker/_api`
        Worker = "/_worker",
        /// `/metrics`
        Metrics = "/metrics",
        /// `/_node`
        Node = "/_node",
        /// `/_other`
        Server = "/_other",
        /// `/{db}`
        Database = "/{db}",
        /// `/{db}/{docid}`
        Document = "/{db}/{docid}",
        /// `/{db}/{docid}/{attachment}`
        Attachment = "/{db}/{docid}/{attachment}",
        /// `/{db}/_design/{ddoc}`
        DesignDocument = "/{db}/_design/{ddoc}",
        /// `/{db}/_design/{ddoc}/{attachment}`
        DesignAttachment = "/{db}/_design/{ddoc}/{attachment}",
        /// `/{db}/_design/{ddoc}/_other`
        DesignFunction = "/{db}/_design/{ddoc}/_other",
        /// `/{db}/_design/{ddoc}/_view/{view}`
        View = "/{db}/_design/{ddoc}/_view/{view}",
        /// `/{db}/_design/{ddoc}/_info`
        DesignInfo = "/{db}/_design/{ddoc}/_info",
        /// `/{db}/_view_cleanup`
        ViewCleanup = "/{db}/_view_cleanup",
        /// `/{db}/_local/{docid}`
        LocalDocument = "/{db}/_local/{docid}",
        /// `/{db}/_local_docs`
        LocalDocs = "/{db}/_local_docs",
        /// `/{db}/_all_docs`
        AllDocs = "/{db}/_all_docs",
        /// `/{db}/_design_docs`
        DesignDocs = "/{db}/_design_docs",
        /// `/{db}/_bulk_docs`
        BulkDocs = "/{db}/_bulk_docs",
        /// `/{db}/_bulk_get`
        BulkGet = "/{db}/_bulk_get",
        /// `/{db}/_changes`
        Changes = "/{db}/_changes",
        /// `/{db}/_find`
        Find = "/{db}/_find",
        /// `/{db}/_count`
        Count = "/{db}/_count",
        /// `/{db}/_index`
        Index = "/{db}/_index",
        /// `/{db}/_explain`
        Explain = "/{db}/_explain",
        /// `/{db}/_revs_diff`
        RevsDiff = "/{db}/_revs_diff",
        /// `/{db}/_missing_revs`
        MissingRevs = "/{db}/_missing_revs",
        /// `/{db}/_revs_limit`
        RevsLimit = "/{db}/_revs_limit",
        /// `/{db}/_ensure_full_commit`
        EnsureFullCommit = "/{db}/_ensure_full_commit",
        /// `/{db}/_compact`
        Compact = "/{db}/_compact",
        /// `/{db}/_purge`
        Purge = "/{db}/_purge",
        /// `/{db}/_purged_infos`
        PurgedInfos = "/{db}/_purged_infos",
        /// `/{db}/_purged_infos_limit`
        PurgedInfosLimit = "/{db}/_purged_infos_limit",
        /// `/{db}/_raw_keys`
        RawKeys = "/{db}/_raw_keys",
        /// `/{db}/_security`
        Security = "/{db}/_security",
        /// `/{db}/_other`
        DatabaseOther = "/{db}/_other",
        /// Asked by a browser before a request.
        Preflight = "preflight",
        /// A path that cannot be read.
        Invalid = "invalid",
    }
}
