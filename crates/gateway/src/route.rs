//! Labels of requests in metrics and traces, without names of databases, documents or users.

flatbed_metrics::labels! {
    /// A family of Sync Gateway's paths. Most values are the path.
    // The value of each variant is its path: a doc comment would repeat it.
    #[allow(missing_docs)]
    pub enum Route: "route" {
        Welcome = "/",
        AllDatabases = "/_all_dbs",
        Database = "/{db}/",
        AllDocs = "/{db}/_all_docs",
        BulkDocs = "/{db}/_bulk_docs",
        BulkGet = "/{db}/_bulk_get",
        Changes = "/{db}/_changes",
        RevsDiff = "/{db}/_revs_diff",
        /// `/{db}/_session`, and sessions beneath it and beneath users.
        Session = "/{db}/_session",
        /// Users and roles.
        Principal = "/{db}/_user/{name}",
        Local = "/{db}/_local/{id}",
        Document = "/{db}/{id}",
        Attachment = "/{db}/{id}/{attachment}",
        /// All other administrators' paths.
        Administration = "/{db}/_{administration}",
        /// Unknown paths and redirects.
        Nothing = "(nothing)",
        /// A CORS preflight.
        Preflight = "(preflight)",
    }
}
