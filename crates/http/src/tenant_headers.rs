//! The headers that a function of a tenant may set in its reply.
//!
//! A reply passes proxies, caches and browsers, and each acts on headers of its own: a header makes nginx send a file,
//! Rack ask another application, Varnish purge pages. Allowed are headers that describe the content, by name, and `X-`
//! headers that an application makes up. An `X-` header is refused if its name contains the name of such software, or
//! a word for its work. New headers of that software are refused in this way before they are known here.

use hyper::header::HeaderName;

/// Headers that describe the content, its place, and its time in caches.
const ORDINARY: [&str; 19] = [
    "accept-ranges",
    "age",
    "allow",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "content-location",
    "content-range",
    "content-type",
    "etag",
    "expires",
    "last-modified",
    "link",
    "location",
    "pragma",
    "retry-after",
    "vary",
    // Search engines apply it to this page alone.
    "x-robots-tag",
];

/// `X-` headers with which this server reports the outcome of a write or a request. Applications use other `X-Couch-`
/// headers.
const OF_SERVER: [&str; 3] = ["x-couch-id", "x-couch-request-id", "x-couch-update-newrev"];

/// Words of names, between hyphens or underscores, that are too short or too common to be searched within words.
const WORDS: [&str; 76] = [
    "aem", "alt", "amz", "ap", "arr", "as", "asp", "auth", "aws", "ban", "cdn", "cf", "cgi", "client", "compress",
    "csp", "debug", "dns", "drop", "edge", "esi", "expect", "fb", "file", "frame", "gfe", "grace", "gzip", "hash",
    "hashtwo", "hit", "hits", "hsts", "http", "hub", "iis", "inertia", "ip", "jetty", "json", "key", "keys", "kong",
    "lb", "lua", "method", "mod", "moz", "ms", "next", "nf", "now", "openid", "pad", "pass", "php", "pjax", "pool",
    "push", "rack", "real", "sap", "ssi", "ssl", "tag", "tags", "timer", "tls", "ttl", "ua", "vhost", "via", "vtag",
    "waf", "wp", "xss",
];

/// Parts of names, without hyphens and underscores: software that acts on headers of a reply, and words for its work.
const PARTS: [&str; 106] = [
    "accel",
    "akamai",
    "aliyun",
    "amzn",
    "apache",
    "appengine",
    "appspot",
    "aspnet",
    "associatedcontent",
    "azure",
    "backend",
    "backside",
    "bigip",
    "blobkey",
    "buffering",
    "bunny",
    "cache",
    "caddy",
    "cascade",
    "chrome",
    "citrix",
    "cloud",
    "compatible",
    "contentduration",
    "contentoptions",
    "contentsecurity",
    "contenttype",
    "cookie",
    "couchdb",
    "crossdomain",
    "csrf",
    "dispatcher",
    "django",
    "docker",
    "downloadoptions",
    "drupal",
    "envoy",
    "fastcgi",
    "fastly",
    "firefox",
    "flatbed",
    "forward",
    "gateway",
    "goog",
    "healthcheck",
    "heroku",
    "imperva",
    "incapsula",
    "internal",
    "invalidat",
    "istio",
    "joomla",
    "keycdn",
    "laravel",
    "lighttpd",
    "limitrate",
    "litespeed",
    "lsadc",
    "lsws",
    "magento",
    "middleware",
    "mozilla",
    "msedge",
    "netlify",
    "nginx",
    "ngx",
    "nuster",
    "openresty",
    "origin",
    "override",
    "pagespeed",
    "passenger",
    "permitted",
    "pingback",
    "policy",
    "prefetch",
    "preload",
    "proxied",
    "proxy",
    "purge",
    "redirect",
    "rewrite",
    "route",
    "sendfile",
    "sendtempfile",
    "servedby",
    "server",
    "session",
    "shopify",
    "sourcemap",
    "squid",
    "stackpath",
    "sucuri",
    "surrogate",
    "tengine",
    "traefik",
    "transport",
    "turbo",
    "typo3",
    "upstream",
    "uwsgi",
    "varnish",
    "vercel",
    "webkit",
    "wordpress",
    "xrds",
];

