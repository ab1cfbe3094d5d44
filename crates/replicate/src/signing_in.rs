//! Signing in at a peer: a password is shown once in ten minutes, and a session's cookie in between.
//!
//! To check a password takes a server a good part of a second of its processor, unless it remembers it; a cookie costs
//! nothing. The cookie goes before the password and not in its place, as CouchDB's own replicator has it: a session that has
//! ended, by a restart or a rotated secret, would make a nobody of who sends the cookie alone, and a nobody may be allowed to
//! read or to write less than was meant, without any error. Servers look at the cookie first.

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

/// As CouchDB calls it.
const COOKIE: &str = "AuthSession";

/// The longest value of a cookie: CouchDB's have some hundred bytes.
const COOKIE_BYTES_MAX: usize = 4 << 10;

/// A new cookie is asked for after this where the server does not say how long one is good.
const RENEW: Duration = Duration::from_secs(550);

/// No new cookie is asked for earlier, however short a server says that one is good.
const RENEW_MIN: Duration = Duration::from_secs(5);

/// What an answer says of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cookie {
    /// `AuthSession=VALUE`, for requests.
    value: HeaderValue,
    good_for: Option<Duration>,
}

impl Cookie {
    /// The session that an answer begins or goes on with, if it does.
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

/// How a password is shown to a server.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// With when a new one is due.
    cookie: Option<(Cookie, Instant)>,
    /// The server has no sessions: it is shown the password each time.
    is_refused: bool,
    /// It wants the password in the header as well before it begins one.
    is_challenged: bool,
}

/// What there is to do before a request.
#[derive(Debug)]
pub(crate) enum Next {
    /// To send this cookie, if any, before the password.
    Send(Option<HeaderValue>),
    /// To ask for a session first; true: with the password in the header as well.
    Ask(bool),
}

/// What came of asking for a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// There is one, or there are none at this server.
    Settled,
    /// Once more.
    Again,
    /// The name or the password is wrong.
    Refused,
}

/// A name and a password at a server.
pub(crate) struct SigningIn {
    /// Of `_session`, beside the database.
    pub(crate) path: String,
    /// What is sent there.
    pub(crate) form: Bytes,
    state: Mutex<State>,
}

impl SigningIn {
    /// For who is spoken to with a password, and not with a cookie of their own.
    pub(crate) fn of(endpoint: &Endpoint) -> Option<SigningIn> {
        if endpoint.local_name().is_some() || endpoint.headers.iter().any(|(name, _)| name == header::COOKIE) {
            return None;
        }
        let (_, value) = endpoint.headers.iter().find(|(name, _)| name == header::AUTHORIZATION)?;
        let decoded = BASE64.decode(value.to_str().ok()?.strip_prefix("Basic ")?).ok()?;
        let (name, password) = str::from_utf8(&decoded).ok()?.split_once(':')?;
        // Nothing is sent elsewhere than beneath what was given: before that there may be another's server.
        let database = endpoint.path();
        let path = format!("{}/_session", database.rsplit_once('/')?.0);
        let form = format!("name={}&password={}", encode_segment(name), encode_segment(password));
        Some(SigningIn { path, form: form.into(), state: Mutex::default() })
    }

    /// For who asks for a session, one at a time; others wait for what comes of it.
    pub(crate) async fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().await
    }

    /// An answer that came at that moment has gone on with the session.
    pub(crate) async fn renewed(&self, cookie: Cookie, now: Instant) {
        let due = now + cookie.renew_after();
        self.state.lock().await.cookie = Some((cookie, due));
    }
}

impl State {
    pub(crate) fn next(&self, now: Instant) -> Next {
        match &self.cookie {
            _ if self.is_refused => Next::Send(None),
            Some((cookie, due)) if now < *due => Next::Send(Some(cookie.value.clone())),
            _ => Next::Ask(self.is_challenged),
        }
    }

    /// `is_challenged`: the answer asks for the password in the header.
    pub(crate) fn answered(
        &mut self,
        (status, is_challenged, cookie): (StatusCode, bool, Option<Cookie>),
        now: Instant,
    ) -> Asked {
        self.cookie = cookie.filter(|_| status.is_success()).map(|cookie| {
            let due = now + cookie.renew_after();
            (cookie, due)
        });
        match status {
            _ if self.cookie.is_some() => Asked::Settled,
            StatusCode::UNAUTHORIZED if is_challenged && !self.is_challenged => {
                self.is_challenged = true;
                Asked::Again
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Asked::Refused,
            _ => {
                self.is_refused = true;
                Asked::Settled
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;

    fn signing_in(text: &str) -> Option<SigningIn> {
        let value = parse(text.as_bytes(), &Limits::default()).unwrap();
        SigningIn::of(&Endpoint::parse(Some(&value), "source").unwrap())
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

    /// What a request is sent with, or that the password is wrong; each time that is asked for a session, whether the password
    /// is to be in the header is noted in `asked`.
    async fn before_a_request(
        signing_in: &SigningIn,
        says: &[Says],
        asked: &mut Vec<bool>,
    ) -> Result<Option<String>, ()> {
        let mut state = signing_in.state().await;
        loop {
            match state.next(Instant::now()) {
                Next::Send(cookie) => return Ok(cookie.map(|cookie| cookie.to_str().unwrap().to_owned())),
                Next::Ask(with_password) => {
                    let (status, is_challenged, line) = says.get(asked.len()).or(says.last()).copied().unwrap();
                    asked.push(with_password);
                    let answer = (StatusCode::from_u16(status).unwrap(), is_challenged, line.and_then(Cookie::parse));
                    if state.answered(answer, Instant::now()) == Asked::Refused {
                        return Err(());
                    }
                }
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_session_is_asked_for_once_and_again_when_it_is_due() {
        let begun = || Ok(Some("AuthSession=a".to_owned()));
        // What is answered, what is then sent, and how it was asked by two requests.
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
