//! Cross-origin requests from browsers, off unless configured.

use hyper::header::{self, HeaderName};
use hyper::http::uri::Authority;
use hyper::{HeaderMap, Method, StatusCode, Uri};

use crate::peer::RequestScheme;
use crate::proxied::is_said_to_be_https;
use crate::reply::{Reply, ReplyBody};

const METHODS: &str = "GET, PUT, POST, HEAD, DELETE, COPY, OPTIONS";
const HEADERS: &str = "accept, authorization, content-type, origin, referer, if-match, if-none-match, destination, \
                       x-couch-full-commit, x-requested-with, last-event-id, content-encoding";
const EXPOSED: &str = "content-type, cache-control, etag, location, server, x-couch-request-id, x-couch-update-newrev, \
                       x-couchdb-body-time, warning";

const SESSION: &str = "AuthSession";

/// The relation of the requesting page to the server, as set by the browser. Pages cannot change it.
const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The scheme of a token, which browsers never add on their own.
const BEARER: &[u8] = b"Bearer ";

/// The content types, without parameters, that pages send to any origin without a preflight request.
const UNASKED_TYPES: [&str; 4] = ["", "application/x-www-form-urlencoded", "multipart/form-data", "text/plain"];

/// The CORS settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cors {
    /// Origins that may call, such as `https://app.example`; `*` for all.
    pub origins: Vec<String>,
    /// True if origins listed by name may send credentials.
    pub credentials: bool,
    /// Further request headers that are allowed.
    pub headers: Vec<String>,
    /// The methods that pages may use; empty: all that the server has.
    pub methods: Vec<String>,
    /// The time for which a browser may cache the answer to a preflight request, in seconds.
    pub max_age_seconds: u32,
}

