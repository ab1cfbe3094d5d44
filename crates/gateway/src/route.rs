//! What requests are distinguished by in metrics and traces: never by the name of a database, document or user.

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
        /// `/{db}/_session`, and those below it and below a user
        Session = "/{db}/_session",
        /// `/{db}/_user/{name}` and `/{db}/_role/{name}`
        Principal = "/{db}/_user/{name}",
        /// `/{db}/_local/{id}`
        Local = "/{db}/_local/{id}",
        /// `/{db}/{id}`
        Document = "/{db}/{id}",
        /// `/{db}/{id}/{attachment}`
        Attachment = "/{db}/{id}/{attachment}",
        /// What is for administrators beside these.
        Administration = "/{db}/_{administration}",
        /// What is nothing, or elsewhere.
        Nothing = "(nothing)",
        /// A preflight request.
        Preflight = "(preflight)",
    }
}
