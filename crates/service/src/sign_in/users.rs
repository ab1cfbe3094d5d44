//! Sign-in to databases with channels and users of their own: by a name and a password of the database, as an account
//! of the server, by a session of the database, or as its guest.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use flatbed_auth::lockout::locked_out;
use flatbed_auth::{AuthError, AuthMethod, Credentials, PasswordHash, digest};
use flatbed_layer::channels::{PrincipalSession, SessionHash, SignInUser, SignsIn};
use flatbed_layer::{DatabaseSecurity, Gate, Refusal, User};

use super::audit::{RefusalReason, SignInMethod};
use super::checks::CheckOutcome;
use super::{CHECKS_OF_ONE_MAX, SignIn, digest_of, hex, lock, network, standing_of};
use crate::accounts::Freshness;
use crate::standing::{Claims, RightsBasis, SignInError, Standing};

/// The longest session.
const LASTS_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3_600);

/// The length of a session's id, in hexadecimal digits.
const ID_BYTES: usize = 40;

/// The credentials in a request to a database with users of its own.
#[derive(Debug, Clone, Copy, Default)]
pub struct UserClaims<'a> {
    /// The header `authorization`.
    pub authorization: Option<&'a str>,
    /// The id of a session.
    pub session: Option<&'a str>,
    /// The client's address.
    pub peer: Option<IpAddr>,
}

/// An identified request to a database.
#[derive(Debug, Clone)]
pub struct UserSignIn {
    /// The principal and the basis of its rights.
    pub standing: Standing,
    /// The new end of a session that this request has prolonged, in milliseconds of Unix time.
    pub prolonged_until_ms: Option<u64>,
}

/// The reason why a request to a database is not identified.
#[derive(Debug, Clone, thiserror::Error)]
pub enum UserSignInError {
    /// No credentials, and the guest is not admitted.
    #[error("Login required")]
    LoginRequired,
    /// The session does not exist or has ended.
    #[error("Session Invalid")]
    SessionInvalid,
    /// Other wrong credentials, or a failure.
    #[error(transparent)]
    Other(#[from] SignInError),
}

impl From<flatbed_layer::Error> for UserSignInError {
    fn from(error: flatbed_layer::Error) -> Self {
        UserSignInError::Other(error.into())
    }
}

/// A session that has been created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserSession {
    /// The session's id: 40 random hexadecimal digits. It is a secret, and only its hash is stored.
    pub id: String,
    /// Its end, in milliseconds of Unix time.
    pub ends_at_ms: u64,
}

enum SessionLookup {
    /// A valid session and its user.
    Valid(PrincipalSession, Arc<SignInUser>),
    /// A session of a user who is deleted or disabled.
    WithoutUser,
    /// No session, an ended one, or one from before the user's new password.
    Invalid,
}

/// Allows writes that follow from a proof of identity: a password or a session.
#[derive(Debug)]
struct ProvedGate;

impl Gate for ProvedGate {
    fn judge(&self, _: &DatabaseSecurity) -> Result<(), Refusal> {
        Ok(())
    }
}

fn session_hash(id: &str) -> SessionHash {
    let mut hash = SessionHash::default();
    hash.iter_mut().zip(digest(id)).for_each(|(byte, of)| *byte = of);
    hash
}

fn standing(database: &str, user: &SignInUser, session: Option<SessionHash>) -> Standing {
    let signed_in = match (session, user.principal.name.is_empty()) {
        (Some(_), _) => AuthMethod::Cookie,
        (None, true) => AuthMethod::Not,
        (None, false) => AuthMethod::Password,
    };
    Standing::of_user(
        RightsBasis::Principal {
            database: database.into(),
            incarnation: user.incarnation,
            name: user.principal.name.as_str().into(),
            generation: user.principal.generation,
            session,
        },
        signed_in,
    )
}

impl SignIn {
    /// The current time, in milliseconds since 1970, in whole seconds.
    fn now_ms(&self) -> u64 {
        self.now_s().saturating_mul(1_000)
    }