impl Cors {
    fn allowed<'h>(&self, headers: &'h HeaderMap) -> Option<&'h str> {
        let origin = headers.get(header::ORIGIN)?.to_str().ok()?;
        self.origins.iter().any(|allowed| allowed == "*" || allowed == origin).then_some(origin)
    }

    /// Returns true if an origin is listed by name, so that it may use credentials. `null` never counts: it is the
    /// origin of every sandboxed page, including those that databases serve.
    fn is_listed(&self, origin: &str) -> bool {
        !matches!(origin, "*" | "null") && self.origins.iter().any(|listed| listed == origin)
    }

    /// Returns true if the request may act for the page's user: from a page of this host, from a listed origin, or
    /// not from a page.
    pub(crate) fn is_own_or_listed(&self, page: &PageRequest<'_>) -> bool {
        match page.headers.get(header::ORIGIN).map(|origin| origin.to_str().unwrap_or_default()) {
            Some(origin) => self.is_listed(origin) || page.is_own(origin),
            None => page.headers.get(SEC_FETCH_SITE).is_none_or(|site| site.as_bytes() != b"cross-site"),
        }
    }

    /// Returns true if a request that changes something may come from this page. The page must have this server's
    /// host, or `Sec-Fetch-Site: same-origin` (a proxy may have changed `Host`), or an origin that CORS allows.
    ///
    /// A request without `Origin` is allowed unless the browser marks it as from another site or another host of the
    /// same site: pages load images with `GET` and without `Origin`. Browsers send forms and plain text without a
    /// preflight request, so response headers cannot protect the server.
    ///
    /// Browsers add the credentials of their password dialog on their own. So an origin that only `*` allows may send
    /// credentials only in requests with a preflight request, whose answer does not allow the browser's own
    /// credentials.
    ///
    /// Browsers send no `Sec-Fetch-Site` to addresses without TLS, and old ones no `Origin` with a form. A request with
    /// neither header that a page can send without a preflight request is judged by its `Referer`. A `GET` or `HEAD`
    /// without one is refused if it comes from a browser; all browsers send `Origin` with a `POST` since 2020.
    pub(crate) fn may_change(&self, page: &PageRequest<'_>, method: &Method) -> bool {
        let is_marked = |mark: &[u8]| page.headers.get(SEC_FETCH_SITE).is_some_and(|site| site.as_bytes() == mark);
        let is_neighbours = !page.headers.contains_key(header::ORIGIN) && is_marked(b"same-site");
        let may_be_cached =
            || page.headers.contains_key(header::AUTHORIZATION) && !needs_preflight(method, page.headers);
        let is_allowed = || self.allowed(page.headers).is_some() && !may_be_cached();
        let is_silent = !page.headers.contains_key(header::ORIGIN) && !page.headers.contains_key(SEC_FETCH_SITE);
        let is_judged_by_page = is_silent && !is_from_program(method, page.headers);
        let is_others = is_neighbours || (is_judged_by_page && !self.may_lead(page, method));
        !is_others && (self.is_own_or_listed(page) || is_marked(b"same-origin") || is_allowed())
    }

    /// Returns true if the page in `Referer` may contain the link or form: a page of this host, or of an origin that
    /// CORS allows with the request's credentials. A page can suppress `Referer`, so a browser must send it with a
    /// link; other clients need not.
    fn may_lead(&self, page: &PageRequest<'_>, method: &Method) -> bool {
        let Some(referer) = page.headers.get(header::REFERER) else {
            return *method == Method::POST || !is_browser(page.headers);
        };
        let origin = origin_of(referer.to_str().unwrap_or_default());
        let has_credentials = || page.headers.contains_key(header::AUTHORIZATION) || page.has_session_or(false);
        let is_any = || self.origins.iter().any(|allowed| allowed == "*") && !has_credentials();
        self.is_listed(origin) || page.is_own(origin) || is_any()
    }

    /// Returns true if a page may open a connection that no preflight request guards: a page of this host, of an
    /// origin that may call, or no page. With credentials the origin must be listed.
    pub(crate) fn may_open(&self, page: &PageRequest<'_>) -> bool {
        let has_credentials = page.headers.contains_key(header::AUTHORIZATION) || page.has_session_or(false);
        self.is_own_or_listed(page) || (!has_credentials && self.allowed(page.headers).is_some())
    }

    pub(crate) fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Reply> {
        if *method != Method::OPTIONS || !headers.contains_key(header::ACCESS_CONTROL_REQUEST_METHOD) {
            return None;
        }
        self.allowed(headers)?;
        let mut reply = Reply {
            status: StatusCode::NO_CONTENT,
            headers: HeaderMap::new(),
            body: ReplyBody::Full(None),
            held: None,
        };
        self.decorate(headers, &mut reply.headers);
        let mut allowed = HEADERS.to_owned();
        for name in &self.headers {
            allowed.push_str(", ");
            allowed.push_str(&name.to_ascii_lowercase());
        }
        let methods = self.methods.join(", ");
        let methods = if methods.is_empty() { METHODS } else { &methods };
        reply.header(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
        reply.header(header::ACCESS_CONTROL_ALLOW_HEADERS, &allowed);
        reply.header(header::ACCESS_CONTROL_MAX_AGE, &self.max_age_seconds.to_string());
        Some(reply)
    }

    /// Adds the headers that let a browser pass the answer to the page.
    pub(crate) fn decorate(&self, request: &HeaderMap, reply: &mut HeaderMap) {
        if self.origins.is_empty() {
            return;
        }
        reply.insert(header::VARY, header::HeaderValue::from_static("Origin"));
        let Some(origin) = self.allowed(request) else { return };
        let mut put = |name: HeaderName, value: &str| {
            if let Ok(value) = header::HeaderValue::from_str(value) {
                reply.insert(name, value);
            }
        };
        let any = self.origins.iter().any(|allowed| allowed == "*");
        // An origin that only `*` allows gets no credentials; otherwise any page could act for its user.
        let credentials = self.credentials && self.is_listed(origin);
        put(header::ACCESS_CONTROL_ALLOW_ORIGIN, if any && !credentials { "*" } else { origin });
        put(header::ACCESS_CONTROL_EXPOSE_HEADERS, EXPOSED);
        if credentials {
            put(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, "true");
        }
    }
}

