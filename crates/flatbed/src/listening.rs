//! The settings of the listeners, of trusted proxies, and of clients' limits.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flatbed_http::{Blocks, Limits, Listen, Proxies, Tls};

use crate::serve::ServeError;
use crate::settings::{Layer, SettingValue, SettingsError};

const DEFAULT: &str = "127.0.0.1:5984";

/// The default mode of a Unix socket: its owner's.
const MODE: u32 = 0o600;

/// An address to listen on, with unresolved names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    /// `host:port`.
    Http(String),
    /// `host:port` over TLS.
    Https(String),
    /// A Unix socket and its mode.
    Unix(PathBuf, u32),
}

/// The settings of the server's reachability.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListenSettings {
    /// The addresses; at least one.
    pub places: Vec<ListenAddress>,
    /// The certificate and its key.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// The proxies that state their clients.
    pub proxies: Proxies,
    /// Clients without limits by address; `None`: those of this machine.
    pub unlimited: Option<Blocks>,
    /// The most connections; `None`: the default.
    pub connections: Option<usize>,
    /// The limits of other clients.
    pub limits: Limits,
}

impl ListenSettings {
    /// Takes each setting from the first of `layers` that has it.
    ///
    /// # Errors
    /// [`SettingsError`] for a value of the wrong form, and for TLS without a certificate or a key.
    pub(crate) fn resolve(layers: &[Layer]) -> Result<ListenSettings, SettingsError> {
        let first = |key: &str| layers.iter().find_map(|layer| layer.get(key));
        let places = match first("listen") {
            None => vec![ListenAddress::Http(DEFAULT.to_owned())],
            Some(found) => places(found)?,
        };
        let tls = match (first("tls_certificate"), first("tls_key")) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some((certificate.path(), key.path())),
            (Some(only), None) | (None, Some(only)) => {
                return Err(only.is_not("enough: tls_certificate and tls_key belong together"));
            }
        };
        if let (Some(ListenAddress::Https(_)), None, Some(found)) =
            (places.iter().find(|place| matches!(place, ListenAddress::Https(_))), &tls, first("listen"))
        {
            return Err(found.is_not("possible without tls_certificate and tls_key"));
        }
        let blocks = |key| match first(key) {
            None => Ok(None),
            Some(found) => match found.text.parse::<Blocks>() {
                Ok(blocks) => Ok(Some(blocks)),
                Err(_) => Err(found.is_not("a list of addresses, blocks of them such as 10.0.0.0/8, or unix")),
            },
        };
        let writes_forwarded = match first("forwarded_header") {
            None => false,
            Some(found) => match found.text.to_ascii_lowercase().as_str() {
                "x-forwarded-for" => false,
                "forwarded" => true,
                _ => return Err(found.is_not("x-forwarded-for or forwarded")),
            },
        };
        let proxies = Proxies {
            proxy_protocol: blocks("proxy_protocol_from")?.unwrap_or_default(),
            forwarding: blocks("forwarded_from")?.unwrap_or_default(),
            writes_forwarded,
        };
        let connections = match first("connections") {
            None => None,
            Some(found) => match found.text.parse() {
                Ok(connections) if (16..=1_000_000).contains(&connections) => Some(connections),
                _ => return Err(found.is_not("a number from 16 to 1000000")),
            },
        };
        let mut limits = Limits::default();
        // One by one, so that a limit on the command line keeps the other limits of the file.
        for found in layers.iter().rev().filter_map(|layer| layer.get("limits")) {
            for limit in found.text.split(',').map(str::trim).filter(|limit| !limit.is_empty()) {
                let (name, value) = limit.split_once('=').unwrap_or((limit, ""));
                limits
                    .set(name.trim(), value.trim())
                    .map_err(|error| SettingsError::Limit { origin: found.origin.clone(), error })?;
            }
        }
        Ok(ListenSettings { places, tls, proxies, unlimited: blocks("unlimited")?, connections, limits })
    }

    /// Resolves the names, and reads the certificate.
    ///
    /// # Errors
    /// [`ServeError`] if a name cannot be resolved, or the certificate cannot be used.
    pub(crate) async fn listen(&self) -> Result<Vec<Listen>, ServeError> {
        let tls = match &self.tls {
            None => None,
            Some((certificate, key)) => Some(Tls::read(certificate, key)?),
        };
        let mut listen = Vec::new();
        for place in &self.places {
            match place {
                ListenAddress::Http(host) => listen.extend(addresses(host).await?.map(Listen::Http)),
                ListenAddress::Https(host) => {
                    let of = |tls: &Arc<Tls>, address| Listen::Https(address, tls.clone());
                    // Settings without a certificate were refused already.
                    let addresses = addresses(host).await?;
                    listen.extend(tls.iter().flat_map(|tls| addresses.clone().map(|address| of(tls, address))));
                }
                ListenAddress::Unix(path, mode) => listen.push(Listen::Unix(path.clone(), *mode)),
            }
        }
        Ok(listen)
    }
}

async fn addresses(host: &str) -> Result<impl Iterator<Item = SocketAddr> + Clone, ServeError> {
    let found = tokio::net::lookup_host(host).await;
    let found = found.map_err(|source| ServeError::Address { listen: host.to_owned(), source })?;
    Ok(found.collect::<Vec<_>>().into_iter())
}

