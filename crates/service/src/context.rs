//! A request's context.

use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_auth::security::Access;
use flatbed_auth::{Credentials, Principal};
use flatbed_clock::Clock;
use flatbed_javascript::Runner;
use flatbed_layer::channels::SignsIn;
use flatbed_layer::json::Value;
use flatbed_layer::{ClosedReasons, Layer, Reader, Result, User};
use flatbed_mango::Field;
use flatbed_network::Network;

use crate::accounts::{Accounts, Freshness};
use crate::answering::{AnswerContext, AnswerError, DesignFunctions};
use crate::configuration::Configuration;
use crate::designs::Designs;
use crate::feeds::{Feed, FeedError, FeedQuery, Feeds};
use crate::functions::{Functions, complete_request};
use crate::rights::{AccessError, Administer, Requirement, Right, Rights, asks_for_replications};
use crate::selecting::{FeedSelector, Projection, SelectorError, SelectorOptions, Selectors};
use crate::server::{Databases, ServerAdministration};
use crate::sign_in::users::{UserClaims, UserSession, UserSignIn, UserSignInError};
use crate::sign_in::{CheckOptions, NewSession, SignIn, network};
use crate::standing::{Claims, IdentifiedRequest, RightsBasis, SignInError, Standing};
use crate::turns::{Origin, TurnClient};
use crate::user_documents::UserDocuments;
use crate::watching::{GrantedRights, RightsWatch, WatchState};

/// Options of a service.
#[derive(Debug, Clone, Default)]
pub struct ServiceOptions {
    /// Options of password checks.
    pub checks: CheckOptions,
    /// Options of selectors.
    pub selectors: SelectorOptions,
}

/// The layer as surfaces see it. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    layer: Layer,
    sign_in: Arc<SignIn>,
    feeds: Arc<Feeds>,
    answering: AnswerContext,
    configuration: Configuration,
    users: UserDocuments,
    watching: Arc<WatchState>,
}

impl Service {
    /// The program creates it and gives surfaces nothing else of the layer. `functions` runs filters of feeds, and
    /// functions that answer requests. If the `configuration` has no administrator, every client is one.
    pub fn new(layer: Layer, functions: Runner, configuration: Configuration) -> Service {
        Service::with_options(layer, functions, configuration, ServiceOptions::default())
    }

    /// As [`Service::new`], with options for password checks and selectors.
    pub fn with_options(
        layer: Layer,
        functions: Runner,
        configuration: Configuration,
        options: ServiceOptions,
    ) -> Service {
        let ServiceOptions { checks, selectors } = options;
        layer.run_views_by(Arc::new(Functions::new(functions.clone())));
        let of_sizes = layer.clone();
        configuration.on_change(move |settings| {
            let limits = &settings.limits;
            of_sizes.bound_sizes(limits.document_bytes, limits.attachment_bytes, limits.partition_bytes);
        });
        let designs = Designs::default();
        let feeds = Arc::new(Feeds::new(functions.clone(), designs.clone(), Selectors::new(selectors)));
        let sign_in = Arc::new(SignIn::new(layer.clone(), configuration.clone(), checks));
        let watching = Arc::new(WatchState::new(layer.clone(), sign_in.accounts.clone()));
        let answering = AnswerContext::new(functions, designs);
        let users = UserDocuments::new(configuration.clone(), sign_in.clone());
        Service { layer, sign_in, feeds, answering, configuration, users, watching }
    }

    /// The settings that may change at run time.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Creates the context of a request from `standing`.
    pub fn context(&self, standing: Standing) -> Context {
        let (feeds, answering) = (self.feeds.clone(), self.answering.clone());
        let (watching, judged) = (self.watching.clone(), Arc::default());
        let (layer, configuration) = (self.layer.clone(), self.configuration.clone());
        let (rights, renewed) = (Rights::new(standing, self.users.clone()), Mutex::default());
        let (sign_in, address) = (self.sign_in.clone(), network(None));
        Context { layer, rights, renewed, feeds, answering, watching, configuration, sign_in, judged, address }
    }

    /// Identifies the principal of a request. Without administrators every client is one.
    #[boxed]
    pub async fn identify(&self, claims: &Claims<'_>) -> std::result::Result<IdentifiedRequest, SignInError> {
        let credentials = claims.basic_alone();
        self.configuration.confirm_for(credentials.as_ref().map(|credentials| credentials.name.as_str())).await?;
        self.sign_in.identify(claims).await
    }

