//! The classes of requests in metrics and traces. They never contain a user's or a collection's name.

flatbed_metrics::labels! {
    /// A family of paths.
    pub enum Route: "route" {
        /// `/`
        Front = "/",
        /// `/__heartbeat__`, `/__lbheartbeat__` and `/__version__`
        Heartbeat = "/__heartbeat__",
        /// `/1.0/sync/1.5`
        Token = "/1.0/sync/1.5",
        /// `/1.5/{uid}/info/collections`
        InfoCollections = "/1.5/{uid}/info/collections",
        /// `/1.5/{uid}/info/configuration`
        InfoConfiguration = "/1.5/{uid}/info/configuration",
        /// `/1.5/{uid}/info/{other}`
        Info = "/1.5/{uid}/info/{other}",
        /// `/1.5/{uid}` and `/1.5/{uid}/storage`
        All = "/1.5/{uid}/storage",
        /// `/1.5/{uid}/storage/{collection}`
        Collection = "/1.5/{uid}/storage/{collection}",
        /// `/1.5/{uid}/storage/{collection}/{id}`
        Object = "/1.5/{uid}/storage/{collection}/{id}",
        /// An unknown path.
        Nothing = "(nothing)",
        /// A preflight request.
        Preflight = "(preflight)",
    }
}
