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
use flatbed_layer::{Closed, Layer, Reader, Result, User};
use flatbed_mango::Field;
use flatbed_network::Network;

use crate::accounts::{Accounts, Fresh};
use crate::answering::{AnswerError, Answering, DesignFunctions};
use crate::configuration::Configuration;
use crate::designs::Designs;
use crate::feeds::{Feed, FeedError, FeedQuery, Feeds};
use crate::functions::{Functions, completed};
use crate::rights::{Administer, Denied, Needs, Right, Rights, asks_for_replications};
use crate::selecting::{Projection, Selecting, SelectorError, SelectorOptions, Selectors};
use crate::server::{Databases, ServerAdministration};
use crate::sign_in::users::{UserClaims, UserIdentified, UserSession, UserSignInError};
use crate::sign_in::{CheckOptions, SessionBegun, SignIn, network};
use crate::standing::{Claims, Identified, RestsOn, SignInError, Standing};
use crate::turns::Origin;
use crate::user_documents::UserDocuments;
use crate::watching::{Judged, RightsWatch, Watching};

/// Options of the expensive work of a service.
#[derive(Debug, Clone, Default)]
pub struct ServiceOptions {
    /// How passwords are checked.
    pub checks: CheckOptions,
    /// How selectors are compiled and matched.
    pub selectors: SelectorOptions,
}

/// What the surfaces of a program are given in the place of its layer. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    layer: Layer,
    sign_in: Arc<SignIn>,
    feeds: Arc<Feeds>,
    answering: Answering,
    configuration: Configuration,
    users: UserDocuments,
    watching: Arc<Watching>,
}

impl Service {
    /// Whoever puts the program together makes it, and gives surfaces nothing else of the layer. `functions` runs filters of
    /// feeds, and functions that answer requests. Without administrators in the `configuration`, everyone is one.
    pub fn new(layer: Layer, functions: Runner, configuration: Configuration) -> Service {
        Service::with_options(layer, functions, configuration, ServiceOptions::default())
    }

    /// As [`Service::new`], with passwords checked and selectors matched as these options say.
    pub fn with_options(
        layer: Layer,
        functions: Runner,
        configuration: Configuration,
        options: ServiceOptions,
    ) -> Service {
        let ServiceOptions { checks, selectors } = options;
        layer.run_views_by(Arc::new(Functions::new(functions.clone())));
        let designs = Designs::default();
        let feeds = Arc::new(Feeds::new(functions.clone(), designs.clone(), Selectors::new(selectors)));
        let sign_in = Arc::new(SignIn::new(layer.clone(), configuration.clone(), checks));
        let watching = Arc::new(Watching::new(layer.clone(), sign_in.accounts.clone()));
        let answering = Answering::new(functions, designs);
        let users = UserDocuments::new(configuration.clone(), sign_in.clone());
        Service { layer, sign_in, feeds, answering, configuration, users, watching }
    }

    /// The settings that may change while it serves.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// The context of a request that `standing` makes.
    pub fn context(&self, standing: Standing) -> Context {
        let (feeds, answering) = (self.feeds.clone(), self.answering.clone());
        let (watching, judged) = (self.watching.clone(), Arc::default());
        let (layer, configuration) = (self.layer.clone(), self.configuration.clone());
        let (rights, renewed) = (Rights::new(standing, self.users.clone()), Mutex::default());
        let (sign_in, address) = (self.sign_in.clone(), network(None));
        Context { layer, rights, renewed, feeds, answering, watching, configuration, sign_in, judged, address }
    }

    /// Who makes a request. Without administrators everyone is one.
    ///
    /// # Errors
    /// [`SignInError`].
    #[boxed]
    pub async fn identify(&self, claims: &Claims<'_>) -> std::result::Result<Identified, SignInError> {
        let credentials = claims.basic_alone();
        self.configuration.confirm_for(credentials.as_ref().map(|credentials| credentials.name.as_str())).await?;
        self.sign_in.identify(claims).await
    }