/// The parts of a request that identify the page that made it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PageRequest<'r> {
    pub uri: &'r Uri,
    pub headers: &'r HeaderMap,
    /// The host that a trusted proxy forwards.
    pub host: Option<&'r str>,
    pub scheme: RequestScheme,
}

impl PageRequest<'_> {
    pub(crate) fn has_session_or(&self, is_so: bool) -> bool {
        let mut lines = self.headers.get_all(header::COOKIE).iter();
        is_so || lines.any(|line| line.as_bytes().split(|byte| *byte == b';').any(is_session))
    }

    /// Returns true if an origin is this server by the request's host. A page loaded without TLS is foreign to a
    /// server reached with TLS, because an attacker on the network may have written it. A page loaded with TLS is
    /// foreign to a server reached without: another server may have sent it.
    fn is_own(&self, origin: &str) -> bool {
        let Some((scheme, of_origin)) = origin.split_once("://") else { return false };
        let port = match scheme {
            "https" if self.may_be_https() => 443,
            "http" if self.scheme != RequestScheme::Https => 80,
            _ => return false,
        };
        let of_headers = || self.headers.get(header::HOST).and_then(|host| host.to_str().ok());
        let host = self.host.or(self.uri.authority().map(Authority::as_str)).or_else(of_headers);
        let (Some(host), Ok(of_origin)) = (host.and_then(|host| host.parse().ok()), of_origin.parse()) else {
            return false;
        };
        let name = |authority: &Authority| authority.host().to_ascii_lowercase();
        let is_bare = |authority: &Authority| !authority.as_str().contains('@');
        let port_of = |authority: &Authority| authority.port_u16().unwrap_or(port);
        let (host, of_origin): (Authority, Authority) = (host, of_origin);
        name(&host) == name(&of_origin) && port_of(&host) == port_of(&of_origin) && is_bare(&of_origin)
    }
}

impl PageRequest<'_> {
    /// Returns true if the browser may have asked for an `https` address. Without TLS on the connection, a proxy may
    /// have ended it. Then a browser since 2023 sends `Sec-Fetch-Site`, except in the handshake of a WebSocket, which
    /// no browser lets a page of `https` open to `ws` of another machine. For older browsers the proxy must state the
    /// scheme.
    fn may_be_https(&self) -> bool {
        match (self.scheme, self.headers.get(SEC_FETCH_SITE)) {
            (RequestScheme::Https, _) => true,
            (_, Some(site)) => site.as_bytes() == b"same-origin",
            (RequestScheme::Http, None) => false,
            (RequestScheme::Unknown, None) => {
                self.headers.contains_key(header::SEC_WEBSOCKET_VERSION) || is_said_to_be_https(self.headers)
            }
        }
    }
}

/// Returns true for a browser. All browsers send `Mozilla/`, and a page cannot change that without a preflight
/// request. PowerShell sends it, too, with its own name behind, which no browser has.
fn is_browser(headers: &HeaderMap) -> bool {
    let Some(agent) = headers.get(header::USER_AGENT) else { return false };
    let is_shell = |word: &[u8]| word.starts_with(b"WindowsPowerShell/") || word.starts_with(b"PowerShell/");
    agent.as_bytes().starts_with(b"Mozilla/") && !agent.as_bytes().split(|byte| *byte == b' ').any(is_shell)
}

