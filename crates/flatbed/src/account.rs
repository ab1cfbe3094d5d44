//! `flatbed admin` and `flatbed user`: changes of administrators and users, in the storage itself or by a running
//! server.

use std::io::{self, BufRead, IsTerminal, Write};

use fdb_embedded::OpenError;
use flatbed_auth::{PasswordHash, SALT_BYTES, users};
use flatbed_client::Url;
use flatbed_layer::json::{self, Limits, Value};
use flatbed_layer::{
    AllDocsQuery, Authority, CreateOptions, Database, Document, Edit, Error, GetOptions, Layer, NotFound, Refusal,
    USERS,
};
use flatbed_service::configuration::{ADMINS, ChangedBy, Configuration, Source, Values};

use crate::config_file::ConfigFile;
use crate::output::say;
use crate::settings::Settings;
use crate::storage::{Storage, StorageError};
use crate::{account_over_http, data_directory};

/// The longest password, in bytes.
const PASSWORD_BYTES_MAX: u64 = 4_096;

/// The change to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Account {
    ListAdmins,
    /// Add an administrator, or change the password of one.
    AddAdmin(String),
    RemoveAdmin(String),
    ListUsers,
    AddUser(String, Vec<String>),
    RemoveUser(String),
    /// Change the password of a user.
    Password(String),
}

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// The servers that a command names.
#[derive(Debug)]
pub(crate) struct NamedServers {
    /// `--url`: the server that makes the change, in place of the storage.
    pub url: Option<Url>,
    /// `FLATBED_URL`, for its name and password.
    pub of_environment: Option<Url>,
}

/// Returns the values of `_config` in the configuration file, without administrators.
fn values(config: &ConfigFile) -> Result<Values> {
    let mut values = Values::default();
    for ((section, key), text) in &config.sections {
        let inserted = values.insert(section, key, text, Source::File);
        inserted.map_err(|error| format!("{section}.{key} in the configuration file: {error}"))?;
    }
    Ok(values)
}

/// Makes a change, in the storage of the settings or, if `--url` names one, by a server. If a server of this machine
/// has the embedded engine's directory open, that server makes the change. Passwords are read from stdin; a terminal is
/// prompted for them.
///
/// # Errors
/// If the storage cannot be opened or written, the server refuses the change, the account does not exist, or it exists
/// already.
pub(crate) async fn account(
    what: Account,
    servers: NamedServers,
    settings: &Settings,
    config: Option<&ConfigFile>,
) -> Result<()> {
    let password = match &what {
        Account::AddAdmin(_) | Account::AddUser(..) | Account::Password(_) => Some(password()?),
        _ => None,
    };
    let password = password.unwrap_or_default();
    if let Some(url) = &servers.url {
        return Ok(account_over_http::change(url, what, &password).await?);
    }
    let storage = match Storage::open(settings).await {
        Err(StorageError::InUse(OpenError::InUse(directory))) => {
            let Some(url) = data_directory::server_of(&directory) else {
                let directory = directory.display();
                return Err(format!("{directory} is in use by another process: give --url URL of its server").into());
            };
            let has_same_address = |named: &Url| named.authority() == url.authority();
            let url = servers.of_environment.filter(has_same_address).unwrap_or(url);
            return Ok(account_over_http::change(&url, what, &password).await?);
        }
        storage => storage?,
    };
    let of_file = config.map(values).transpose()?.unwrap_or_default();
    let (layer, authority) = Layer::open(storage.database(), settings.layer_options(), None).await?;
    let done = change(&layer, &authority, what, password, of_file).await;
    layer.shutdown();
    drop((layer, authority));
    storage.close();
    done
}

/// Makes a change in the storage. `of_file`: the values of `_config` in the configuration file.
async fn change(layer: &Layer, authority: &Authority, what: Account, password: String, of_file: Values) -> Result<()> {
    let users = layer.database(USERS, authority.for_job("accounts"));
    let actor = authority.for_job("settings").into();
    let by = ChangedBy { actor: &actor, name: Some("the command line"), from: None };
    let configuration = async || Configuration::once(layer.clone(), Values::default()).await;
    match what {
        Account::ListAdmins => {
            let now = configuration().await?.now();
            now.admins.keys().for_each(|name| say!("{name}"));
        }
        Account::AddAdmin(name) => {
            configuration().await?.set(ADMINS, &name, &password, by).await?;
            say!("{name} is an administrator: servers that run know it within a second");
        }
        Account::RemoveAdmin(name) => {
            let removed = configuration().await?.remove(ADMINS, &name, by).await;
            removed.map_err(|error| format!("{name}: {error}"))?;
            say!("{name} is no administrator any more");
        }
        Account::ListUsers => list(&users).await?,
        Account::AddUser(name, roles) => {
            if find(&users, &name).await?.is_some_and(|document| !document.deleted) {
                return Err(format!("there is a user {name:?}: flatbed user password gives another password").into());
            }
            let roles = roles.into_iter().map(|role| Value::String(role.into())).collect();
            let members = vec![
                ("name".into(), Value::String(name.clone().into())),
                ("roles".into(), Value::Array(roles)),
                ("type".into(), Value::String("user".into())),
            ];
            check(&name, &members)?;
            check_password(layer, of_file, &password).await?;
            match users.create(&CreateOptions::default()).await {
                Ok(()) | Err(Error::DatabaseExists) => {}
                Err(error) => return Err(error.into()),
            }
            write(&users, &name, hash(&password)?.put_into(members)).await?;
            say!("{name} is a user");
        }
        Account::RemoveUser(name) => {
            let Some(document) = find(&users, &name).await?.filter(|document| !document.deleted) else {
                return Err(format!("there is no user {name:?}").into());
            };
            let edit = Edit {
                expiry: None,
                id: document.id.into(),
                parent: Some(document.rev),
                history: None,
                deleted: true,
                attachments: Vec::new(),
                body: Value::Object(Vec::new()),
            };
            users.update(&edit).await?;
            say!("{name} is no user any more");
        }
        Account::Password(name) => {
            let Some(document) = find(&users, &name).await?.filter(|document| !document.deleted) else {
                return Err(format!("there is no user {name:?}").into());
            };
            check_password(layer, of_file, &password).await?;
            let text = [b"{", &document.body[..], b"}"].concat();
            let Value::Object(members) = json::parse(&text, &Limits::default())? else {
                return Err("no object".into());
            };
            write(&users, &name, hash(&password)?.put_into(members)).await?;
            say!("{name} has another password: sessions of before have ended");
        }
    }
    Ok(())
}

