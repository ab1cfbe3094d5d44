//! `flatbed secret rotate`: another secret for sessions.

use flatbed_layer::Layer;

use crate::{settings::Settings, storage::Storage};

/// Has another secret sign sessions from now on. Those that the one before has signed go on, and get new cookies.
///
/// # Errors
/// If the storage cannot be opened or written.
pub(crate) async fn rotate(settings: &Settings) -> Result<(), Box<dyn std::error::Error>> {
    let storage = Storage::open(settings).await?;
    let (layer, authority) = Layer::open(storage.database(), settings.layer_options(), None).await?;
    layer.rotate_secret().await?;
    tracing::info!(target: "audit", "the secret of sessions was rotated");
    println!("another secret signs sessions in {storage}; those of before go on, and end when they would have ended");
    layer.shutdown();
    drop((layer, authority));
    storage.close();
    Ok(())
}