/// Returns true if no page of another origin can have sent the request without a preflight request, because of its
/// method, content type or a header.
///
/// Only headers count that neither browsers nor proxies add on their own. Browsers add `Authorization` of the schemes
/// `Basic`, `Digest`, `NTLM` and `Negotiate`, headers of their cache such as `If-None-Match`, and, within an app,
/// `X-Requested-With` with the app's name. Proxies that sign in browsers by a cookie add `Authorization: Bearer`, so
/// that counts only without a cookie and without a proxy's headers.
fn is_from_program(method: &Method, headers: &HeaderMap) -> bool {
    let of_programs = [
        header::IF_MATCH,
        HeaderName::from_static("x-couch-full-commit"),
        HeaderName::from_static("x-http-method-override"),
    ];
    let of_proxies = [
        header::COOKIE,
        header::FORWARDED,
        header::VIA,
        HeaderName::from_static("x-forwarded-for"),
        HeaderName::from_static("x-forwarded-host"),
        HeaderName::from_static("x-forwarded-proto"),
    ];
    let is_script = || {
        let wanted = headers.get(HeaderName::from_static("x-requested-with"));
        wanted.is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"XMLHttpRequest"))
    };
    let is_bearer = || {
        let scheme = headers.get(header::AUTHORIZATION).and_then(|value| value.as_bytes().get(..BEARER.len()));
        scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case(BEARER))
            && !of_proxies.iter().any(|name| headers.contains_key(name))
    };
    needs_preflight(method, headers)
        || of_programs.iter().any(|name| headers.contains_key(name))
        || is_script()
        || is_bearer()
}

fn origin_of(url: &str) -> &str {
    let Some((scheme, rest)) = url.split_once("://") else { return url };
    let end = rest.find(['/', '?', '#', '\\']).unwrap_or(rest.len());
    url.get(..scheme.len() + "://".len() + end).unwrap_or(url)
}

/// Returns true if browsers send a preflight request for such a cross-origin request, by its method and content type.
fn needs_preflight(method: &Method, headers: &HeaderMap) -> bool {
    if !matches!(*method, Method::GET | Method::HEAD | Method::POST) {
        return true;
    }
    let Some(content_type) = headers.get(header::CONTENT_TYPE) else { return false };
    let essence = content_type.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    !UNASKED_TYPES.iter().any(|unasked| essence.eq_ignore_ascii_case(unasked.as_bytes()))
}