    /// Identifies the principal of a request to a database with its own users: one of these users, an account of the
    /// server, or the guest. A server without administrators makes no client one here.
    ///
    /// # Errors
    /// [`UserSignInError`]; the layer's error if the database does not exist.
    #[boxed]
    pub async fn identify_in(
        &self,
        database: &str,
        claims: &UserClaims<'_>,
    ) -> std::result::Result<UserSignIn, UserSignInError> {
        let credentials = claims.authorization.and_then(|header| Credentials::of_header(header).ok().flatten());
        let name = credentials.as_ref().map(|credentials| credentials.name.as_str());
        self.configuration.confirm_for(name).await.map_err(SignInError::from)?;
        self.sign_in.identify_in(database, claims).await
    }

    /// Ends a session of a database by its id. The id is the only credential.
    #[boxed]
    pub async fn end_user_session(&self, database: &str, id: &str) -> Result<()> {
        self.sign_in.end_session_in(database, id).await
    }

    /// Begins a session by name and password.
    #[boxed]
    pub async fn begin_session(
        &self,
        credentials: &Credentials,
        claims: &Claims<'_>,
    ) -> std::result::Result<NewSession, SignInError> {
        self.sign_in.begin_session(credentials, claims).await
    }

    /// Returns the `set-cookie` value that clears the session cookie. The server stores no session.
    pub fn end_session(&self, is_secure: bool) -> String {
        self.sign_in.end_session(is_secure)
    }

    /// The enabled sign-in methods, in CouchDB's words and in the order in which they are tried.
    pub fn authentication_handlers(&self) -> Vec<&'static str> {
        self.sign_in.handlers()
    }

    /// The accounts, for long-lived requests.
    pub fn accounts(&self) -> &Arc<Accounts> {
        &self.sign_in.accounts
    }

    #[cfg(test)]
    pub(crate) fn users(&self) -> &UserDocuments {
        &self.users
    }

    #[cfg(test)]
    pub(crate) fn feeds(&self) -> &Feeds {
        &self.feeds
    }

    #[cfg(test)]
    pub(crate) fn is_watching(&self) -> bool {
        self.watching.is_polling()
    }

    #[cfg(test)]
    pub(crate) fn watching(&self) -> &Arc<WatchState> {
        &self.watching
    }

    /// True if the server has no administrator by name, so that every client is one.
    pub fn is_open(&self) -> bool {
        self.sign_in.accounts.is_open()
    }

    /// Returns whether a database is closed to its users, as of less than a second ago or of this process's last
    /// change. A missing database is not closed.
    #[boxed]
    pub async fn closed_reasons(&self, database: &str) -> Result<ClosedReasons> {
        match self.layer.security(database).await {
            Ok(security) => Ok(security.closed()),
            Err(flatbed_layer::Error::DatabaseNotFound) => Ok(ClosedReasons::default()),
            Err(error) => Err(error),
        }
    }

    /// See [`Layer::uuid`]: public.
    pub fn uuid(&self) -> &str {
        self.layer.uuid()
    }

    /// See [`Layer::ping`].
    #[boxed]
    pub async fn ping(&self) -> Result<()> {
        self.layer.ping().await
    }

    /// The layer's clock, which its users share.
    pub fn clock(&self) -> &Clock {
        self.layer.clock()
    }

    /// The metrics of the layer ([`Layer::metrics`]), of sign-in, of selectors and of looks at the rights of feeds. Labels name neither databases nor
    /// users.
    pub fn metrics(&self) -> Vec<flatbed_metrics::Family> {
        let mut families = self.layer.metrics();
        families.extend(self.sign_in.families());
        families.extend(self.feeds.selectors.families());
        families.extend(self.watching.accounts().looks().families());
        families
    }
}