    /// Who asks for something of a database that users sign in to by itself. Its administrators are nobody else there.
    ///
    /// # Errors
    /// [`UserSignInError`]; of a database that is not there, the layer's.
    #[boxed]
    pub async fn identify_in(
        &self,
        database: &str,
        claims: &UserClaims<'_>,
    ) -> std::result::Result<UserIdentified, UserSignInError> {
        let credentials = claims.authorization.and_then(|header| Credentials::of_header(header).ok().flatten());
        let name = credentials.as_ref().map(|credentials| credentials.name.as_str());
        self.configuration.confirm_for(name).await.map_err(SignInError::from)?;
        self.sign_in.identify_in(database, claims).await
    }

    /// Ends a session of a database, by its id: whoever has it may.
    ///
    /// # Errors
    /// Those of the layer.
    #[boxed]
    pub async fn end_user_session(&self, database: &str, id: &str) -> Result<()> {
        self.sign_in.end_session_in(database, id).await
    }

    /// Begins a session for who has this name and password.
    ///
    /// # Errors
    /// [`SignInError`].
    #[boxed]
    pub async fn begin_session(
        &self,
        credentials: &Credentials,
        claims: &Claims<'_>,
    ) -> std::result::Result<SessionBegun, SignInError> {
        self.sign_in.begin_session(credentials, claims).await
    }

    /// The value of a `set-cookie` header that takes a session's cookie away. Of the session itself nothing is kept.
    pub fn end_session(&self, is_secure: bool) -> String {
        self.sign_in.end_session(is_secure)
    }

    /// Which ways there are to sign in, in CouchDB's words, in the order in which they are looked at.
    pub fn authentication_handlers(&self) -> Vec<&'static str> {
        self.sign_in.handlers()
    }

    /// Who has an account, for whoever goes on for long.
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
        self.watching.is_looking()
    }

    /// Whether everyone is an administrator: there are none by name.
    pub fn is_open(&self) -> bool {
        self.sign_in.accounts.is_open()
    }

    /// For what a database is closed to its users, as of less than a second ago, or what this process has changed; of one that is not there:
    /// for nothing.
    ///
    /// # Errors
    /// Those of the storage.
    #[boxed]
    pub async fn closed(&self, database: &str) -> Result<Closed> {
        match self.layer.security(database).await {
            Ok(security) => Ok(security.closed()),
            Err(flatbed_layer::Error::DatabaseNotFound) => Ok(Closed::default()),
            Err(error) => Err(error),
        }
    }

    /// See [`Layer::uuid`]: anybody may know it.
    pub fn uuid(&self) -> &str {
        self.layer.uuid()
    }

    /// See [`Layer::ping`].
    ///
    /// # Errors
    /// As there.
    #[boxed]
    pub async fn ping(&self) -> Result<()> {
        self.layer.ping().await
    }

    /// Where the layer takes the time from, for what is built on it.
    pub fn clock(&self) -> &Clock {
        self.layer.clock()
    }

    /// The metrics of the layer ([`Layer::metrics`]), of sign-in and of selectors. No label names a database or a user.
    pub fn metrics(&self) -> Vec<flatbed_metrics::Family> {
        let mut families = self.layer.metrics();
        families.extend(self.sign_in.families());
        families.extend(self.feeds.selectors.families());
        families
    }
}

/// Who makes a request, and the only way to what they have a right to.
///
/// ```compile_fail
/// # async fn handler(context: &flatbed_service::Context) {
/// // There is no database without a right.
/// let database = context.database("db").await.unwrap();
/// # }
/// ```
///
/// ```compile_fail
/// # async fn handler(context: &flatbed_service::Context) {
/// // Who asked to read cannot write.
/// let database = context.database("db", flatbed_service::Read).await.unwrap();
/// database.delete_local("id").await;
/// # }
/// ```
///
/// ```compile_fail
/// # async fn handler(context: &flatbed_service::Context) {
/// // Who asked to write documents cannot administer.
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
    /// As they were when the request came.
    rights: Rights,
    /// As they were found later.
    renewed: Mutex<Option<Rights>>,
    feeds: Arc<Feeds>,
    answering: Answering,
    watching: Arc<Watching>,
    configuration: Configuration,
    sign_in: Arc<SignIn>,
    /// What was given.
    judged: Arc<Judged>,
    /// The client's address, for fair turns.
    address: Network,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Context").field(&self.rights).finish()
    }
}

