//! Users and roles of a database in Sync Gateway's REST API for administrators: JSON input and output, and refusals.
//!
//! The rules are those recorded in `tests/sync-gateway/`, checked in Sync Gateway's order.

use std::collections::BTreeSet;

use flatbed_flatten::json::{Limits, Object, Value, parse};

use crate::held::HeldChannels;
use crate::name::{GUEST, IllegalChannel, check_channel, cut, is_principal, quoted};

/// The most channels that an administrator may grant to a user or a role.
pub const ADMIN_CHANNELS_MAX: usize = 1_000;

/// The most roles that an administrator may grant to a user.
pub const ADMIN_ROLES_MAX: usize = 100;

const PASSWORD_MIN: usize = 3;

const PASSWORD_BYTES_MAX: usize = 1_000;

const EMAIL_BYTES_MAX: usize = 254;

/// The type of a principal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PrincipalKind {
    /// A user.
    User,
    /// A role.
    Role,
}

/// The type of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrincipalRequest<'a> {
    /// `PUT` of this name.
    Put(&'a str),
    /// `POST`: the name is in the body and must be new.
    Post,
}

/// The body of a request. Unknown members are ignored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PrincipalUpdate {
    name: Option<String>,
    password: Option<String>,
    email: String,
    disabled: bool,
    admin_channels: BTreeSet<String>,
    admin_roles: BTreeSet<String>,
}

/// A user as an administrator defines it. It replaces all earlier settings of administrators except for the password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The name; empty for the guest.
    pub name: String,
    /// The new password; `None` keeps the current one.
    pub password: Option<String>,
    /// The email address, or empty.
    pub email: String,
    /// True if the user is locked out.
    pub disabled: bool,
    /// The granted channels.
    pub admin_channels: BTreeSet<String>,
    /// The granted roles, existing or not.
    pub admin_roles: BTreeSet<String>,
}

/// A role as an administrator defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role {
    /// The name without a prefix.
    pub name: String,
    /// The granted channels.
    pub admin_channels: BTreeSet<String>,
}

/// The reason why a body is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPrincipal {
    /// Invalid JSON, or a member of a wrong type.
    #[error("Invalid JSON: {0}")]
    Json(String),
    /// `POST` without a name.
    #[error("Missing name property")]
    MissingName,
    /// The name in the body differs from that in the path.
    #[error("Name mismatch (can't change name)")]
    OtherName,
    /// `POST` of an existing name.
    #[error("Already exists")]
    Exists,
    /// A new user without a password, or with an empty one.
    #[error("Empty passwords are not allowed ")]
    EmptyPassword,
    /// A password of one or two characters.
    #[error("Passwords must be at least three 3 characters")]
    ShortPassword,
    /// An invalid name of a user or role.
    #[error("Invalid name {}", quoted(.0))]
    Name(String),
    /// An invalid name of a channel.
    #[error(transparent)]
    Channel(#[from] IllegalChannel),
    /// An invalid name of a granted role.
    #[error("Invalid role name {}", quoted(.0))]
    Role(String),
    /// More than the limits allow.
    #[error("Too many or too long: {0}")]
    TooMuch(&'static str),
}

impl InvalidPrincipal {
    /// The status of the answer.
    pub fn status(&self) -> u16 {
        if *self == InvalidPrincipal::Exists { 409 } else { 400 }
    }
}

impl PrincipalUpdate {
    /// Parses a body.
    ///
    /// # Errors
    /// [`InvalidPrincipal::Json`], [`InvalidPrincipal::TooMuch`]
    pub fn parse(body: &[u8]) -> Result<PrincipalUpdate, InvalidPrincipal> {
        let body = parse(body, &Limits::default()).map_err(|error| InvalidPrincipal::Json(error.to_string()))?;
        if !matches!(body, Value::Object(_)) {
            return Err(InvalidPrincipal::Json("must be an object".to_owned()));
        }
        let text = |member: &'static str| match body.get(member) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone().into_owned())),
            Some(_) => Err(InvalidPrincipal::Json(format!("{member} must be a string"))),
        };
        let texts = |member: &'static str, max: usize| {
            let wrong = || InvalidPrincipal::Json(format!("{member} must be an array of strings"));
            match body.get(member) {
                None | Some(Value::Null) => Ok(BTreeSet::new()),
                Some(Value::Array(items)) if items.len() > max => Err(InvalidPrincipal::TooMuch(member)),
                Some(Value::Array(items)) => {
                    items.iter().map(|item| item.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
                }
                Some(_) => Err(wrong()),
            }
        };
        let disabled = match body.get("disabled") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(disabled)) => *disabled,
            Some(_) => return Err(InvalidPrincipal::Json("disabled must be a boolean".to_owned())),
        };
        Ok(PrincipalUpdate {
            name: text("name")?,
            password: text("password")?,
            email: text("email")?.unwrap_or_default(),
            disabled,
            admin_channels: texts("admin_channels", ADMIN_CHANNELS_MAX)?,
            admin_roles: texts("admin_roles", ADMIN_ROLES_MAX)?,
        })
    }

    /// Returns the internal name of the principal, for a lookup of an existing one. The guest always exists.
    ///
    /// # Errors
    /// [`InvalidPrincipal::MissingName`], [`InvalidPrincipal::OtherName`]
    pub fn name(&self, request: PrincipalRequest<'_>, kind: PrincipalKind) -> Result<String, InvalidPrincipal> {
        let name = match (request, &self.name) {
            (PrincipalRequest::Post, None) => return Err(InvalidPrincipal::MissingName),
            (PrincipalRequest::Post, Some(name)) => name,
            (PrincipalRequest::Put(name), Some(other)) if name != other => return Err(InvalidPrincipal::OtherName),
            (PrincipalRequest::Put(name), _) => name,
        };
        Ok(if kind == PrincipalKind::User && name == GUEST { String::new() } else { name.to_owned() })
    }

    /// Returns the user that the request defines. `exists`: a user of the name exists; true for the guest.
    /// `wants_password`: a new user needs a password; false for an account of the server that only gets channels
    /// here.
    pub fn user(
        self,
        request: PrincipalRequest<'_>,
        exists: bool,
        wants_password: bool,
    ) -> Result<User, InvalidPrincipal> {
        let name = self.name(request, PrincipalKind::User)?;
        let exists = exists || name.is_empty();
        if exists && request == PrincipalRequest::Post {
            return Err(InvalidPrincipal::Exists);
        }
        match self.password.as_deref() {
            None if exists || !wants_password => {}
            None | Some("") => return Err(InvalidPrincipal::EmptyPassword),
            Some(password) if password.chars().count() < PASSWORD_MIN => return Err(InvalidPrincipal::ShortPassword),
            Some(password) if password.len() > PASSWORD_BYTES_MAX => return Err(InvalidPrincipal::TooMuch("password")),
            Some(_) => {}
        }
        check_name(&name)?;
        self.admin_channels.iter().try_for_each(|channel| check_channel(channel))?;
        if let Some(role) = self.admin_roles.iter().find(|role| !is_principal(role)) {
            return Err(InvalidPrincipal::Role(cut(role)));
        }
        // As recorded: an invalid address and an empty role are ignored.
        let email = if is_email(&self.email) { self.email } else { String::new() };
        let admin_roles = self.admin_roles.into_iter().filter(|role| !role.is_empty()).collect();
        let PrincipalUpdate { password, disabled, admin_channels, .. } = self;
        // The guest has no password.
        let password = password.filter(|_| !name.is_empty());
        Ok(User { name, password, email, disabled, admin_channels, admin_roles })
    }

    /// Returns the role that the request defines.
    pub fn role(self, request: PrincipalRequest<'_>, exists: bool) -> Result<Role, InvalidPrincipal> {
        let name = self.name(request, PrincipalKind::Role)?;
        if exists && request == PrincipalRequest::Post {
            return Err(InvalidPrincipal::Exists);
        }
        if name.is_empty() {
            return Err(InvalidPrincipal::Name(name));
        }
        check_name(&name)?;
        self.admin_channels.iter().try_for_each(|channel| check_channel(channel))?;
        Ok(Role { name, admin_channels: self.admin_channels })
    }
}

