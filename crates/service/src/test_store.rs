//! Storage for tests: the embedded engine in a directory of its own, or the cluster that `FLATBED_CLUSTER_FILE` names.

use std::sync::Arc;

use flatbed_auth::PasswordHash;
use flatbed_layer::{Authority, Layer, LayerOptions};

use crate::configuration::{Configuration, Source, Values};
use crate::sign_in::keys::Keys;
use crate::standing::RestsOn;

/// Where tests store: a root of its own. What is in the directory is there as long as this is.
pub(crate) struct Place {
    pub database: Arc<foundationdb::Database>,
    pub root: Vec<u8>,
    pub directory: Option<tempfile::TempDir>,
}

impl Place {
    pub(crate) fn new() -> Place {
        network();
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos();
        let root = format!("service{}-{now}", std::process::id()).into_bytes();
        let (path, directory) = match std::env::var("FLATBED_CLUSTER_FILE") {
            Ok(path) => (path, None),
            Err(_) => {
                let directory = tempfile::tempdir().unwrap();
                let path = directory.path().join("embedded.cluster");
                std::fs::write(&path, "embedded:test@data\n").unwrap();
                (path.to_str().unwrap().to_owned(), Some(directory))
            }
        };
        let database = Arc::new(foundationdb::Database::from_path(&path).unwrap());
        Place { database, root, directory }
    }

    pub(crate) fn options(&self) -> LayerOptions {
        LayerOptions { root: self.root.clone(), ..LayerOptions::default() }
    }
}

pub(crate) struct Store {
    pub layer: Layer,
    database: Arc<foundationdb::Database>,
    root: Vec<u8>,
    _directory: Option<tempfile::TempDir>,
}

impl Store {
    pub(crate) async fn new() -> Store {
        let Place { database, root, directory } = Place::new();
        let (layer, _) = open(&database, &root).await;
        Store { layer, database, root, _directory: directory }
    }

    /// What another process has on the same storage.
    pub(crate) async fn again(&self) -> Layer {
        self.again_with_authority().await.0
    }

    /// The same, with what writes as the server are made with.
    pub(crate) async fn again_with_authority(&self) -> (Layer, Authority) {
        open(&self.database, &self.root).await
    }
}

async fn open(database: &Arc<foundationdb::Database>, root: &[u8]) -> (Layer, Authority) {
    let options = LayerOptions { root: root.to_vec(), ..LayerOptions::default() };
    Layer::open(Arc::clone(database), options, None).await.unwrap()
}

/// Starts FoundationDB's client, once for all tests of the process.
fn network() {
    static NETWORK: std::sync::OnceLock<foundationdb::api::NetworkAutoStop> = std::sync::OnceLock::new();
    // SAFETY: foundationdb-sys stops the network when the process ends.
    #[allow(unsafe_code, reason = "the client is started once, as a program does")]
    NETWORK.get_or_init(|| unsafe { foundationdb::boot() });
}

/// Settings with an administrator.
pub(crate) fn with_admin(name: &str, hash: &PasswordHash) -> Configuration {
    let mut values = Values::default();
    values.insert("admins", name, &hash.to_string(), Source::File).unwrap();
    Configuration::new(values)
}

/// A token of anna's without an end, of [`with_key`]'s key.
pub(crate) const TOKEN: &str =
    "eyJhbGciOiJIUzI1NiIsImtpZCI6ImsifQ.eyJzdWIiOiJhbm5hIn0.WPQFWf1yao70E3ueYSRvKI8F2XDlEwEVBuH4_7V51XU";

/// Settings with a key for tokens, and further ones.
pub(crate) fn with_key(further: &[(&str, &str, &str)]) -> Configuration {
    let mut values = Values::default();
    let own =
        [("jwt_keys", "hmac:k", "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="), ("jwt_auth", "required_claims", "")];
    for (section, key, text) in own.iter().chain(further) {
        values.insert(section, key, text, Source::File).unwrap();
    }
    Configuration::new(values)
}

/// What [`TOKEN`] rests on under [`with_key`], if it ended then.
pub(crate) async fn token(ends: Option<u64>) -> RestsOn {
    let keys = Keys::new().now(&with_key(&[]).now()).await.0;
    RestsOn::Token { ends, by: keys.verify(TOKEN, 0).unwrap().by }
}
