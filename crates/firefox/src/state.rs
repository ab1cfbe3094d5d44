//! The state that the handlers share.

use std::borrow::Cow;
use std::sync::Arc;

use flatbed_metrics::Family;
use flatbed_syncstorage::Store;
use flatbed_syncstorage::accounts::Accounts;
use hyper::Uri;

use crate::metrics::{LogRateLimit, Metrics};
use crate::place::{PublicUrl, behind};
use crate::secret::Secret;
use crate::tokens::{TokenOptions, TokenServer};

/// The options of the surface.
#[derive(Debug)]
pub struct FirefoxOptions {
    /// This program's version.
    pub version: String,
    /// The secret that signs tokens.
    pub secret: Secret,
    /// The URL by which clients know this server, if it differs from `Host`.
    pub public_url: Option<PublicUrl>,
    /// The path that the surface is mounted at, such as `/sync`, beside or instead of listeners of its own.
    pub path: Option<String>,
    /// The options of the token server; `None`: there is none.
    pub tokens: Option<TokenOptions>,
}

/// Firefox Sync's API on a storage. The assembling program creates its parts.
pub struct State {
    pub(crate) store: Store,
    pub(crate) secret: Secret,
    pub(crate) version: String,
    pub(crate) tokens: Option<TokenServer>,
    pub(crate) metrics: Arc<Metrics>,
    /// The log limit for requests with invalid signatures.
    pub(crate) sparing: LogRateLimit,
    /// The log limit for failures of this server.
    pub(crate) failures: LogRateLimit,
    public_url: Option<PublicUrl>,
    path: String,
}

/// The surface.
pub type Firefox = State;

impl State {
    /// Creates the surface of a storage.
    pub fn new(options: FirefoxOptions, store: Store) -> State {
        let metrics: Arc<Metrics> = Arc::default();
        let accounts = Accounts::new(&store);
        State {
            tokens: options.tokens.map(|options| TokenServer::new(options, accounts, metrics.clone())),
            store,
            secret: options.secret,
            version: options.version,
            metrics,
            sparing: LogRateLimit::default(),
            failures: LogRateLimit::default(),
            public_url: options.public_url,
            path: options.path.unwrap_or_default(),
        }
    }

    /// Returns a function that reads the metrics of the surface and of its storage.
    pub fn figures(&self) -> impl Fn() -> Vec<Family> + Send + Sync + 'static {
        let (metrics, store) = (self.metrics.clone(), self.store.clone());
        move || {
            let mut families = Vec::from_iter(metrics.families());
            families.extend(store.metrics());
            families
        }
    }

    pub(crate) fn public_url(&self) -> Option<&PublicUrl> {
        self.public_url.as_ref()
    }

    /// Returns the mount path of a request, or nothing.
    pub(crate) fn mount(&self, uri: &Uri) -> &str {
        if behind(uri.path(), &self.path).is_some() { &self.path } else { "" }
    }

    /// Removes from a path the mount path, or the public URL's path, which a proxy may have removed already.
    pub(crate) fn inner<'p>(&self, path: &'p str) -> &'p str {
        let prefix = self.public_url.as_ref().map_or("", PublicUrl::prefix);
        let mounted = Some(&*self.path).filter(|mount| !mount.is_empty()).and_then(|mount| behind(path, mount));
        mounted.or_else(|| behind(path, prefix)).unwrap_or(path)
    }

    /// Returns path and query as the client signed them.
    pub(crate) fn signed_target<'u>(&self, uri: &'u Uri) -> Cow<'u, str> {
        let sent = uri.path_and_query().map_or("/", |target| target.as_str());
        match &self.public_url {
            None => Cow::Borrowed(sent),
            Some(url) => Cow::Owned(format!("{}{}", url.prefix(), self.inner(sent))),
        }
    }
}
