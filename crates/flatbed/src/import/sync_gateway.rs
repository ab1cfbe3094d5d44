//! Copies one database of a Sync Gateway, by its administrators' port, to the administrators' port of Flatbed.

use flatbed_client::encode_segment;
use hyper::Method;
use serde_json::{Map, Value, json};

use crate::import::database::{self, CopyRoute};
use crate::import::server::{ImportError, Server};
use crate::import::state::{ImportProgress, UnmovedList};

/// The name of the user who has not signed in.
const GUEST: &str = "GUEST";

/// The members of a user or role that an administrator sets, beside the name, which is in the path.
const MEMBERS: &[&str] = &["email", "disabled", "admin_channels", "admin_roles", "account"];

/// Splits `http://host:4985/db` into the server and the name of the database.
pub(crate) fn split(source: &str) -> Result<(&str, String), ImportError> {
    let missing =
        || ImportError::Database("the URL of a Sync Gateway must name a database: http://host:4985/db".into());
    let (server, name) = source.trim_end_matches('/').rsplit_once('/').ok_or_else(missing)?;
    let is_name =
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-$+()".contains(&byte));
    // Behind the two slashes of the scheme is the host.
    if server.ends_with('/') || server.ends_with(':') || !is_name {
        return Err(missing());
    }
    Ok((server, name.to_owned()))
}

/// Copies users, roles, the sync function and documents, and returns what was not moved.
///
/// # Errors
/// [`ImportError`]. The documents copied before remain, and the next run resumes.
pub(crate) async fn import(
    ways: &CopyRoute,
    name: &str,
    progress: &ImportProgress,
) -> Result<UnmovedList, ImportError> {
    let (mut from, mut to) = (ways.from.open(), ways.to.open());
    let database = format!("/{}", encode_segment(name));
    let mut left = UnmovedList::default();
    create(&mut from, &mut to, &database, name, &mut left).await?;
    for kind in ["_role", "_user"] {
        copy_principals((&mut from, &mut to), &format!("{database}/{kind}/"), kind == "_user", &mut left).await?;
    }
    let of_database = progress.begin(name, 0);
    database::documents(ways, name, false, of_database, &mut left).await?;
    progress.end(name);
    left.add(format!("{name}: sessions, and when documents end (_exp): the API does not give them"));
    Ok(left)
}

/// Creates the database with the sync function of the source. One that exists keeps its own.
async fn create(
    from: &mut Server,
    to: &mut Server,
    database: &str,
    name: &str,
    left: &mut UnmovedList,
) -> Result<(), ImportError> {
    let function = sync_function(from, database).await?;
    let body = function.as_ref().map_or_else(|| json!({}), |function| json!({ "sync": function }));
    let answer = to.call(Method::PUT, &format!("{database}/"), &body.to_string()).await?;
    match answer.status {
        200..=202 => Ok(()),
        409 | 412 => {
            if sync_function(to, database).await? != function {
                left.add(format!("{name}: the sync function: the target has another one"));
            }
            Ok(())
        }
        status => {
            let what = format!("creation of {name} at the administrators' port of the target");
            Err(ImportError::Refused { what, status, text: answer.text() })
        }
    }
}

/// Returns the sync function; `None` for the default.
async fn sync_function(server: &mut Server, database: &str) -> Result<Option<String>, ImportError> {
    // Versions 3 and later show functions only on demand.
    let config = server.get(&format!("{database}/_config?include_javascript=true")).await?;
    Ok(config["sync"].as_str().filter(|function| !function.trim().is_empty()).map(str::to_owned))
}

/// Copies users or roles. Users of the target keep their passwords; new users get random ones, which are not recorded.
async fn copy_principals(
    (from, to): (&mut Server, &mut Server),
    list: &str,
    are_users: bool,
    left: &mut UnmovedList,
) -> Result<(), ImportError> {
    let names = from.get(list).await?;
    let mut names: Vec<String> =
        names.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect();
    if are_users && !names.iter().any(|name| name == GUEST) {
        names.push(GUEST.to_owned());
    }
    for name in names {
        let path = format!("{list}{}", encode_segment(&name));
        let Some(found) = from.find(&path).await? else { continue };
        let mut principal = principal(&found);
        if are_users && name != GUEST && principal.get("account") != Some(&Value::Bool(true)) {
            if to.find(&path).await?.is_none() {
                principal.insert("password".to_owned(), random_password()?.into());
            }
            left.add(format!("the password of the user {name}: the API does not give it"));
        }
        if found.get("collection_access").is_some() {
            left.add(format!("{name}: channels of named collections"));
        }
        if let Err(error) = to.put(&path, &Value::Object(principal)).await {
            // The answer to a principal is empty.
            if !matches!(error, ImportError::Answer(_)) {
                left.add(format!("{} {name}: {error}", if are_users { "the user" } else { "the role" }));
            }
        }
    }
    Ok(())
}

/// Returns what an administrator has set of a user or role.
fn principal(found: &Value) -> Map<String, Value> {
    let members = found.as_object().into_iter().flatten();
    let set = members.filter(|(name, value)| MEMBERS.contains(&name.as_str()) && !value.is_null());
    set.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn random_password() -> Result<String, ImportError> {
    let mut random = [0_u8; 24];
    let failed = |_| ImportError::Database("the operating system provides no random numbers".to_owned());
    getrandom::fill(&mut random).map_err(failed)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_names_a_database() {
        assert_eq!(split("http://h:4985/db/").unwrap(), ("http://h:4985", "db".to_owned()));
        assert_eq!(split("http://a:b@h/prefix/db").unwrap(), ("http://a:b@h/prefix", "db".to_owned()));
        for text in ["http://h:4985", "http://h:4985/", "db", "http://h/a.b.c"] {
            assert!(split(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_an_administrator_has_set() {
        let user = json!({ "name": "a", "password": "x", "all_channels": ["!"], "admin_channels": ["A"], "roles": ["r"],
            "admin_roles": ["r"], "disabled": true, "email": null });
        assert_eq!(
            Value::Object(principal(&user)),
            json!({ "admin_channels": ["A"], "admin_roles": ["r"], "disabled": true })
        );
    }
}
