//! Signs in at a peer: sends the password every ten minutes, and a session's cookie in between.
//!
//! Verifying a password costs a server a considerable part of a second of CPU time unless it caches the result; a
//! cookie costs nothing. The cookie is sent in addition to the password, as in CouchDB's replicator. With an expired
//! cookie alone, after a restart or a rotated secret, the request would be anonymous, and an anonymous user may be
//! allowed to read or write less without any error. Servers check the cookie first.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use flatbed_client::encode_segment;
use hyper::StatusCode;
use hyper::header::{self, HeaderMap, HeaderValue};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::endpoint::Endpoint;

const COOKIE: &str = "AuthSession";

/// The longest value of a cookie, in bytes. CouchDB's have about a hundred.
const COOKIE_BYTES_MAX: usize = 4 << 10;

/// The time after which a cookie is renewed if the server does not report its lifetime.
const RENEW: Duration = Duration::from_secs(550);

/// The shortest time after which a cookie is renewed, however short its reported lifetime.
const RENEW_MIN: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cookie {
    /// `AuthSession=VALUE`, for requests.
    value: HeaderValue,
    good_for: Option<Duration>,
}

impl Cookie {
    /// Returns the session that an answer begins or renews.
    pub(crate) fn of(headers: &HeaderMap) -> Option<Cookie> {
        headers.get_all(header::SET_COOKIE).iter().find_map(|line| Cookie::parse(line.to_str().ok()?))
    }

    fn parse(line: &str) -> Option<Cookie> {
        let mut parts = line.split(';').map(|part| part.split_once('=').unwrap_or((part, "")));
        let (name, value) = parts.next()?;
        let is_value = |value: &str| value.bytes().all(|byte| byte.is_ascii_graphic() && !b"\",;\\".contains(&byte));
        let value = value.trim().trim_matches('"');
        if name.trim() != COOKIE || value.is_empty() || value.len() > COOKIE_BYTES_MAX || !is_value(value) {
            return None;
        }
        let mut value = HeaderValue::from_str(&format!("{COOKIE}={value}")).ok()?;
        value.set_sensitive(true);
        let seconds = parts.find(|(name, _)| name.trim().eq_ignore_ascii_case("max-age"));
        let good_for = seconds.and_then(|(_, value)| value.trim().parse().ok()).map(Duration::from_secs);
        Some(Cookie { value, good_for })
    }

    fn renew_after(&self) -> Duration {
        self.good_for.map_or(RENEW, |good_for| (good_for / 10).saturating_mul(9)).clamp(RENEW_MIN, RENEW)
    }
}

#[derive(Debug, Default)]
pub(crate) struct SessionState {
    /// The cookie with its time of renewal.
    cookie: Option<(Cookie, Instant)>,
    /// True if the server has no sessions. Requests then carry the password alone.
    is_refused: bool,
    /// True if the server requires the password in the header before it begins a session.
    is_challenged: bool,
}

/// The next step before a request.
#[derive(Debug)]
pub(crate) enum NextRequest {
    /// Send the request, with this cookie if any, before the password.
    Send(Option<HeaderValue>),
    /// Request a session first; true: with the password in the header.
    Ask(bool),
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SessionReply {
    /// There is a session, or the server has none.
    Settled,
    /// Request again.
    Again,
    /// The name or password is wrong.
    Refused,
}

/// A name and a password at a server.
pub(crate) struct SignIn {
    /// The path of `_session`, beside the database.
    pub(crate) path: String,
    /// The body of that request.
    pub(crate) form: Bytes,
    state: Mutex<SessionState>,
}

impl SignIn {
    /// Returns the sign-in for an endpoint with a password and without a configured cookie.
    pub(crate) fn of(endpoint: &Endpoint) -> Option<SignIn> {
        if endpoint.local_name().is_some() || endpoint.headers.iter().any(|(name, _)| name == header::COOKIE) {
            return None;
        }
        let (_, value) = endpoint.headers.iter().find(|(name, _)| name == header::AUTHORIZATION)?;
        let decoded = BASE64.decode(value.to_str().ok()?.strip_prefix("Basic ")?).ok()?;
        let (name, password) = str::from_utf8(&decoded).ok()?.split_once(':')?;
        // Nothing is sent outside of the configured path, where another server may be.
        let database = endpoint.path();
        let path = format!("{}/_session", database.rsplit_once('/')?.0);
        let form = format!("name={}&password={}", encode_segment(name), encode_segment(password));
        Some(SignIn { path, form: form.into(), state: Mutex::default() })
    }

