//! Recorded scenarios: one request on each line, with placeholders for values of earlier answers.
//! `tests/syncstorage/README.md` describes the lines.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use flatbed_clock::ManualClock;
use flatbed_firefox::hawk::HawkAuthority;
use hyper::Request;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::Value;

use crate::signing::{Credentials, Signing};
use crate::support::{Answer, SECRET, send};

/// The clock's step before each request. Two writes within a hundredth of a second would have times ahead of the clock.
const PAUSE: Duration = Duration::from_millis(25);

/// A running scenario: one user's requests to servers whose clock it moves.
pub struct Script {
    address: SocketAddr,
    /// A server that trusts `Forwarded`.
    forwarded: SocketAddr,
    clock: ManualClock,
    uid: u64,
    answers: Vec<Answer>,
    last_authorization: Option<String>,
}

/// A parsed request.
struct Line {
    method: String,
    target: String,
    auth: String,
    headers: Vec<(String, String)>,
    body: Option<Vec<u8>>,
}

impl Script {
    pub fn new(address: SocketAddr, forwarded: SocketAddr, clock: ManualClock) -> Script {
        let mut random = [0; 4];
        getrandom::fill(&mut random).unwrap();
        let uid = 100_000_000 + u64::from(u32::from_le_bytes(random)) / 2;
        Script { address, forwarded, clock, uid, answers: Vec::new(), last_authorization: None }
    }

    /// Sends a line's request; `None` for a line that waits.
    pub async fn step(&mut self, line: &str) -> Option<Answer> {
        let answer = self.try_step(line).await?;
        self.answers.push(answer.clone());
        Some(answer)
    }