/// Returns true if a tenant may choose a header.
pub(crate) fn may_choose(name: &HeaderName) -> bool {
    let name = name.as_str();
    if ORDINARY.contains(&name) {
        return true;
    }
    let Some(own) = name.strip_prefix("x-") else { return false };
    let has_word = || own.split(['-', '_']).any(|word| WORDS.contains(&word));
    let has_part = || {
        let whole: String = own.chars().filter(|letter| !matches!(letter, '-' | '_')).collect();
        PARTS.iter().any(|part| whole.contains(part))
    };
    !own.is_empty() && !OF_SERVER.contains(&name) && !has_word() && !has_part()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(name: &str) -> bool {
        may_choose(&HeaderName::from_bytes(name.as_bytes()).unwrap())
    }

    #[test]
    fn headers_that_other_software_acts_on_are_refused() {
        for name in [
            // This server, and the client of a proxy.
            "X-Couch-Id",
            "X-Couch-Request-ID",
            "X-Couch-Update-NewRev",
            "X-CouchDB-Body-Time",
            "X-Flatbed-Storage",
            "X-Auth-Request-User",
            "X-Forwarded-For",
            "X-Real-IP",
            "X-HTTP-Method-Override",
            // Servers and proxies: files, subrequests, rates, health.
            "X-Accel-Redirect",
            "X-Accel-Buffering",
            "X-Accel-Limit-Rate",
            "X-Accel-Mapping",
            "X-Sendfile",
            "X-Sendfile-Type",
            "X-LIGHTTPD-send-file",
            "X-LIGHTTPD-KBytes-per-second",
            "X-LiteSpeed-Location",
            "X-LiteSpeed-Purge",
            "X-LSADC-Backend",
            "X-LSCACHE",
            "X-Reproxy-URL",
            "X-AppEngine-BlobKey",
            "X-Cascade",
            "X-Rack-Cache",
            "X-Middleware-Rewrite",
            "X-Nextjs-Redirect",
            "X-Envoy-Immediate-Health-Check-Fail",
            "X-Envoy-Degraded",
            "X-Associated-Content",
            "X-ARR-LOG-ID",
            "X-AspNet-Version",
            "X-MS-Proxy",
            "X-Rewrite-URL",
            "X-Original-URL",
            "X-Mod-Pagespeed",
            "X-amz-website-redirect-location",
            "X-PHP-Response-Code",
            "X-ESI",
            // Caches.
            "X-Varnish",
            "X-Magento-Tags",
            "X-Magento-Cache-Control",
            "X-Drupal-Cache-Tags",
            "X-Cache-Tags",
            "X-Key",
            "X-HashTwo",
            "X-Purge-URL",
            "X-Ban-Lurker",
            "X-Proxy-Cache",
            "X-Fastly-Surrogate-Key",
            "X-Akamai-Edgescape",
            "X-CF-Something",
            "X-Invalidated-By",
            "X-Served-By",
            "X-TTL",
            // Browsers and scripts of pages.
            "X-Content-Security-Policy",
            "X-Content-Type-Options",
            "X-Content-Duration",
            "X-DNS-Prefetch-Control",
            "X-Download-Options",
            "X-Frame-Options",
            "X-JSON",
            "X-Permitted-Cross-Domain-Policies",
            "X-Pingback",
            "X-SourceMap",
            "X-Source-Map",
            "X-UA-Compatible",
            "X-WebKit-CSP",
            "X-XRDS-Location",
            "X-XSS-Protection",
            // No application's.
            "X-",
            "Cache-Tag",
            "Clear-Site-Data",
            "Edge-Control",
            "Mine",
            "Refresh",
            "Set-Cookie",
            "SourceMap",
            "Surrogate-Control",
            "Surrogate-Key",
            "xkey",
        ] {
            assert!(!may(name), "{name}");
        }
    }

    #[test]
    fn applications_make_up_headers() {
        for name in [
            "Cache-Control",
            "Content-Disposition",
            "Location",
            "Link",
            "X-A",
            "X-Author",
            "X-Foo",
            "X-Mine",
            "X-My-App-State",
            "X-Page-Count",
            "X-RateLimit-Remaining",
            "X-Robots-Tag",
            "X-Total-Count",
            // CouchDB's own suite sets these.
            "X-Couch-Test-Header",
            "X-Couch-Test-Header-Awesome",
        ] {
            assert!(may(name), "{name}");
        }
    }

    #[test]
    fn the_lists_have_the_form_that_is_searched() {
        assert!(WORDS.iter().chain(&PARTS).all(|word| !word.contains(|letter: char| letter.is_ascii_uppercase())));
        assert!(PARTS.iter().all(|part| !part.contains(['-', '_'])));
    }
}