    /// Locks the state. One request for a session at a time; others wait for its result.
    pub(crate) async fn state(&self) -> MutexGuard<'_, SessionState> {
        self.state.lock().await
    }

    /// Records a cookie that an answer at `now` has renewed.
    pub(crate) async fn renewed(&self, cookie: Cookie, now: Instant) {
        let due = now + cookie.renew_after();
        self.state.lock().await.cookie = Some((cookie, due));
    }
}

impl SessionState {
    pub(crate) fn next(&self, now: Instant) -> NextRequest {
        match &self.cookie {
            _ if self.is_refused => NextRequest::Send(None),
            Some((cookie, due)) if now < *due => NextRequest::Send(Some(cookie.value.clone())),
            _ => NextRequest::Ask(self.is_challenged),
        }
    }

    /// Processes the answer. `is_challenged`: it requires the password in the header.
    pub(crate) fn answered(
        &mut self,
        (status, is_challenged, cookie): (StatusCode, bool, Option<Cookie>),
        now: Instant,
    ) -> SessionReply {
        self.cookie = cookie.filter(|_| status.is_success()).map(|cookie| {
            let due = now + cookie.renew_after();
            (cookie, due)
        });
        match status {
            _ if self.cookie.is_some() => SessionReply::Settled,
            StatusCode::UNAUTHORIZED if is_challenged && !self.is_challenged => {
                self.is_challenged = true;
                SessionReply::Again
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => SessionReply::Refused,
            _ => {
                self.is_refused = true;
                SessionReply::Settled
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;

    fn signing_in(text: &str) -> Option<SignIn> {
        let value = parse(text.as_bytes(), &Limits::default()).unwrap();
        SignIn::of(&Endpoint::parse(Some(&value), "source").unwrap())
    }

    #[test]
    fn who_signs_in_and_where() {
        for (text, path, form) in [
            (r#""http://anna:p%40s%26s@h/db""#, "/_session", "name=anna&password=p%40s%26s"),
            (r#""https://anna:a:b@h/prefix/a%2Fb""#, "/prefix/_session", "name=anna&password=a%3Ab"),
            (
                r#"{"url":"http://h/db","auth":{"basic":{"username":"ä","password":""}}}"#,
                "/_session",
                "name=%C3%A4&password=",
            ),
            (
                r#"{"url":"http://h/db","headers":{"authorization":"Basic YW5uYTpzM2NyZXQ="}}"#,
                "/_session",
                "name=anna&password=s3cret",
            ),
        ] {
            let found = signing_in(text).unwrap();
            assert_eq!((found.path.as_str(), &*found.form), (path, form.as_bytes()), "{text}");
        }
        for text in [
            r#""http://h/db""#,
            r#""db""#,
            r#"{"url":"http://h/db","headers":{"authorization":"Bearer YW5uYTpz"}}"#,
            r#"{"url":"http://h/db","headers":{"authorization":"Basic !"}}"#,
            r#"{"url":"http://h/db","headers":{"authorization":"Basic YQ=="}}"#,
            r#"{"url":"http://anna:x@h/db","headers":{"cookie":"AuthSession=x"}}"#,
        ] {
            assert!(signing_in(text).is_none(), "{text}");
        }
    }

    fn cookie(text: &str) -> Option<(String, Option<u64>)> {
        let mut headers = HeaderMap::new();
        headers.append(header::SET_COOKIE, "other=AuthSession=1".parse().unwrap());
        headers.append(header::SET_COOKIE, text.parse().unwrap());
        let found = Cookie::of(&headers)?;
        Some((found.value.to_str().unwrap().to_owned(), found.good_for.map(|time| time.as_secs())))
    }

    #[test]
    fn cookies() {
        let value = |text: &str| text.to_owned();
        let long = "AuthSession=Y29=; Version=1; Expires=Thu, 01-Jan-1970 00:10:00 GMT; Max-Age=600; Path=/; HttpOnly";
        assert_eq!(cookie(long), Some((value("AuthSession=Y29="), Some(600))));
        assert_eq!(cookie("AuthSession=x"), Some((value("AuthSession=x"), None)));
        assert_eq!(cookie("AuthSession=\"x\";max-age=-1"), Some((value("AuthSession=x"), None)));
        for text in ["AuthSession=; Version=1", "AuthSession", "authsession=x", "AuthSession=a b", "AuthSession=a,b"] {
            assert_eq!(cookie(text), None, "{text}");
        }
        assert_eq!(cookie(&format!("AuthSession={}", "x".repeat(COOKIE_BYTES_MAX + 1))), None);
        let renewed_after = |good_for: Option<u64>| {
            let good_for = good_for.map(Duration::from_secs);
            Cookie { value: HeaderValue::from_static("x"), good_for }.renew_after().as_secs()
        };
        assert_eq!([Some(600), None, Some(0), Some(u64::MAX)].map(renewed_after), [540, 550, 5, 550]);
    }

    type Says = (u16, bool, Option<&'static str>);

    /// Returns the cookie of a request, or an error for a wrong password. Records in `asked` for each request of a
    /// session whether it has the password in the header.
    async fn before_a_request(signing_in: &SignIn, says: &[Says], asked: &mut Vec<bool>) -> Result<Option<String>, ()> {
        let mut state = signing_in.state().await;
        loop {
            match state.next(Instant::now()) {
                NextRequest::Send(cookie) => return Ok(cookie.map(|cookie| cookie.to_str().unwrap().to_owned())),
                NextRequest::Ask(with_password) => {
                    let (status, is_challenged, line) = says.get(asked.len()).or(says.last()).copied().unwrap();
                    asked.push(with_password);
                    let answer = (StatusCode::from_u16(status).unwrap(), is_challenged, line.and_then(Cookie::parse));
                    if state.answered(answer, Instant::now()) == SessionReply::Refused {
                        return Err(());
                    }
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_asked_for_once_and_again_when_it_is_due() {
        let begun = || Ok(Some("AuthSession=a".to_owned()));
        // The answers, the resulting cookies, and the requests for sessions, over two requests.
        type Case = (&'static [Says], Result<Option<String>, ()>, &'static [bool]);
        let cases: [Case; 8] = [
            (&[(200, false, Some("AuthSession=a; Max-Age=100"))], begun(), &[false]),
            (&[(404, false, None)], Ok(None), &[false]),
            (&[(501, false, None)], Ok(None), &[false]),
            (&[(200, false, None)], Ok(None), &[false]),
            (&[(500, false, Some("AuthSession=a"))], Ok(None), &[false]),
            (&[(401, false, None)], Err(()), &[false, false]),
            (&[(401, true, None), (200, false, Some("AuthSession=a"))], begun(), &[false, true]),
            (&[(401, true, None)], Err(()), &[false, true, true]),
        ];
        for (says, sent, how) in cases {
            let (signing_in, mut asked) = (signing_in("\"http://a:b@h/db\"").unwrap(), Vec::new());
            for _ in 0..2 {
                assert_eq!(before_a_request(&signing_in, says, &mut asked).await, sent, "{says:?}");
            }
            assert_eq!(asked, how, "{says:?}");
        }

        let (signing_in, mut asked) = (signing_in("\"http://a:b@h/db\"").unwrap(), Vec::new());
        let says = [(200, false, Some("AuthSession=a; Max-Age=100"))];
        for (wait, count) in [(0, 1), (89, 1), (2, 2), (80, 2)] {
            tokio::time::advance(Duration::from_secs(wait)).await;
            assert_eq!(before_a_request(&signing_in, &says, &mut asked).await, begun());
            assert_eq!(asked.len(), count);
        }
        signing_in.renewed(Cookie::parse("AuthSession=b; Max-Age=100").unwrap(), Instant::now()).await;
        tokio::time::advance(Duration::from_secs(80)).await;
        let sent = before_a_request(&signing_in, &says, &mut asked).await;
        assert_eq!((sent, asked.len()), (Ok(Some("AuthSession=b".to_owned())), 2));
    }
}
