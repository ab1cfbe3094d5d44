//! Sync Gateway's API beside CouchDB's: its settings, and its servers with listeners of their own.

use std::sync::Arc;

use flatbed_gateway::{Gateway, GatewayOptions, Port, Route};
use flatbed_http::{Listen, Server, Shell, ShellOptions, inside};
use flatbed_metrics::{Family, Kind, Value};
use flatbed_service::Service;

use crate::listening::{ListenAddress, ListenSettings, places};
use crate::serve::ServeError;
use crate::settings::{Layer, Settings, SettingsError};

/// The memory for request bodies of one port.
const BODY_MEMORY_BYTES: usize = 256 * 1024 * 1024;

/// The listeners of its ports. At least one port has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GatewaySettings {
    /// The users' port.
    pub public: Vec<ListenAddress>,
    pub administrators: Vec<ListenAddress>,
    /// True if the administrators' port may be reachable from other machines.
    pub anywhere: bool,
}

impl GatewaySettings {
    /// Takes each setting from the first of `layers` that has it. `None`: neither port is served.
    ///
    /// # Errors
    /// [`SettingsError`] for a value of the wrong form.
    pub(crate) fn resolve(layers: &[Layer]) -> Result<Option<GatewaySettings>, SettingsError> {
        let first = |key: &str| layers.iter().find_map(|layer| layer.get(key));
        let places_of = |key: &str| first(key).map(places).transpose().map(Option::unwrap_or_default);
        let (public, administrators) = (places_of("gateway_listen")?, places_of("admin_listen")?);
        let anywhere = match first("admin_listen_anywhere") {
            None => false,
            Some(found) => match found.text.as_str() {
                "true" if administrators.is_empty() => return Err(found.is_not("of any use without admin_listen")),
                "true" => true,
                "false" => false,
                _ => return Err(found.is_not("true or false")),
            },
        };
        let is_served = !public.is_empty() || !administrators.is_empty();
        Ok(is_served.then_some(GatewaySettings { public, administrators, anywhere }))
    }

    pub(crate) fn servers(&self) -> usize {
        usize::from(!self.public.is_empty()) + usize::from(!self.administrators.is_empty())
    }
}

/// One of the ports, before it serves.
pub(crate) struct GatewayServer {
    server: Server<Gateway>,
    shell: Arc<Shell<Route>>,
    name: &'static str,
    surface: &'static str,
}

impl GatewayServer {
    /// Binds the addresses of all ports.
    ///
    /// # Errors
    /// [`ServeError`], such as an administrators' port that other machines could reach.
    pub(crate) async fn open(
        (settings, gateway): (&Settings, &GatewaySettings),
        service: &Service,
        document_bytes_max: usize,
        connections_max: usize,
    ) -> Result<Vec<GatewayServer>, ServeError> {
        let ports = [
            (&gateway.public, Port::Public, "Sync Gateway's API", "gateway"),
            (
                &gateway.administrators,
                Port::Administrators { anywhere: gateway.anywhere },
                "Sync Gateway's API for administrators",
                "gateway_admin",
            ),
        ];
        let mut servers = Vec::new();
        for (places, port, name, surface) in ports {
            if places.is_empty() {
                continue;
            }
            let listening = ListenSettings { places: places.clone(), ..settings.listening.clone() };
            let listen: Vec<Listen> = listening.listen().await?;
            let exposed = listen.iter().find(|listen| match listen {
                Listen::Http(address) | Listen::Https(address, _) => !address.ip().is_loopback(),
                Listen::Unix(..) => false,
            });
            if let (Port::Administrators { anywhere: false }, Some(listen)) = (port, exposed) {
                return Err(ServeError::Administrators { listen: listen.to_string() });
            }
            let defaults = ShellOptions::default();
            let shell = Shell::new(ShellOptions {
                server: format!("Flatbed/{}", env!("CARGO_PKG_VERSION")),
                body_memory_bytes: BODY_MEMORY_BYTES,
                document_bytes_max,
                connections_max,
                drain: crate::serve::DRAIN,
                limits: listening.limits,
                unlimited: listening.unlimited.clone().unwrap_or(defaults.unlimited.clone()),
                proxies: listening.proxies.clone(),
                continue_trace: crate::otel::CONTINUE_TRACE,
                ..defaults
            });
            let options = GatewayOptions { port, version: env!("CARGO_PKG_VERSION").to_owned() };
            let state = Gateway::new(options, service.clone(), shell.clone());
            let (_, inside) = inside();
            let server = Server::bind(&listen, shell.clone(), state, inside).await?;
            servers.push(GatewayServer { server, shell, name, surface });
        }
        Ok(servers)
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns its addresses.
    pub(crate) fn listening(&self) -> Vec<Listen> {
        self.server.listening()
    }

    /// Returns a function that reads its metrics.
    pub(crate) fn figures(&self) -> impl Fn() -> Vec<Family> + Send + Sync + 'static {
        let (shell, surface) = (self.shell.clone(), self.surface);
        move || {
            let families = shell.families().into_iter().chain(memory(&shell));
            families.map(|family| family.labelled("surface", surface)).collect()
        }
    }

    /// Serves until `shutdown` resolves, and then until running requests end.
    pub(crate) async fn serve(self, shutdown: impl Future<Output = ()>) {
        self.server.serve(shutdown, std::future::ready(())).await;
    }
}

fn memory(shell: &Shell<Route>) -> [Family; 2] {
    let mut used =
        Family::new("flatbed_memory_used_bytes", "Memory that bodies of requests and answers hold.", Kind::Gauge);
    let mut limit = Family::new("flatbed_memory_limit_bytes", "What they may hold at most together.", Kind::Gauge);
    for (part, usage) in shell.memory() {
        used.push(&[("part", part.into())], Value::Count(usage.used as u64));
        limit.push(&[("part", part.into())], Value::Count(usage.limit as u64));
    }
    [used, limit]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::SettingValue;

    fn resolve(values: &[(&'static str, &str)]) -> Result<Option<GatewaySettings>, SettingsError> {
        let found = |(key, text): &(&'static str, &str)| {
            (*key, SettingValue { text: (*text).to_owned(), origin: format!("{key} in x"), base: None })
        };
        GatewaySettings::resolve(&[values.iter().map(found).collect()])
    }

    #[test]
    fn closed_unless_it_is_set() {
        assert_eq!(resolve(&[]).unwrap(), None);
        let public = resolve(&[("gateway_listen", "127.0.0.1:4984")]).unwrap().unwrap();
        assert_eq!((public.public.len(), public.administrators.len(), public.servers()), (1, 0, 1));
        let both = [("gateway_listen", "0.0.0.0:4984"), ("admin_listen", "127.0.0.1:4985,unix:/run/a")];
        let both = resolve(&both).unwrap().unwrap();
        assert_eq!((both.administrators.len(), both.anywhere, both.servers()), (2, false, 2));
        let anywhere = [("admin_listen", "0.0.0.0:4985"), ("admin_listen_anywhere", "true")];
        assert!(resolve(&anywhere).unwrap().unwrap().anywhere);
    }

    #[test]
    fn refused() {
        for (values, message) in [
            (&[("admin_listen", "")][..], "host:port"),
            (&[("admin_listen_anywhere", "true")], "without admin_listen"),
            (&[("admin_listen", "a:1"), ("admin_listen_anywhere", "yes")], "true or false"),
        ] {
            let error = resolve(values).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    }
}
