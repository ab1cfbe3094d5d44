//! Labels of requests in metrics and traces, without names of databases, documents or users.

flatbed_metrics::labels! {
    /// A family of paths.
    pub enum Route: "route" {
        /// `/`
        Welcome = "/",
        /// `/_all_dbs`
        AllDatabases = "/_all_dbs",
        /// `/{db}/`
        Database = "/{db}/",
        /// `/{db}/_all_docs`
        AllDocs = "/{db}/_all_docs",
        /// `/{db}/_bulk_docs`
        BulkDocs = "/{db}/_bulk_docs",
        /// `/{db}/_bulk_get`
        BulkGet = "/{db}/_bulk_get",
        /// `/{db}/_changes`
        Changes = "/{db}/_changes",
        /// `/{db}/_revs_diff`
        RevsDiff = "/{db}/_revs_diff",
        /// `/{db}/_session`, and the sessions beneath it and beneath users
        Session = "/{db}/_session",
        /// `/{db}/_user/{name}` and `/{db}/_role/{name}`
        Principal = "/{db}/_user/{name}",
        /// `/{db}/_local/{id}`
        Local = "/{db}/_local/{id}",
        /// `/{db}/{id}`
        Document = "/{db}/{id}",
        /// `/{db}/{id}/{attachment}`
        Attachment = "/{db}/{id}/{attachment}",
        /// All other administrators' paths.
        Administration = "/{db}/_{administration}",
        /// Unknown paths and redirects.
        Nothing = "(nothing)",
        /// A CORS preflight.
        Preflight = "(preflight)",
    }
}