    /// Sends a line's request. Later lines cannot name its answer.
    pub async fn try_step(&mut self, line: &str) -> Option<Answer> {
        if let Some(seconds) = line.strip_prefix("wait ") {
            self.clock.advance(Duration::from_secs_f64(seconds.parse().unwrap()));
            return None;
        }
        self.clock.advance(PAUSE);
        let line = self.parse(line);
        let kind = line.headers.iter().find(|(name, _)| name == "content-type").map_or("", |(_, kind)| kind.as_str());
        let address =
            if line.headers.iter().any(|(name, _)| name == "forwarded") { self.forwarded } else { self.address };
        let is_signed = line.target.starts_with("/1.5/") || !line.auth.is_empty();
        let body = line.body.as_deref().unwrap_or_default();
        let authorization = if is_signed { self.sign(&line, address, kind, body) } else { None };
        let mut request = Request::builder().method(line.method.as_str()).uri(line.target.as_str());
        if !line.headers.iter().any(|(name, _)| name == "host") {
            request = request.header("host", address.to_string());
        }
        for (name, value) in line.headers.iter().filter(|(_, value)| value != "-") {
            let name = HeaderName::try_from(name.as_str()).unwrap();
            request = request.header(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        if let Some(authorization) = authorization {
            request = request.header("authorization", &authorization);
            self.last_authorization = Some(authorization);
        }
        Some(send(address, request.body(Bytes::from(line.body.unwrap_or_default()).into()).unwrap()).await)
    }

    fn parse(&self, line: &str) -> Line {
        let begin = body_begin(line);
        let (head, body) = line.split_at(begin.unwrap_or(line.len()));
        let mut words = head.trim_end().split(' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let mut auth = String::new();
        let mut headers = Vec::new();
        for word in words {
            let (name, value) = word.split_once('=').unwrap();
            let value = self.fill(&value.replace('␣', " "));
            if name == "auth" { auth = value } else { headers.push((name.to_owned(), value)) }
        }
        let path = self.fill(path);
        let target = match path.strip_prefix('~') {
            Some(rest) => format!("/1.5/{}{rest}", self.uid),
            None => path,
        };
        let body = begin.map(|_| {
            let body = self.fill(body);
            match body.strip_prefix('@') {
                Some(text) => text.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t").into_bytes(),
                None => body.into_bytes(),
            }
        });
        if body.is_some() && !headers.iter().any(|(name, _)| name == "content-type") {
            headers.push(("content-type".to_owned(), "application/json".to_owned()));
        }
        Line { method: method.to_owned(), target: quoted(&target), auth, headers, body }
    }

    /// Returns the header `Authorization` that the line asks for.
    fn sign(&self, line: &Line, address: SocketAddr, kind: &str, body: &[u8]) -> Option<String> {
        if line.auth == "-" {
            return None;
        }
        if let Some(raw) = line.auth.strip_prefix("raw:") {
            return Some(raw.to_owned());
        }
        if line.auth == "replay" {
            return self.last_authorization.clone();
        }
        let words: Vec<(&str, &str)> =
            line.auth.split(',').map(|word| word.split_once(':').unwrap_or((word, ""))).collect();
        let word = |name: &str| words.iter().find(|(found, _)| *found == name).map(|(_, value)| *value);
        let seconds = match (word("expires"), word("expired")) {
            (Some(seconds), _) => seconds.parse().unwrap(),
            (None, Some(_)) => -1,
            (None, None) => 3_600_i64,
        };
        let secret = if word("secret").is_some() { "another secret" } else { SECRET };
        let uid = if word("uid2").is_some() { self.uid + 1 } else { self.uid };
        let now = i64::try_from(self.clock.clock().unix_seconds()).unwrap();
        let mut credentials = Credentials::new(secret, uid, now + seconds);
        if word("key").is_some() {
            credentials.key.replace_range(..1, if credentials.key.starts_with('k') { "l" } else { "k" });
        }
        if let Some(id) = word("id") {
            credentials.id = id.to_owned();
        }
        if word("cut").is_some() {
            credentials.id.truncate(credentials.id.len() - 60);
        }
        let path = word("path").map(|path| path.replacen('~', &format!("/1.5/{}", self.uid), 1));
        let place = HawkAuthority {
            host: word("host").map_or_else(|| address.ip().to_string(), str::to_owned),
            port: word("port").map_or(address.port(), |port| port.parse().unwrap()),
        };
        let other = [body, b"!"].concat();
        let signing = Signing {
            method: word("method").unwrap_or(&line.method),
            target: path.as_deref().unwrap_or(&line.target),
            place,
            at: now + word("skew").map_or(0, |skew| skew.parse().unwrap()),
            ext: word("ext").unwrap_or_default(),
            body: match (word("hash"), word("badhash")) {
                (Some(_), _) => Some((kind, body)),
                (None, Some(_)) => Some((kind, &other)),
                (None, None) => None,
            },
        };
        let mut parts = signing.sign(&credentials);
        if word("badmac").is_some() {
            parts.mac.replace_range(..1, if parts.mac.starts_with('A') { "B" } else { "A" });
        }
        for (name, part) in
            [("noid", &mut parts.id), ("nomac", &mut parts.mac), ("nots", &mut parts.ts), ("nonce-", &mut parts.nonce)]
        {
            if word(name).is_some() {
                part.clear();
            }
        }
        Some(parts.text())
    }

    fn fill(&self, text: &str) -> String {
        let mut filled = String::new();
        let mut rest = text;
        while let Some(begin) = rest.find('{') {
            let (before, behind) = rest.split_at(begin);
            filled.push_str(before);
            let end = behind.find('}').filter(|end| is_hole(&behind[1..*end]));
            match end {
                Some(end) => {
                    filled.push_str(&self.hole(&behind[1..end]));
                    rest = &behind[end + 1..];
                }
                None => {
                    filled.push('{');
                    rest = &behind[1..];
                }
            }
        }
        filled + rest
    }

    fn hole(&self, word: &str) -> String {
        let answer = |number: &str| &self.answers[number.parse::<usize>().unwrap() - 1];
        if word == "uid" || word == "uid2" {
            return (self.uid + u64::from(word == "uid2")).to_string();
        }
        if let Some((letter, count)) = word.split_once('*') {
            return letter.repeat(count.parse().unwrap());
        }
        if let Some(rest) = word.strip_prefix("bsos:") {
            let (range, bytes) = rest.split_once(':').unwrap();
            let (from, to) = range.split_once('-').unwrap();
            let payload = "x".repeat(bytes.parse().unwrap());
            let (from, to): (u32, u32) = (from.parse().unwrap(), to.parse().unwrap());
            let records = (from..=to).map(|number| format!(r#"{{"id":"r{number:04}","payload":"{payload}"}}"#));
            return records.collect::<Vec<_>>().join(",");
        }
        for (name, header) in [("ts", "x-last-modified"), ("now", "x-weave-timestamp")] {
            let Some(rest) = word.strip_prefix(name) else { continue };
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, more) = rest.split_at(digits);
            let time = answer(number).header(header).unwrap_or_else(|| "0.00".to_owned());
            if more.is_empty() {
                return time;
            }
            let (sign, more) = more.split_at(1);
            let sum = hundredths(&time).unwrap() + hundredths(more).unwrap() * if sign == "-" { -1 } else { 1 };
            return format!("{}.{:02}", sum / 100, sum % 100);
        }
        if let Some(number) = word.strip_prefix("offset") {
            return answer(number).header("x-weave-next-offset").unwrap_or_else(|| "no-offset".to_owned());
        }
        if let Some(number) = word.strip_prefix("batch") {
            return answer(number).json()["batch"].as_str().unwrap_or("no-batch").to_owned();
        }
        let (number, path) = word.strip_prefix("at").unwrap().split_once(':').unwrap();
        let body = answer(number).json();
        let step = |value: Value, name: &str| match name.parse::<usize>() {
            Ok(index) if value.is_array() => value[index].clone(),
            _ => value[name].clone(),
        };
        match path.split('.').fold(body, step) {
            Value::String(text) => text,
            value => value.to_string(),
        }
    }
}

/// Parses a time with at most two decimals into hundredths of a second.
pub fn hundredths(text: &str) -> Option<i64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let fraction = format!("{fraction:0<2}");
    (fraction.len() == 2).then_some(())?;
    Some(whole.parse::<i64>().ok()? * 100 + fraction.parse::<i64>().ok()?)
}

/// Returns the position of the body, if there is one.
fn body_begin(line: &str) -> Option<usize> {
    let bytes = line.as_bytes();
    (1..bytes.len()).find(|&at| {
        let is_hole_here = || line[at..].find('}').is_some_and(|end| is_hole(&line[at + 1..at + end]));
        bytes[at - 1] == b' ' && b"{[\"@".contains(&bytes[at]) && !(bytes[at] == b'{' && is_hole_here())
    })
}

fn is_hole(word: &str) -> bool {
    let are_digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_time = |rest: &str| {
        let (number, more) = rest.split_once(['+', '-']).unwrap_or((rest, "0.00"));
        are_digits(number) && hundredths(more).is_some()
    };
    let letter = word.split_once('*').is_some_and(|(letter, count)| letter.chars().count() == 1 && are_digits(count));
    word == "uid"
        || word == "uid2"
        || letter
        || word.strip_prefix("bsos:").is_some_and(|rest| rest.contains(':'))
        || ["ts", "now"].iter().any(|name| word.strip_prefix(name).is_some_and(is_time))
        || ["offset", "batch"].iter().any(|name| word.strip_prefix(name).is_some_and(are_digits))
        || word.strip_prefix("at").and_then(|rest| rest.split_once(':')).is_some_and(|(number, _)| are_digits(number))
}

/// Encodes a target as a client sends it.
fn quoted(target: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/?&=%:+,()$-_.~@!*';[]{}".contains(&byte);
    target.bytes().fold(String::new(), |text, byte| {
        if is_plain(byte) { text + &char::from(byte).to_string() } else { text + &format!("%{byte:02X}") }
    })
}