impl Context {
    /// Where the layer takes the time from.
    pub fn clock(&self) -> &Clock {
        self.layer.clock()
    }

    /// The same of a client at this address, by which it has its turn in what is done for one after the other.
    #[must_use]
    pub fn from_peer(mut self, peer: Option<IpAddr>) -> Context {
        self.rights.users = self.rights.users.from(peer);
        self.address = network(peer);
        self
    }

    /// Who asks, as it was when the request came.
    pub fn principal(&self) -> &Principal {
        self.rights.principal()
    }

    /// Who asks, with what that rests on.
    pub fn standing(&self) -> &Standing {
        &self.rights.standing
    }

    /// Who asks, as what judges writes sees them.
    pub fn user(&self) -> User {
        self.known().user()
    }

    /// A database, in a type that can do what `right` allows, for who has that right as of less than a second ago. The server's
    /// administrators have it without anything being read: it may not exist.
    ///
    /// # Errors
    /// [`Denied`]: who asks has not the right, or that is not known.
    #[boxed]
    pub async fn database<R: Right>(&self, name: &str, _right: R) -> std::result::Result<R::Database, Denied> {
        let accounts = self.watching.accounts();
        let now = self.now().await?;
        let granted = now.grant(R::NEEDS, &self.layer, accounts, name).await?;
        self.judged.note(Some(name), R::NEEDS, (granted.access(), granted.is_replicator()));
        let reader = self.layer.reader(name).asked_by(granted.asker());
        if !reader.sees_all() {
            self.judged.note_part(reader);
        }
        Ok(R::given(granted))
    }

    /// Whether a database is a replicator database, as of at most a second ago: `_replicator`, or one created as such under a
    /// [name](flatbed_layer::is_replicator_name) like it. For a database that does not exist, whether it would be created as one.
    ///
    /// # Errors
    /// Those of the layer.
    #[boxed]
    pub async fn asks_for_replications(&self, name: &str) -> Result<bool> {
        asks_for_replications(&self.layer, name).await
    }

    /// The rights of who asks as of less than a second ago.
    async fn now(&self) -> std::result::Result<Rights, Denied> {
        let known = self.known();
        if !known.are_old() {
            return Ok(known);
        }
        let now = Box::pin(known.anew(self.watching.accounts(), Fresh::Second)).await?;
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = Some(now.clone());
        Ok(now)
    }

    /// What is known of these.
    fn known(&self) -> Rights {
        let renewed = self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        renewed.as_ref().unwrap_or(&self.rights).clone()
    }

    /// The text of a new password's hash, for a user of a database. It is made in the line in which passwords are checked.
    ///
    /// # Errors
    /// [`SignInError::TooMany`] where there is no room in it.
    #[boxed]
    pub async fn hash_password(&self, password: &str) -> std::result::Result<Vec<u8>, SignInError> {
        let known = self.known();
        known.users.hash_of(password, known.principal().is_admin).await
    }

    /// What tells of the rights that this context gives, from now on or has given, when one of them is lost.
    pub fn rights_watch(&self) -> RightsWatch {
        RightsWatch::new(self.watching.clone(), self.rights.standing.clone(), self.judged.clone())
    }

    /// Makes a session of a user of a database that has channels: for that user, however they have signed in, or for who administers
    /// the database. It goes on for so long from when it is used. `None`: there is no such user, or they are disabled.
    ///
    /// # Errors
    /// [`Denied`].
    #[boxed]
    pub async fn begin_user_session(
        &self,
        database: &str,
        name: &str,
        lasts: Duration,
    ) -> std::result::Result<Option<UserSession>, Denied> {
        let now = self.now().await?;
        let is_own = match now.standing.rests_on() {
            RestsOn::Principal { database: of, name: own, .. } => (&**of, &**own) == (database, name),
            _ if now.principal().name.as_deref() == Some(name) => {
                let user = self.watching.accounts().user_of(database, name, Fresh::Second).await?;
                user.is_some_and(|user| user.principal.signs_in == SignsIn::Account)
            }
            _ => false,
        };
        if !is_own {
            self.database(database, Administer).await?;
        }
        Ok(self.sign_in.begin_session_in(database, name, lasts).await?)
    }

