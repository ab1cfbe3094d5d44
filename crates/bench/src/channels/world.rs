//! A server with an administrator, whose users sign in by tokens, and the operations of all parts.

use std::{
    io,
    net::SocketAddr,
    path::Path,
    time::{Duration, Instant},
};

use base64::{
    Engine,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use hyper::{Method, header};
use ring::hmac;
use serde_json::{Value, json};

use super::{ChannelsError, Result};
use crate::{
    access::{ADMIN, JWT_SECRET},
    documents,
    server::Server,
    way::{Way, WayError, together},
};

/// The connections that fill databases.
const FILLING: usize = 8;

/// The documents of a request that fills.
const BATCH: u64 = 1_000;

/// A server, and the ways to access it.
pub(super) struct World {
    pub server: Server,
    /// The administrator's access.
    pub admin: Way,
    /// The access to Sync Gateway's port for administrators, if it is served.
    inner: Option<Way>,
}

/// Returns a user's `authorization`: a token that needs no user record, valid until 2100.
pub(super) fn token(name: &str) -> String {
    let part = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let head = part(json!({"alg": "HS256", "typ": "JWT", "kid": "bench"}));
    let signed = format!("{head}.{}", part(json!({"sub": name, "exp": 4_102_444_800_u64})));
    let key = hmac::Key::new(hmac::HMAC_SHA256, &STANDARD.decode(JWT_SECRET).unwrap_or_default());
    format!("Bearer {signed}.{}", URL_SAFE_NO_PAD.encode(hmac::sign(&key, signed.as_bytes())))
}

impl World {
    /// Starts a server on the data in the directory. Without Sync Gateway's port for administrators, which creates
    /// users, the main port gets twice as many connections.
    pub(super) async fn start(
        binary: &Path,
        directory: &Path,
        has_inner: bool,
        variables: &[(&str, &str)],
    ) -> Result<World> {
        let config = directory.join("flatbed.toml");
        let text = format!(
            "[admins]\nadmin = \"secret\"\n\n[limits]\nrequests_by_user = 0\nrequests_by_address = 0\n\n\
             [jwt_auth]\nalgorithms = \"HS256\"\n\n[jwt_keys]\n\"hmac:bench\" = \"{JWT_SECRET}\"\n"
        );
        std::fs::write(&config, text)?;
        let inner = Server::free_address()?;
        let (config, listen) = (config.to_string_lossy().into_owned(), inner.to_string());
        let mut all = vec![("FLATBED_CONFIG", config.as_str())];
        if has_inner {
            all.push(("FLATBED_ADMIN_LISTEN", listen.as_str()));
        }
        all.extend_from_slice(variables);
        let server = Server::flatbed_with(binary, &directory.join("data"), &all).await?;
        let address: SocketAddr = server.url.authority().parse().map_err(io::Error::other)?;
        let admin = Way { address, tls: None, says: Some((header::AUTHORIZATION, ADMIN.to_owned())) };
        Ok(World { server, admin, inner: has_inner.then_some(Way { address: inner, tls: None, says: None }) })
    }

    /// Returns a user's access.
    pub(super) fn user(&self, name: &str) -> Way {
        Way { says: Some((header::AUTHORIZATION, token(name))), ..self.admin.clone() }
    }

    /// The server's process.
    pub(super) fn pid(&self) -> u32 {
        self.server.pid().unwrap_or_default()
    }

    pub(super) async fn stop(self) -> Result<()> {
        Ok(self.server.stop().await?)
    }

    /// Creates a database by a body that says whether it has channels. Every named user is its member.
    pub(super) async fn make(&self, database: &str, body: &Value) -> Result<()> {
        let mut admin = self.admin.open().await?;
        admin.call(Method::DELETE, database, String::new()).await?;
        admin.expect(Method::PUT, database, body.to_string()).await?;
        admin.expect(Method::PUT, &format!("{database}/_security"), "{}".to_owned()).await?;
        Ok(())
    }

    /// Creates users of a database, numbered from 0 on, or changes their grants.
    pub(super) async fn put_users(
        &self,
        database: &str,
        count: u64,
        user: impl Fn(u64) -> (String, Value) + Clone + 'static,
    ) -> Result<()> {
        let base = format!("{database}/_user/");
        let put = async move |open: &mut crate::way::OpenConnection, number: u64| {
            if number >= count {
                return Ok::<_, WayError>(false);
            }
            let (name, mut body) = user(number);
            body["name"] = json!(name);
            body["account"] = json!(true);
            open.expect(Method::PUT, &format!("{base}{name}"), body.to_string()).await?;
            Ok(true)
        };
        let no_port = || ChannelsError::Wrong("users cannot be made: the port for it is not served".to_owned());
        together(self.inner.as_ref().ok_or_else(no_port)?, FILLING, put).await?;
        Ok(())
    }

    /// Writes documents of these numbers, each with these members beside `_id`. Returns the duration.
    pub(super) async fn fill(
        &self,
        database: &str,
        count: u64,
        document: impl Fn(u64) -> String + Clone + 'static,
    ) -> Result<Duration> {
        let (path, begun) = (format!("{database}/_bulk_docs"), Instant::now());
        let put = async move |open: &mut crate::way::OpenConnection, batch: u64| {
            let numbers = batch * BATCH..count.min((batch + 1) * BATCH);
            if numbers.is_empty() {
                return Ok::<_, ChannelsError>(false);
            }
            let docs: Vec<String> =
                numbers.map(|number| with(&document(number), &json!({"_id": documents::id(number)}))).collect();
            let body = format!("{{\"docs\":[{}]}}", docs.join(","));
            let (answer, _) = open.expect(Method::POST, &path, body).await?;
            if let Some(at) = memchr::memmem::find(&answer, b"\"error\"") {
                let text = String::from_utf8_lossy(&answer[at.saturating_sub(100)..]).chars().take(300).collect();
                return Err(ChannelsError::Wrong(text));
            }
            Ok(true)
        };
        together(&self.admin, FILLING, put).await?;
        Ok(begun.elapsed())
    }
}

/// Returns the text of a JSON object with further members before its own.
pub(super) fn with(object: &str, members: &Value) -> String {
    let members = members.to_string();
    let (Some(first), Some(rest)) = (members.strip_suffix('}'), object.strip_prefix('{')) else {
        return object.to_owned();
    };
    let comma = if rest.starts_with('}') { "" } else { "," };
    format!("{first}{comma}{rest}")
}

/// Returns a document of the load in these channels.
pub(super) fn in_channels(number: u64, channels: &[String]) -> String {
    with(&documents::text(number, false), &json!({ "channels": channels }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_stand_before_others() {
        assert_eq!(with("{}", &json!({"a": 1})), r#"{"a":1}"#);
        assert_eq!(with(r#"{"b":2}"#, &json!({"a": [1]})), r#"{"a":[1],"b":2}"#);
        let document: Value = serde_json::from_str(&in_channels(7, &["A".to_owned()])).unwrap();
        assert_eq!((&document["channels"][0], document["group"].is_u64()), (&json!("A"), true));
    }
}
