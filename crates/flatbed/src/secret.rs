//! `flatbed secret rotate`: the rotation of the secret that signs sessions.

use flatbed_layer::Layer;

use crate::{output::say, settings::Settings, storage::Storage};

/// Makes another secret sign sessions from now on. Sessions signed with the previous one continue, and get new cookies.
///
/// # Errors
/// If the storage cannot be opened or written.
pub(crate) async fn rotate(settings: &Settings) -> Result<(), Box<dyn std::error::Error>> {
    let storage = Storage::open(settings).await?;
    let (layer, authority) = Layer::open(storage.database(), settings.layer_options(), None).await?;
    layer.rotate_secret().await?;
    tracing::info!(target: "audit", "the secret of sessions was rotated");
    say!("another secret signs sessions in {storage}; earlier sessions continue, and expire as before");
    layer.shutdown();
    drop((layer, authority));
    storage.close();
    Ok(())
}