fn check_name(name: &str) -> Result<(), InvalidPrincipal> {
    if is_principal(name) { Ok(()) } else { Err(InvalidPrincipal::Name(cut(name))) }
}

/// Returns whether a text has roughly the form of an address: `name@host`.
fn is_email(text: &str) -> bool {
    let is_of = |text: &str, also: &[u8]| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || also.contains(&byte));
    let Some((name, host)) = text.split_once('@') else { return false };
    text.len() <= EMAIL_BYTES_MAX
        && !name.is_empty()
        && host.len() > 1
        && is_of(name, b"_-+.")
        && is_of(host, b"_-.")
        && !host.starts_with(['-', '.'])
}

/// The output for a user or a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrincipalOutput<'a> {
    /// The name; the guest's is empty.
    pub name: &'a str,
    /// The channels that an administrator has granted.
    pub admin_channels: &'a BTreeSet<String>,
    /// The channels held; for a user with those of roles.
    pub held: &'a HeldChannels,
    /// For a user.
    pub user: Option<UserOutput<'a>>,
}

/// The further output for a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UserOutput<'a> {
    /// The email address, or empty.
    pub email: &'a str,
    /// True if the user is locked out.
    pub disabled: bool,
    /// The roles that an administrator has granted.
    pub admin_roles: &'a BTreeSet<String>,
}

impl PrincipalOutput<'_> {
    /// Writes the JSON text.
    pub fn text(&self) -> Vec<u8> {
        Object::text(|object| {
            object.string("name", if self.name.is_empty() { GUEST } else { self.name });
            if !self.admin_channels.is_empty() {
                object.array("admin_channels").strings(self.admin_channels.iter().map(String::as_str));
            }
            object.array("all_channels").strings(self.held.channels().map(|(name, _)| name));
            let Some(user) = &self.user else { return };
            if !user.email.is_empty() {
                object.string("email", user.email);
            }
            if user.disabled {
                object.bool("disabled", true);
            }
            if !user.admin_roles.is_empty() {
                object.array("admin_roles").strings(user.admin_roles.iter().map(String::as_str));
            }
            if self.held.roles().next().is_some() {
                object.array("roles").strings(self.held.roles().map(|(name, _)| name));
            }
        })
    }
}

#[cfg(test)]
mod tests;