async fn find(users: &Database, name: &str) -> Result<Option<Document>> {
    let options = GetOptions { tombstone: true, ..GetOptions::default() };
    match users.get(&users::id_of(name), &options).await {
        Ok(document) => Ok(Some(document)),
        Err(Error::DatabaseNotFound | Error::Refused(Refusal::DocumentNotFound(NotFound::Missing))) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Writes a user's document over its current winner.
async fn write(users: &Database, name: &str, members: Vec<(std::borrow::Cow<'_, str>, Value<'_>)>) -> Result<()> {
    let parent = find(users, name).await?.map(|document| document.rev);
    let (id, body) = (users::id_of(name).into(), Value::Object(members));
    users
        .update(&Edit { expiry: None, id, parent, history: None, deleted: false, attachments: Vec::new(), body })
        .await?;
    Ok(())
}

/// Checks a user's document as over HTTP, and that the name can sign in.
fn check(name: &str, members: &[(std::borrow::Cow<'_, str>, Value<'_>)]) -> Result<()> {
    if name.contains(char::is_control) {
        return Err("a name has no control characters".into());
    }
    let (id, body) = (users::id_of(name), Value::Object(members.to_vec()));
    let write = users::Write { id: &id, is_deleted: false, body: &body, old: None };
    let actor = users::Actor { name: None, is_server_admin: true, is_admin: true };
    Ok(users::validate(&write, &actor).map_err(|refused| refused.reason.into_owned())?)
}

/// Checks a new password of a user as a server with these settings does.
async fn check_password(layer: &Layer, of_file: Values, password: &str) -> Result<()> {
    let settings = Configuration::once(layer.clone(), of_file).await?.now();
    Ok(settings.auth.password_rules.check(password)?)
}

async fn list(users: &Database) -> Result<()> {
    let query = AllDocsQuery::default();
    let mut rows = users.all_docs(query);
    loop {
        let page = match rows.next_page().await {
            Ok(Some(page)) => page,
            Ok(None) | Err(Error::DatabaseNotFound) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // Escaped: any writer of `_users` chooses names, and this is a terminal.
        let names = page.iter().filter_map(|row| users::name_in(&row.id));
        names.for_each(|name| say!("{}", name.replace(char::is_control, "\u{fffd}")));
    }
}

fn hash(password: &str) -> Result<PasswordHash> {
    let mut random = [0; SALT_BYTES];
    getrandom::fill(&mut random).map_err(|error| error.to_string())?;
    Ok(PasswordHash::new(password, &random))
}

/// Reads the first line of stdin. A terminal is prompted, without echo.
fn password() -> Result<String> {
    let mut line = String::new();
    let stdin = io::stdin();
    let hidden = stdin.is_terminal().then(EchoGuard::begin);
    let mut limited = io::Read::take(stdin.lock(), PASSWORD_BYTES_MAX);
    limited.read_line(&mut line)?;
    if hidden.is_some() {
        eprintln!();
    }
    let password = line.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        Err("the password is read from stdin, which is empty".into())
    } else {
        Ok(password.to_owned())
    }
}

/// Turns off a terminal's echo until it is dropped.
struct EchoGuard(Option<libc::termios>);

impl EchoGuard {
    fn begin() -> EchoGuard {
        eprint!("Password: ");
        let _ = io::stderr().flush();
        // SAFETY: all bytes of the struct may be zero; the call fills it in.
        let mut shown: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: the pointer is to a struct of the kind that the call fills in.
        if unsafe { libc::tcgetattr(libc::STDIN_FILENO, &mut shown) } != 0 {
            return EchoGuard(None);
        }
        let mut hidden = shown;
        hidden.c_lflag &= !libc::ECHO;
        // SAFETY: the pointer is to a struct of the kind that the call reads.
        unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, &hidden) };
        EchoGuard(Some(shown))
    }
}

impl Drop for EchoGuard {
    fn drop(&mut self) {
        if let Some(shown) = &self.0 {
            // SAFETY: as above.
            unsafe { libc::tcsetattr(libc::STDIN_FILENO, libc::TCSANOW, shown) };
        }
    }
}