/// The principal of a request, and the only access to databases.
///
/// ```compile_fail
/// # async fn handler(context: &flatbed_service::Context) {
/// // A database needs a right.
/// let database = context.database("db").await.unwrap();
/// # }
/// ```
///
/// ```compile_fail
/// # async fn handler(context: &flatbed_service::Context) {
/// // `Read` does not allow writes.
/// let database = context.database("db", flatbed_service::Read).await.unwrap();
/// database.delete_local("id").await;
/// # }
/// ```
///
/// ```compile_fail
/// # async fn handler(context: &flatbed_service::Context) {
/// // `Write` does not allow administration.
/// let database = context.database("db", flatbed_service::Write).await.unwrap();
/// database.set_revs_limit(1).await;
/// # }
/// ```
///
/// ```no_run
/// # async fn handler(context: &flatbed_service::Context) {
/// let database = context.database("db", flatbed_service::Write).await.unwrap();
/// database.delete_local("id").await;
/// let database = context.database("db", flatbed_service::Administer).await.unwrap();
/// database.set_revs_limit(1).await;
/// # }
/// ```
pub struct Context {
    layer: Layer,
    /// The rights when the request arrived.
    rights: Rights,
    /// The rights at the last renewal.
    renewed: Mutex<Option<Rights>>,
    feeds: Arc<Feeds>,
    answering: AnswerContext,
    watching: Arc<WatchState>,
    configuration: Configuration,
    sign_in: Arc<SignIn>,
    /// The rights granted so far.
    judged: Arc<GrantedRights>,
    address: Network,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.rights).finish()
    }
}

impl Context {
    /// The layer's clock.
    pub fn clock(&self) -> &Clock {
        self.layer.clock()
    }

    /// Sets the client's address, which decides its turn in fair queues.
    #[must_use]
    pub fn from_peer(mut self, peer: Option<IpAddr>) -> Context {
        self.rights.users = self.rights.users.from(peer);
        self.address = network(peer);
        self
    }

    /// The principal when the request arrived.
    pub fn principal(&self) -> &Principal {
        self.rights.principal()
    }

    /// The principal, with the basis of its rights.
    pub fn standing(&self) -> &Standing {
        &self.rights.standing
    }

    /// The user as functions of design documents and the layer see it.
    pub fn user(&self) -> User {
        self.known().user()
    }

    /// Returns a database in a type that can do what `right` allows. The right is checked as of less than a second
    /// ago. For administrators of the server nothing is read, so the database may not exist.
    ///
    /// # Errors
    /// [`AccessError`]: the user lacks the right, or the storage failed.
    #[boxed]
    pub async fn database<R: Right>(&self, name: &str, _right: R) -> std::result::Result<R::Database, AccessError> {
        let accounts = self.watching.accounts();
        let now = self.now().await?;
        let granted = now.grant(R::NEEDS, &self.layer, accounts, name).await?;
        self.judged.note(Some(name), R::NEEDS, (granted.access(), granted.is_replicator()));
        let reader = self.layer.reader(name).asked_by(granted.asker());
        if !reader.can_see_all() {
            self.judged.note_part(reader);
        }
        Ok(R::given(granted))
    }

    /// Returns whether a database is a replicator database, as of at most a second ago: `_replicator`, or a database
    /// created as one under a [name](flatbed_layer::is_replicator_name) like it. For a missing database, returns
    /// whether it would be created as one.
    #[boxed]
    pub async fn asks_for_replications(&self, name: &str) -> Result<bool> {
        asks_for_replications(&self.layer, name).await
    }

    /// Returns the principal's rights as of less than a second ago.
    async fn now(&self) -> std::result::Result<Rights, AccessError> {
        let known = self.known();
        if !known.is_renewal_due() {
            return Ok(known);
        }
        let now = Box::pin(known.renew(self.watching.accounts(), Freshness::Second)).await?;
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = Some(now.clone());
        Ok(now)
    }

    /// The latest known rights.
    fn known(&self) -> Rights {
        let renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        renewed.as_ref().unwrap_or(&self.rights).clone()
    }

    /// Hashes a new password of a database's user, in the queue of password checks.
    ///
    /// # Errors
    /// [`SignInError::TooMany`] if the queue is full.
    #[boxed]
    pub async fn hash_password(&self, password: &str) -> std::result::Result<Vec<u8>, SignInError> {
        let known = self.known();
        known.users.hash_of(password, known.principal().is_admin).await
    }

    /// Creates a watch that resolves when a right granted by this context, before or after this call, is lost.
    pub fn rights_watch(&self) -> RightsWatch {
        RightsWatch::new(self.watching.clone(), self.rights.standing.clone(), self.judged.clone())
    }