/// Parses addresses separated by commas.
pub(crate) fn places(found: &SettingValue) -> Result<Vec<ListenAddress>, SettingsError> {
    let expected =
        "host:port, https://host:port or unix:PATH, such as 127.0.0.1:5984, or several with commas between them";
    let places: Option<Vec<_>> = found.text.split(',').map(|text| place(text.trim(), found)).collect();
    places.filter(|places| !places.is_empty()).ok_or_else(|| found.is_not(expected))
}

fn place(text: &str, found: &SettingValue) -> Option<ListenAddress> {
    if let Some(path) = text.strip_prefix("unix:") {
        let (path, mode) = match path.split_once("?mode=") {
            None => (path, MODE),
            Some((path, mode)) => (path, u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o777)?),
        };
        return (!path.is_empty()).then(|| ListenAddress::Unix(found.relative(Path::new(path)), mode));
    }
    let (host, is_https) = match text.strip_prefix("https://") {
        Some(host) => (host, true),
        None => (text.strip_prefix("http://").unwrap_or(text), false),
    };
    let (name, port) = host.rsplit_once(':')?;
    if name.is_empty() || name.contains('/') || port.parse::<u16>().is_err() {
        return None;
    }
    Some(if is_https { ListenAddress::Https(host.to_owned()) } else { ListenAddress::Http(host.to_owned()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(values: &[(&'static str, &str)]) -> Result<ListenSettings, SettingsError> {
        let found = |(key, text): &(&'static str, &str)| {
            let origin = format!("{key} in x");
            (*key, SettingValue { text: (*text).to_owned(), origin, base: Some("etc".into()) })
        };
        ListenSettings::resolve(&[values.iter().map(found).collect()])
    }

    #[test]
    fn places_to_listen() {
        let default = resolve(&[]).unwrap();
        assert_eq!(default.places, [ListenAddress::Http("127.0.0.1:5984".into())]);
        assert_eq!((default.tls, default.unlimited, default.limits), (None, None, Limits::default()));
        let many = "[::1]:1, http://a:2,https://0.0.0.0:6984,unix:/run/a.sock?mode=660,unix:b.sock";
        let many = resolve(&[("listen", many), ("tls_certificate", "c.pem"), ("tls_key", "/k.pem")]).unwrap();
        let unix = |path: &str, mode| ListenAddress::Unix(path.into(), mode);
        let https = ListenAddress::Https("0.0.0.0:6984".into());
        let wanted = [ListenAddress::Http("[::1]:1".into()), ListenAddress::Http("a:2".into()), https];
        assert_eq!(many.places[..3], wanted);
        assert_eq!(many.places[3..], [unix("/run/a.sock", 0o660), unix("etc/b.sock", 0o600)]);
        assert_eq!(many.tls, Some(("etc/c.pem".into(), "/k.pem".into())));
    }

    #[test]
    fn proxies_and_limits() {
        let settings = [
            ("proxy_protocol_from", "10.0.0.1"),
            ("forwarded_from", "unix"),
            ("forwarded_header", "Forwarded"),
            ("unlimited", ""),
            ("connections", "50000"),
            ("limits", "head_seconds=7, requests_by_address = 9"),
        ];
        let found = resolve(&settings).unwrap();
        let address = Some("10.0.0.1".parse().unwrap());
        assert!(found.proxies.proxy_protocol.contains(address) && !found.proxies.forwarding.contains(address));
        assert!(found.proxies.forwarding.contains(None) && found.proxies.writes_forwarded);
        assert_eq!((found.unlimited, found.limits.requests_by_address.per_second), (Some(Blocks::default()), 9));
        assert_eq!(found.connections, Some(50_000));
        for text in ["0", "1000001", "x", ""] {
            assert!(resolve(&[("connections", text)]).is_err(), "{text}");
        }
        let of = |text: &str| SettingValue { text: text.into(), origin: "x".into(), base: None };
        let layers = [("limits", of("head_seconds=1")), ("limits", of("head_seconds=2,body_seconds=3"))];
        let limits = ListenSettings::resolve(&layers.map(|layer| Layer::from([layer]))).unwrap().limits;
        assert_eq!((limits.head_max.as_secs(), limits.body_max.as_secs()), (1, 3));
    }

    #[test]
    fn refused() {
        for (values, message) in [
            (&[("listen", "https://a:1")][..], "possible without tls_certificate"),
            (&[("listen", "")], "host:port"),
            (&[("listen", "a:1,")], "host:port"),
            (&[("listen", "http://a:1/")], "host:port"),
            (&[("listen", "unix:")], "unix:PATH"),
            (&[("listen", "unix:/a?mode=888")], "unix:PATH"),
            (&[("listen", "unix:/a?mode=1777")], "unix:PATH"),
            (&[("tls_key", "a")], "belong together"),
            (&[("forwarded_from", "all")], "list of addresses"),
            (&[("forwarded_header", "via")], "x-forwarded-for or forwarded"),
            (&[("limits", "x=1")], "limits in x: there is no limit \"x\""),
            (&[("limits", "head_seconds=0")], "head_seconds is a number from 1 to 600"),
            (&[("limits", "head_seconds")], "head_seconds is a number from 1 to 600"),
        ] {
            let error = resolve(values).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