    pub(crate) async fn identify_in(
        &self,
        database: &str,
        claims: &UserClaims<'_>,
    ) -> Result<UserSignIn, UserSignInError> {
        let found = |standing| Ok(UserSignIn { standing, prolonged_until_ms: None });
        let others = Claims { authorization: claims.authorization, peer: claims.peer, ..Claims::default() };
        if let Some(authorization) = claims.authorization {
            if let Some(standing) = self.by_token(authorization, &others).await? {
                return found(standing);
            }
            match Credentials::of_header(authorization) {
                Ok(Some(credentials)) => return found(self.by_name(database, &credentials, &others).await?),
                Ok(None) => {}
                // A header without a name and a password counts as no credentials.
                Err(refused) if refused.kind == flatbed_auth::AuthErrorKind::BadRequest => {}
                Err(refused) => return Err(SignInError::from(refused).into()),
            }
        }
        if let Some(id) = claims.session {
            // A session of a deleted or disabled user counts as no credentials.
            if let Some(identified) = self.by_session(database, id).await? {
                return Ok(identified);
            }
        }
        match self.accounts.user_of(database, "", Freshness::Second).await? {
            Some(guest) if !guest.principal.is_disabled => found(standing(database, &guest, None)),
            _ => Err(UserSignInError::LoginRequired),
        }
    }

    /// Signs in by a name and a password: as a user of the database who has a password there, otherwise as an
    /// account.
    async fn by_name(
        &self,
        database: &str,
        credentials: &Credentials,
        claims: &Claims<'_>,
    ) -> Result<Standing, SignInError> {
        let name = &credentials.name;
        let is_named = |user: &Arc<SignInUser>| matches!(user.principal.signs_in, SignsIn::Password(_));
        let find = |fresh| async move {
            // The guest's name is empty, and the guest has no password.
            if name.is_empty() {
                return Err(SignInError::from(AuthError::wrong_password()));
            }
            Ok(self.accounts.user_of(database, name, fresh).await?)
        };
        let came = self.clock().now();
        let Some(mut user) = find(Freshness::Second).await?.filter(is_named) else {
            let found = self.by_password(credentials, claims, SignInMethod::Basic).await?;
            return standing_of(&found, AuthMethod::Password).ok_or_else(|| AuthError::wrong_password().into());
        };
        // The user is not the account of that name, nor a user of another database.
        let whose = format!("{database}\0{name}");
        let shown = format!("{database}/{name}");
        let password = &credentials.password;
        let digest = digest_of("user", &[database, &user.incarnation.to_string(), name, password]);
        let in_line = Credentials { name: whose.clone(), password: password.clone() };
        for _ in 0..CHECKS_OF_ONE_MAX {
            let hash = self.hash_of(&user);
            if lock(&self.known).is_right(&digest, &whose, &hash) && !user.principal.is_disabled {
                return Ok(standing(database, &user, None));
            }
            match self.check(&in_line, digest, &hash, network(claims.peer)).await {
                CheckOutcome::Right if !user.principal.is_disabled => {
                    self.audit.signed_in(SignInMethod::Basic, &shown, claims.peer);
                    lock(&self.known).insert(digest, whose, hash);
                    return Ok(standing(database, &user, None));
                }
                CheckOutcome::Right | CheckOutcome::Wrong => {}
                CheckOutcome::LockedOut => {
                    self.audit.refused(RefusalReason::LockedOut, &shown, claims.peer);
                    return Err(locked_out().into());
                }
                CheckOutcome::NoRoom => {
                    self.audit.refused(RefusalReason::TooMany, &shown, claims.peer);
                    return Err(SignInError::TooMany);
                }
            }
            // Another process may have changed the user less than a second ago.
            let Some(now) = find(Freshness::Since(came)).await?.filter(is_named) else { break };
            let is_same = now.principal.generation == user.principal.generation;
            user = now;
            if is_same {
                break;
            }
        }
        self.audit.refused(RefusalReason::Wrong, &shown, claims.peer);
        Err(AuthError::wrong_password().into())
    }

    /// Returns the hash of a user's password. An unreadable hash, or one with too many iterations, matches no
    /// password.
    fn hash_of(&self, user: &SignInUser) -> PasswordHash {
        let iterations_max = self.configuration.now().auth.max_iterations;
        let hash = match &user.principal.signs_in {
            SignsIn::Password(text) => std::str::from_utf8(text).ok().and_then(|text| PasswordHash::parse(text).ok()),
            SignsIn::Not | SignsIn::Account => None,
        };
        let hash = hash.filter(|hash| hash.iterations() <= iterations_max);
        hash.unwrap_or_else(PasswordHash::of_nothing)
    }