fn is_session(cookie: &[u8]) -> bool {
    cookie
        .trim_ascii_start()
        .strip_prefix(SESSION.as_bytes())
        .is_some_and(|rest| rest.trim_ascii_start().first() == Some(&b'='))
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;

    fn page(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn of(headers: &HeaderMap, is_secure: bool) -> PageRequest<'_> {
        static URI: LazyLock<Uri> = LazyLock::new(|| Uri::from_static("/"));
        let scheme = if is_secure { RequestScheme::Https } else { RequestScheme::Unknown };
        PageRequest { uri: &URI, headers, host: None, scheme }
    }

    #[test]
    fn whose_page_it_is() {
        let none = Cors::default();
        let may = |host: &str, origin: &str, is_secure: bool| {
            none.is_own_or_listed(&of(&page(&[("host", host), ("origin", origin)]), is_secure))
        };
        assert!(may("db.example", "https://db.example", true) && may("DB.example:443", "https://db.example", true));
        assert!(may("db.example", "http://db.example", false) && may("db.example:80", "http://db.example", false));
        assert!(may("[::1]:5984", "http://[::1]:5984", false));
        for (host, origin, is_secure) in [
            ("db.example", "http://db.example", true),
            ("db.example", "https://db.example", false),
            ("db.example:443", "https://db.example", false),
            ("db.example", "https://db.example:444", true),
            ("db.example", "https://evil.example", true),
            ("db.example", "https://x@db.example", true),
            ("db.example", "file://db.example", false),
            ("db.example", "null", false),
            ("db.example", "", false),
            ("db.example", "https://", false),
            ("", "https://", false),
        ] {
            assert!(!may(host, origin, is_secure), "{host} {origin}");
        }
        let uri = Uri::from_static("https://db.example/");
        let headers = page(&[("origin", "https://db.example")]);
        let of_uri = PageRequest { uri: &uri, headers: &headers, host: None, scheme: RequestScheme::Https };
        assert!(none.is_own_or_listed(&of_uri));
        assert!(!none.is_own_or_listed(&PageRequest { host: Some("other.example"), ..of_uri }));
    }

    /// Another server may have the same name and `https`.
    #[test]
    fn a_page_with_tls_is_foreign_to_a_server_without() {
        let may = |scheme: RequestScheme, pairs: &[(&'static str, &str)]| {
            let own = [("host", "db.example:5984"), ("origin", "https://db.example:5984")];
            let headers = page(&[&own[..], pairs].concat());
            let page = PageRequest { scheme, ..of(&headers, false) };
            (Cors::default().is_own_or_listed(&page), Cors::default().may_change(&page, &Method::POST))
        };
        let forwarded = ("x-forwarded-proto", "https");
        for scheme in [RequestScheme::Unknown, RequestScheme::Http] {
            for pairs in [&[("sec-fetch-site", "cross-site")][..], &[("sec-fetch-site", "same-site"), forwarded], &[]] {
                assert_eq!(may(scheme, pairs), (false, false), "{scheme:?} {pairs:?}");
            }
            assert_eq!(may(scheme, &[("sec-fetch-site", "same-origin")]), (true, true), "{scheme:?}");
        }
        // A proxy that is not configured has ended TLS. A client cannot say so to a server that knows its proxies.
        for header in [forwarded, ("forwarded", "proto=https")] {
            assert_eq!(may(RequestScheme::Unknown, &[header]), (true, true), "{header:?}");
            assert_eq!(may(RequestScheme::Http, &[header]), (false, false), "{header:?}");
        }
        assert_eq!(may(RequestScheme::Https, &[]), (true, true));
    }

    #[test]
    fn pages_that_do_not_say_who_they_are() {
        let none = Cors::default();
        let may = |site: &str| none.is_own_or_listed(&of(&page(&[("host", "a"), ("sec-fetch-site", site)]), true));
        assert!(may("same-origin") && may("same-site") && may("none") && !may("cross-site"));
        let listed = Cors { origins: vec!["https://app.example".into(), "*".into()], ..Cors::default() };
        let said = page(&[("host", "a"), ("origin", "https://app.example"), ("sec-fetch-site", "cross-site")]);
        assert!(listed.is_own_or_listed(&of(&said, true)));
        let other = page(&[("host", "a"), ("origin", "https://other.example")]);
        assert!(!listed.is_own_or_listed(&of(&other, true)));
        assert!(!listed.is_own_or_listed(&of(&page(&[("host", "a"), ("origin", "*")]), true)));
        let null = Cors { origins: vec!["null".into()], ..Cors::default() };
        assert!(!null.is_own_or_listed(&of(&page(&[("host", "a"), ("origin", "null")]), true)));
    }

    #[test]
    fn cookies_of_sessions() {
        let has = |cookies: &[&str]| {
            let pairs: Vec<_> = cookies.iter().map(|cookie| ("cookie", *cookie)).collect();
            of(&page(&pairs), true).has_session_or(false)
        };
        assert!(has(&["AuthSession=x"]) && has(&["a=b; AuthSession=x"]) && has(&["a=b", "c=d;AuthSession ="]));
        assert!(!has(&[]) && !has(&["a=AuthSession=x; NotAuthSession=y", "AuthSessions=x; AuthSession"]));
        assert!(of(&page(&[]), true).has_session_or(true));
    }

    #[test]
    fn foreign_pages_open_nothing() {
        let may = |cors: &Cors, origin: Option<&str>| {
            let mut headers = page(&[("host", "db.example:5984"), ("sec-websocket-version", "13")]);
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, origin.parse().unwrap());
            }
            cors.may_open(&of(&headers, false))
        };
        let none = Cors::default();
        assert!(may(&none, None) && may(&none, Some("https://db.example:5984")));
        for origin in ["https://evil.example", "https://db.example", "null", "", "://", "https://db.example:5984.evil"]
        {
            assert!(!may(&none, Some(origin)), "{origin}");
        }
        let some = Cors { origins: vec!["https://app.example".into()], ..Cors::default() };
        assert!(may(&some, Some("https://app.example")) && !may(&some, Some("https://evil.example")));
        let all = Cors { origins: vec!["*".into()], ..Cors::default() };
        assert!(may(&all, Some("https://evil.example")));
        for (name, value) in [("cookie", "AuthSession=x"), ("authorization", "Basic YTpi")] {
            let with = page(&[("host", "db.example"), ("origin", "https://evil.example"), (name, value)]);
            assert!(!all.may_open(&of(&with, false)), "{name}");
        }
    }

    #[test]
    fn foreign_pages_change_nothing() {
        let may = |cors: &Cors, pairs: &[(&'static str, &str)]| {
            let mut headers = page(pairs);
            headers.insert(header::HOST, "localhost:5984".parse().unwrap());
            cors.may_change(&of(&headers, false), &Method::POST)
        };
        let none = Cors::default();
        let foreign: &[&[(&'static str, &str)]] = &[
            &[("origin", "https://evil.example")],
            &[("origin", "http://localhost:3000")],
            &[("origin", "null")],
            &[("origin", "")],
            &[("origin", "https://evil.example"), ("authorization", "Basic YTpi")],
            &[("origin", "https://evil.example"), ("sec-fetch-site", "same-site")],
            &[("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
        ];
        for headers in foreign {
            assert!(!may(&none, headers), "{headers:?}");
        }
        let own: &[&[(&'static str, &str)]] = &[
            &[],
            &[("origin", "http://localhost:5984")],
            &[("origin", "https://db.example"), ("sec-fetch-site", "same-origin")],
            &[("sec-fetch-site", "none")],
            &[("authorization", "Basic YTpi")],
        ];
        for headers in own {
            assert!(may(&none, headers), "{headers:?}");
        }
        let some = Cors { origins: vec!["http://localhost:3000".into()], ..Cors::default() };
        assert!(may(&some, foreign[1]) && !may(&some, foreign[0]));
        let all = Cors { origins: vec!["*".into()], ..Cors::default() };
        assert!(may(&all, foreign[0]) && may(&all, foreign[1]));
        // Without `Origin` the server cannot tell whether CORS allows the page.
        assert!(!may(&all, foreign[6]) && !may(&all, foreign[7]));
    }

    /// Returns whether a page may send this request to `http://db.example:5984`.
    fn may(origins: &[&str], method: &Method, pairs: &[(&'static str, &str)]) -> bool {
        let headers = page(&[&[("host", "db.example:5984")][..], pairs].concat());
        let cors = Cors { origins: origins.iter().map(|&origin| origin.to_owned()).collect(), ..Cors::default() };
        cors.may_change(&of(&headers, false), method)
    }

    /// Requests as browsers send them to addresses without TLS.
    #[test]
    fn links_are_judged_by_their_page() {
        let evil = ("referer", "http://evil.example/page?x#y");
        let foreign = [
            evil.1,
            "http://db.example/",
            "https://db.example:5984/",
            "http://db.example:5984.evil.example/",
            "http://evil.example?http://db.example:5984/",
            "http://x@db.example:5984/",
            "http://evil.example\\@db.example:5984/",
            "about:blank",
            "null",
            "",
        ];
        for url in foreign {
            assert!(!may(&[], &Method::GET, &[("referer", url)]), "{url}");
            assert!(!may(&["http://other.example"], &Method::HEAD, &[("referer", url)]), "{url}");
        }
        for url in ["http://db.example:5984", "http://db.example:5984/db/_design/d/page", "http://DB.example:5984/?x"] {
            assert!(may(&[], &Method::GET, &[("referer", url)]), "{url}");
        }
        assert!(may(&[], &Method::GET, &[]) && may(&["http://evil.example"], &Method::GET, &[evil]));
        // An origin allowed by `*` may not send credentials.
        assert!(may(&["*"], &Method::GET, &[evil]));
        for (name, value) in [("cookie", "AuthSession=x"), ("authorization", "Basic YTpi")] {
            assert!(!may(&["*"], &Method::GET, &[evil, (name, value)]), "{name}");
        }
        // `Sec-Fetch-Site` and `Origin` take precedence.
        assert!(may(&[], &Method::GET, &[evil, ("sec-fetch-site", "same-origin")]));
        // A page can make its browser omit the headers.
        let browser = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0");
        for origins in [&["http://app.example"][..], &["*"]] {
            assert!(!may(origins, &Method::GET, &[browser]) && !may(origins, &Method::HEAD, &[browser]), "{origins:?}");
        }
        let own = ("referer", "http://db.example:5984/");
        assert!(may(&[], &Method::GET, &[browser, own]) && may(&[], &Method::GET, &[("user-agent", "curl/8.5.0")]));
        assert!(may(&[], &Method::GET, &[browser, ("sec-fetch-site", "none")]) && may(&[], &Method::POST, &[browser]));
    }

    /// Old browsers send forms without `Origin`.
    #[test]
    fn forms_are_judged_by_their_page() {
        let (evil, own) = (("referer", "http://evil.example/page"), ("referer", "http://db.example:5984/page"));
        let credentials = [("cookie", "AuthSession=x"), ("authorization", "Basic YTpi"), ("accept", "*/*")];
        for credential in credentials {
            for kind in ["", "text/plain", "multipart/form-data; boundary=a", "application/x-www-form-urlencoded"] {
                let kind = ("content-type", kind);
                assert!(!may(&[], &Method::POST, &[evil, kind, credential]), "{kind:?} {credential:?}");
                assert!(may(&[], &Method::POST, &[own, kind, credential]), "{kind:?} {credential:?}");
                assert!(may(&[], &Method::POST, &[kind, credential]), "{kind:?} {credential:?}");
                assert!(may(&["http://evil.example"], &Method::POST, &[evil, kind, credential]), "{credential:?}");
            }
            // Browsers ask by a preflight request, with `Origin`.
            let json = ("content-type", "application/json");
            assert!(may(&[], &Method::POST, &[evil, json, credential]), "{credential:?}");
            assert!(may(&[], &Method::PUT, &[evil, credential]), "{credential:?}");
        }
        assert!(may(&["*"], &Method::POST, &[evil]) && !may(&["*"], &Method::POST, &[evil, credentials[0]]));
        assert!(may(&[], &Method::POST, &[evil, ("sec-fetch-site", "same-origin")]));
    }

    /// Pages of other origins cannot send these requests.
    #[test]
    fn programs_are_not_taken_for_pages() {
        let may = |method: &Method, pairs: &[(&'static str, &str)]| may(&[], method, pairs);
        let browser = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0");
        for shell in [
            "Mozilla/5.0 (Windows NT; Windows NT 10.0; de-DE) WindowsPowerShell/5.1.19041.4522",
            "Mozilla/5.0 (Windows NT 10.0; Microsoft Windows 10.0.19045; en-US) PowerShell/7.4.0",
        ] {
            assert!(may(&Method::GET, &[("user-agent", shell)]), "{shell}");
            // A `Referer` counts whichever client sends it.
            assert!(!may(&Method::GET, &[("user-agent", shell), ("referer", "http://evil.example/")]), "{shell}");
        }
        let (evil, bearer) = (("referer", "http://evil.example/"), ("authorization", "Bearer a.b.c"));
        for header in [
            bearer,
            ("authorization", "bearer a.b.c"),
            ("if-match", "\"1-a\""),
            ("x-couch-full-commit", "true"),
            ("x-requested-with", "XMLHttpRequest"),
            ("content-type", "application/json"),
        ] {
            for method in [Method::GET, Method::HEAD] {
                assert!(may(&method, &[browser, header]), "{header:?}");
            }
            assert!(may(&Method::POST, &[browser, evil, header]), "{header:?}");
            // The headers of the browser come first.
            for said in [("sec-fetch-site", "cross-site"), ("origin", "http://evil.example")] {
                assert!(!may(&Method::GET, &[browser, header, said]), "{header:?} {said:?}");
            }
        }
        for header in [
            ("authorization", "Basic YTpi"),
            ("authorization", "Negotiate YTpi"),
            ("authorization", "Bearerless x"),
            ("if-none-match", "\"1-a\""),
            ("cache-control", "max-age=0"),
            ("range", "bytes=0-"),
            ("x-requested-with", "com.example.app"),
            ("x-forwarded-for", "192.0.2.1"),
            ("content-type", "text/plain"),
        ] {
            assert!(!may(&Method::GET, &[browser, header]), "{header:?}");
            assert!(!may(&Method::POST, &[browser, evil, header]), "{header:?}");
        }
        // A proxy that has signed in a browser adds the token.
        for header in [("cookie", "_oauth2_proxy=x"), ("x-forwarded-proto", "http"), ("via", "1.1 proxy")] {
            assert!(!may(&Method::GET, &[browser, bearer, header]), "{header:?}");
        }
    }

    /// A form carries the credentials of the browser's password dialog.
    #[test]
    fn any_origin_may_not_use_the_browsers_credentials() {
        let evil = ("origin", "https://evil.example");
        let authorization = ("authorization", "Basic YTpi");
        let simple = [
            &[evil, authorization][..],
            &[evil, authorization, ("content-type", "")],
            &[evil, authorization, ("content-type", "text/plain")],
            &[evil, authorization, ("content-type", "Text/Plain ;charset=utf-8")],
            &[evil, authorization, ("content-type", "multipart/form-data; boundary=x")],
            &[evil, authorization, ("content-type", "application/x-www-form-urlencoded")],
        ];
        for headers in simple {
            assert!(!may(&["*"], &Method::POST, headers), "{headers:?}");
            assert!(!may(&["*"], &Method::GET, headers), "{headers:?}");
            // The browser sends a preflight request for these methods.
            assert!(may(&["*"], &Method::PUT, headers) && may(&["*"], &Method::DELETE, headers), "{headers:?}");
            assert!(may(&["*", evil.1], &Method::POST, headers), "{headers:?}");
        }
        assert!(may(&["*"], &Method::POST, &[evil, authorization, ("content-type", "application/json")]));
        assert!(may(&["*"], &Method::POST, &[evil, ("content-type", "text/plain")]));
        let own = [("origin", "http://db.example:5984"), authorization];
        assert!(may(&["*"], &Method::POST, &own) && may(&["*"], &Method::POST, &[authorization]));
    }

    #[test]
    fn only_configured_origins_are_answered() {
        let mut headers = HeaderMap::new();
        headers.insert(header::ORIGIN, "https://a.example".parse().unwrap());
        headers.insert(header::ACCESS_CONTROL_REQUEST_METHOD, "PUT".parse().unwrap());
        assert!(Cors::default().preflight(&Method::OPTIONS, &headers).is_none());
        let other = Cors { origins: vec!["https://b.example".into()], ..Cors::default() };
        assert!(other.preflight(&Method::OPTIONS, &headers).is_none());
        let all = Cors { origins: vec!["*".into()], credentials: true, ..Cors::default() };
        let reply = all.preflight(&Method::OPTIONS, &headers).unwrap();
        assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "*");
        assert!(!reply.headers.contains_key(header::ACCESS_CONTROL_ALLOW_CREDENTIALS));
        let listed =
            Cors { origins: vec!["*".into(), "https://a.example".into()], credentials: true, ..Cors::default() };
        let reply = listed.preflight(&Method::OPTIONS, &headers).unwrap();
        assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_ORIGIN], "https://a.example");
        assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_CREDENTIALS], "true");
        assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_METHODS], METHODS);
        let some = Cors { methods: vec!["GET".into(), "PUT".into()], ..listed };
        let reply = some.preflight(&Method::OPTIONS, &headers).unwrap();
        assert_eq!(reply.headers[header::ACCESS_CONTROL_ALLOW_METHODS], "GET, PUT");
        assert!(all.preflight(&Method::GET, &headers).is_none());
    }
}
