//! Test layers and settings.

use flatbed_auth::PasswordHash;
use flatbed_clock::Clock;
use flatbed_layer::{Authority, Layer, LayerOptions};
use flatbed_testkit::Storage;

use crate::configuration::{Configuration, Source, Values};
use crate::sign_in::keys::TokenKeys;
use crate::standing::RightsBasis;

pub(crate) struct Store {
    pub layer: Layer,
    storage: Storage,
    clock: Clock,
}

impl Store {
    pub(crate) async fn new() -> Store {
        Store::timed(Clock::system()).await
    }

    /// All processes on it use this clock.
    pub(crate) async fn timed(clock: Clock) -> Store {
        let storage = Storage::new();
        let (layer, _) = open(&storage, &clock).await;
        Store { layer, storage, clock }
    }

    pub(crate) async fn again(&self) -> Layer {
        self.again_with_authority().await.0
    }

    /// The same, with the authority for writes of the server.
    pub(crate) async fn again_with_authority(&self) -> (Layer, Authority) {
        open(&self.storage, &self.clock).await
    }
}

async fn open(storage: &Storage, clock: &Clock) -> (Layer, Authority) {
    let options = LayerOptions { clock: clock.clone(), ..options(storage) };
    Layer::open(storage.fdb.clone(), options, None).await.unwrap()
}

pub(crate) fn options(storage: &Storage) -> LayerOptions {
    LayerOptions { root: storage.root.clone(), ..LayerOptions::default() }
}

pub(crate) fn with_admin(name: &str, hash: &PasswordHash) -> Configuration {
    let mut values = Values::default();
    values.insert("admins", name, &hash.to_string(), Source::File).unwrap();
    Configuration::new(values)
}

/// A token of anna without an end, signed with [`with_key`]'s key.
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

/// The basis of [`TOKEN`]'s rights under [`with_key`], with this end.
pub(crate) async fn token(ends: Option<u64>) -> RightsBasis {
    let keys = TokenKeys::new(&flatbed_clock::Clock::system()).now(&with_key(&[]).now()).await.0;
    RightsBasis::Token { ends, by: keys.verify(TOKEN, 0).unwrap().by }
}