    /// Creates a session for a user of a database with channels, on behalf of that user or of an administrator of the
    /// database. Each use prolongs the session by `lasts`. `None`: the user does not exist or is disabled.
    #[boxed]
    pub async fn begin_user_session(
        &self,
        database: &str,
        name: &str,
        lasts: Duration,
    ) -> std::result::Result<Option<UserSession>, AccessError> {
        let now = self.now().await?;
        let is_own = match now.standing.basis() {
            RightsBasis::Principal { database: of, name: own, .. } => (&**of, &**own) == (database, name),
            _ if now.principal().name.as_deref() == Some(name) => {
                let user = self.watching.accounts().user_of(database, name, Freshness::Second).await?;
                user.is_some_and(|user| user.principal.signs_in == SignsIn::Account)
            }
            _ => false,
        };
        if !is_own {
            self.database(database, Administer).await?;
        }
        Ok(self.sign_in.begin_session_in(database, name, lasts).await?)
    }

    /// Returns the user and the end of a valid session, in milliseconds of Unix time. Needs [`Administer`].
    #[boxed]
    pub async fn user_session(
        &self,
        database: &str,
        id: &str,
    ) -> std::result::Result<Option<(String, u64)>, AccessError> {
        self.database(database, Administer).await?;
        let found = self.sign_in.session_in(database, id).await?;
        Ok(found.map(|(session, _)| (session.name, session.ends_at_ms)))
    }

    /// The origin of the client's work in a database, for fair turns.
    pub(crate) fn origin(&self, database: &str) -> Origin {
        let client = TurnClient::of(self.principal().name.as_deref(), self.address);
        Origin { client, database: database.into() }
    }

    /// Compiles a selector for a feed of a database.
    #[boxed]
    pub async fn selector(
        &self,
        database: &str,
        selector: Value<'static>,
    ) -> std::result::Result<FeedSelector, SelectorError> {
        self.feeds.selectors.compile(self.origin(database), selector).await
    }

    /// Builds a projection of documents of a database's feed to these fields.
    pub fn projection(&self, database: &str, fields: Vec<Field>) -> Projection {
        Projection::new(self.origin(database), &fields, &self.feeds.selectors)
    }

    pub(crate) fn selectors(&self) -> &Selectors {
        &self.feeds.selectors
    }

    /// Reads a design document and returns its functions that answer requests; `design` is its name without
    /// `_design/`.
    #[boxed]
    pub async fn design_functions(
        &self,
        database: &Reader,
        design: &str,
    ) -> std::result::Result<DesignFunctions, AnswerError> {
        self.answering.begin(&self.origin(database.name()), database, design).await
    }

    /// Completes a request object for functions: adds `userCtx` and `secObj` to `request`, the text of a JSON object
    /// that has members.
    #[boxed]
    pub async fn request_object(&self, request: Vec<u8>, database: &Reader) -> Result<String> {
        complete_request(request, &self.known(), database).await
    }

    /// The headers of proxy authentication, in lower case, by the current settings.
    pub fn proxy_headers(&self) -> [String; 3] {
        let settings = self.configuration.now();
        let names = &settings.auth.proxy;
        [names.user_header.clone(), names.roles_header.clone(), names.token_header.clone()]
    }

    /// Begins a feed of a database. Reads no row.
    #[boxed]
    pub async fn feed(&self, database: &Reader, query: FeedQuery) -> std::result::Result<Feed, FeedError> {
        let origin = self.origin(database.name());
        self.feeds.begin(&self.known(), &origin, self.rights_watch(), database, query).await
    }

    /// Grants access to the server.
    ///
    /// # Errors
    /// [`AccessError`]: the user does not administer the server.
    pub async fn server(&self) -> std::result::Result<ServerAdministration<'_>, AccessError> {
        let rights = self.now().await?;
        Requirement::Server.in_server(rights.principal())?;
        self.judged.note(None, Requirement::Server, (Access::Admin, false));
        let (layer, configuration) = (&self.layer, &self.configuration);
        Ok(ServerAdministration { layer, configuration, accounts: self.watching.accounts(), rights })
    }

    /// Grants the list of databases: to administrators of the server, or to everyone if the setting
    /// `admin_only_all_dbs` is off.
    pub async fn databases(&self) -> std::result::Result<Databases<'_>, AccessError> {
        if self.configuration.now().auth.admin_only_all_dbs {
            self.server().await?;
        } else {
            // The standing must still be valid.
            self.now().await?;
        }
        Ok(Databases { layer: &self.layer })
    }

    /// Checks that the user may read the server's metrics, which name no database.
    #[boxed]
    pub async fn metrics(&self) -> std::result::Result<(), AccessError> {
        Ok(Requirement::Metrics.in_server(self.now().await?.principal())?)
    }
}