    /// Signs in by a session of the database, and prolongs it after a tenth of its time. `None`: its user is deleted
    /// or disabled.
    async fn by_session(&self, database: &str, id: &str) -> Result<Option<UserSignIn>, UserSignInError> {
        let (session, user) = match self.find_session(database, id).await? {
            SessionLookup::Valid(session, user) => (session, user),
            SessionLookup::WithoutUser => return Ok(None),
            SessionLookup::Invalid => return Err(UserSignInError::SessionInvalid),
        };
        let now = self.now_ms();
        let left = u128::from(session.ends_at_ms.saturating_sub(now)) * 10;
        let mut prolonged_until_ms = None;
        if left < u128::from(session.lasts_ms) * 9 {
            let ends_at_ms = now.saturating_add(session.lasts_ms);
            let proved = User::default().through(Arc::new(ProvedGate));
            let prolonged = self.layer.0.database(database, proved);
            if prolonged.prolong_principal_session(&session_hash(id), ends_at_ms).await? {
                prolonged_until_ms = Some(ends_at_ms);
            }
        }
        let standing = standing(database, &user, Some(session_hash(id)));
        Ok(Some(UserSignIn { standing, prolonged_until_ms }))
    }

    pub(crate) async fn session_in(
        &self,
        database: &str,
        id: &str,
    ) -> flatbed_layer::Result<Option<(PrincipalSession, Arc<SignInUser>)>> {
        Ok(match self.find_session(database, id).await? {
            SessionLookup::Valid(session, user) => Some((session, user)),
            SessionLookup::WithoutUser | SessionLookup::Invalid => None,
        })
    }

    async fn find_session(&self, database: &str, id: &str) -> flatbed_layer::Result<SessionLookup> {
        if id.len() != ID_BYTES || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(SessionLookup::Invalid);
        }
        let session = self.layer.0.reader(database).principal_session(&session_hash(id)).await?;
        let Some(session) = session.filter(|session| self.now_ms() < session.ends_at_ms) else {
            return Ok(SessionLookup::Invalid);
        };
        let mut user = self.accounts.user_of(database, &session.name, Freshness::Second).await?;
        if user.as_ref().is_none_or(|user| user.principal.generation < session.generation) {
            // The user may have been created a moment ago.
            user = self.accounts.user_of(database, &session.name, Freshness::Since(self.clock().now())).await?;
        }
        Ok(match user.filter(|user| !user.principal.is_disabled) {
            None => SessionLookup::WithoutUser,
            Some(user) if user.principal.generation == session.generation && !session.name.is_empty() => {
                SessionLookup::Valid(session, user)
            }
            Some(_) => SessionLookup::Invalid,
        })
    }

    /// Creates a session of a user of a database; the caller has checked the right to. Each use prolongs it by
    /// `lasts`. `None`: the user does not exist or is disabled.
    pub(crate) async fn begin_session_in(
        &self,
        database: &str,
        name: &str,
        lasts: Duration,
    ) -> flatbed_layer::Result<Option<UserSession>> {
        if name.is_empty() {
            return Ok(None);
        }
        let user = self.accounts.user_of(database, name, Freshness::Since(self.clock().now())).await?;
        let Some(user) = user else { return Ok(None) };
        let mut random = [0; ID_BYTES / 2];
        getrandom::fill(&mut random).map_err(|_| flatbed_layer::Error::NoRandomness)?;
        let id = hex(&random);
        let lasts_ms = lasts.min(LASTS_MAX).as_millis() as u64;
        let ends_at_ms = self.now_ms().saturating_add(lasts_ms);
        let generation = user.principal.generation;
        let session = PrincipalSession { name: name.to_owned(), generation, ends_at_ms, lasts_ms };
        let proved = User::default().through(Arc::new(ProvedGate));
        let begun =
            self.layer.0.database(database, proved).begin_principal_session(&session_hash(&id), &session).await?;
        Ok(begun.then_some(UserSession { id, ends_at_ms }))
    }

    pub(crate) async fn end_session_in(&self, database: &str, id: &str) -> flatbed_layer::Result<()> {
        if id.len() != ID_BYTES {
            return Ok(());
        }
        let proved = User::default().through(Arc::new(ProvedGate));
        self.layer.0.database(database, proved).end_principal_session(&session_hash(id)).await
    }
}

#[cfg(test)]
mod tests;
