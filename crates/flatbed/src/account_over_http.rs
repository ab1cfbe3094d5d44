//! Changes of administrators and users by requests to a running server.

use bytes::Bytes;
use flatbed_auth::users;
use flatbed_client::{Answer, Connection, Url, encode_segment};
use hyper::Method;
use serde_json::{Value, json};

use crate::account::Account;
use crate::output::say;

/// The reason why a change was not made.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AccountError {
    /// The connection or the request failed.
    #[error(transparent)]
    Client(#[from] flatbed_client::Error),
    /// The server has administrators, and the URL names none of them.
    #[error(
        "the server at {0} admits its administrators alone ({1}): give --url http://NAME:PASSWORD@HOST:PORT or FLATBED_URL"
    )]
    Administrators(Url, String),
    /// The server refuses the change.
    #[error("{what}: {status} {text}")]
    Refused {
        /// The account or the database.
        what: String,
        status: u16,
        /// The answer's text.
        text: String,
    },
    /// The account exists already, or does not exist.
    #[error("{0}")]
    Account(String),
    /// The answer is not one of CouchDB's API.
    #[error("the answer of the server at {0} is not one of CouchDB's API")]
    Answer(Url),
}

/// Makes a change at the server, as [`crate::account::account`] makes it in the storage.
///
/// # Errors
/// [`AccountError`].
pub(crate) async fn change(url: &Url, what: Account, password: &str) -> Result<(), AccountError> {
    let mut server = AccountServer { connection: Connection::open(url).await?, url };
    match what {
        Account::ListAdmins => {
            let admins = server.json(Method::GET, ADMINS, "", "administrators").await?;
            admins.as_object().into_iter().flat_map(|admins| admins.keys()).for_each(|name| print(name));
        }
        Account::AddAdmin(name) => {
            let body = Value::from(password).to_string();
            server.json(Method::PUT, &admin_path(&name), &body, &name).await?;
            say!("{name} is an administrator of the server at {url}");
        }
        Account::RemoveAdmin(name) => {
            server.json(Method::DELETE, &admin_path(&name), "", &name).await?;
            say!("{name} is no administrator any more");
        }
        Account::ListUsers => {
            // The range of the ids that begin with `org.couchdb.user:`.
            let path = "/_users/_all_docs?startkey=%22org.couchdb.user%3A%22&endkey=%22org.couchdb.user%3B%22";
            let answer = match server.json(Method::GET, path, "", "_users").await {
                Err(AccountError::Refused { status: 404, .. }) => return Ok(()),
                answer => answer?,
            };
            let rows = answer["rows"].as_array().ok_or_else(|| AccountError::Answer(url.clone()))?;
            rows.iter().filter_map(|row| users::name_in(row["id"].as_str()?)).for_each(print);
        }
        Account::AddUser(name, roles) => {
            if name.contains(char::is_control) {
                return Err(AccountError::Account("a name has no control characters".to_owned()));
            }
            match server.json(Method::PUT, "/_users", "", "_users").await {
                // 412: the database exists.
                Ok(_) | Err(AccountError::Refused { status: 412, .. }) => {}
                Err(error) => return Err(error),
            }
            let user = json!({ "name": name, "roles": roles, "type": "user", "password": password });
            match server.json(Method::PUT, &user_path(&name), &user.to_string(), &name).await {
                Err(AccountError::Refused { status: 409, .. }) => {
                    let text = format!("there is a user {name:?}: flatbed user password gives another password");
                    return Err(AccountError::Account(text));
                }
                written => written?,
            };
            say!("{name} is a user");
        }
        Account::RemoveUser(name) => {
            let user = server.user(&name).await?;
            let rev = user["_rev"].as_str().ok_or_else(|| AccountError::Answer(url.clone()))?;
            let path = format!("{}?rev={}", user_path(&name), encode_segment(rev));
            server.json(Method::DELETE, &path, "", &name).await?;
            say!("{name} is no user any more");
        }
        Account::Password(name) => {
            let mut user = server.user(&name).await?;
            user["password"] = password.into();
            server.json(Method::PUT, &user_path(&name), &user.to_string(), &name).await?;
            say!("{name} has another password: sessions of before have ended");
        }
    }
    Ok(())
}

const ADMINS: &str = "/_node/_local/_config/admins";

fn admin_path(name: &str) -> String {
    format!("{ADMINS}/{}", encode_segment(name))
}

fn user_path(name: &str) -> String {
    format!("/_users/{}", encode_segment(&users::id_of(name)))
}

/// Prints a name. Control characters are replaced: any writer of `_users` chooses names, and this is a terminal.
fn print(name: &str) {
    say!("{}", name.replace(char::is_control, "\u{fffd}"));
}

struct AccountServer<'u> {
    connection: Connection,
    url: &'u Url,
}

impl AccountServer<'_> {
    /// Sends a request about `what`, and returns its JSON.
    async fn json(&mut self, method: Method, path: &str, body: &str, what: &str) -> Result<Value, AccountError> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        let answer: Answer = self.connection.call(method, path, body).await?;
        match answer.status {
            200..=202 => serde_json::from_slice(&answer.body).map_err(|_| AccountError::Answer(self.url.clone())),
            401 => Err(AccountError::Administrators(self.url.clone(), answer.text())),
            status => Err(AccountError::Refused { what: what.to_owned(), status, text: answer.text() }),
        }
    }

    /// Returns a user's document.
    async fn user(&mut self, name: &str) -> Result<Value, AccountError> {
        match self.json(Method::GET, &user_path(name), "", name).await {
            Ok(user @ Value::Object(_)) => Ok(user),
            Ok(_) => Err(AccountError::Answer(self.url.clone())),
            Err(AccountError::Refused { status: 404, .. }) => {
                Err(AccountError::Account(format!("there is no user {name:?}")))
            }
            Err(error) => Err(error),
        }
    }
}