    /// Whose a session of a database is, if it counts, and until when, in milliseconds of Unix time: for who administers it.
    ///
    /// # Errors
    /// [`Denied`].
    #[boxed]
    pub async fn user_session(&self, database: &str, id: &str) -> std::result::Result<Option<(String, u64)>, Denied> {
        self.database(database, Administer).await?;
        let found = self.sign_in.session_in(database, id).await?;
        Ok(found.map(|(session, _)| (session.name, session.ends_at_ms)))
    }

    /// Returns the origin of the client's work in a database, for fair turns.
    pub(crate) fn origin(&self, database: &str) -> Origin {
        Origin { address: self.address, database: database.into() }
    }

    /// Compiles a selector for a feed of a database.
    ///
    /// # Errors
    /// [`SelectorError`].
    #[boxed]
    pub async fn selector(
        &self,
        database: &str,
        selector: Value<'static>,
    ) -> std::result::Result<Selecting, SelectorError> {
        self.feeds.selectors.compile(self.origin(database), selector).await
    }

    /// Builds a projection of documents of a database's feed to these fields.
    pub fn projection(&self, database: &str, fields: Vec<Field>) -> Projection {
        Projection::new(self.origin(database), fields, &self.feeds.selectors)
    }

    pub(crate) fn selectors(&self) -> &Selectors {
        &self.feeds.selectors
    }

    /// The functions of a design document that answer requests; `design`: its name, without `_design/`. It is read now.
    ///
    /// # Errors
    /// [`AnswerError`].
    #[boxed]
    pub async fn design_functions(
        &self,
        database: &Reader,
        design: &str,
    ) -> std::result::Result<DesignFunctions, AnswerError> {
        self.answering.begin(&self.origin(database.name()), database, design).await
    }

    /// A request as functions are given it: `request` is the text of a JSON object that has members, to which is added who
    /// asks, and the database's `_security`.
    ///
    /// # Errors
    /// Those of the layer.
    #[boxed]
    pub async fn request_object(&self, request: Vec<u8>, database: &Reader) -> Result<String> {
        completed(request, &self.known(), database).await
    }

    /// The names, in lower case, of the headers by which a proxy says who asks, as the settings have them now.
    pub fn proxy_headers(&self) -> [String; 3] {
        let settings = self.configuration.now();
        let names = &settings.auth.proxy;
        [names.user_header.clone(), names.roles_header.clone(), names.token_header.clone()]
    }

    /// Begins a feed of a database that was given to whoever asks. Of its rows none is read.
    ///
    /// # Errors
    /// [`FeedError`].
    #[boxed]
    pub async fn feed(&self, database: &Reader, query: FeedQuery) -> std::result::Result<Feed, FeedError> {
        let origin = self.origin(database.name());
        self.feeds.begin(&self.known(), &origin, self.rights_watch(), database, query).await
    }

    /// The server.
    ///
    /// # Errors
    /// [`Denied`]: who asks does not administer it.
    pub async fn server(&self) -> std::result::Result<ServerAdministration<'_>, Denied> {
        let rights = self.now().await?;
        Needs::Server.in_server(rights.principal())?;
        self.judged.note(None, Needs::Server, (Access::Admin, false));
        let (layer, configuration) = (&self.layer, &self.configuration);
        Ok(ServerAdministration { layer, configuration, accounts: self.watching.accounts(), rights })
    }

    /// Which databases there are, for who may know: administrators of the server, or everyone where the setting
    /// `admin_only_all_dbs` is off.
    ///
    /// # Errors
    /// [`Denied`].
    pub async fn databases(&self) -> std::result::Result<Databases<'_>, Denied> {
        if self.configuration.now().auth.admin_only_all_dbs {
            self.server().await?;
        } else {
            // They are still who they were.
            self.now().await?;
        }
        Ok(Databases { layer: &self.layer })
    }

    /// That who asks sees the server's figures, which name nobody's databases.
    ///
    /// # Errors
    /// [`Denied`].
    #[boxed]
    pub async fn metrics(&self) -> std::result::Result<(), Denied> {
        Ok(Needs::Metrics.in_server(self.now().await?.principal())?)
    }
}
