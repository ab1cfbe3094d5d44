//! Settings that all processes of a root share: texts by section and key, whose meaning their readers know.
//!
//! They are few and small, so one transaction reads all, and each change reads all before it writes. A change draws
//! another state and bumps `\xff/metadataVersion`: while that is unchanged, no read is needed.

use std::collections::BTreeMap;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use flatbed_databases::actor::Actor;
use flatbed_databases::confirmed::{DatabaseSecurity, SettingsState};
use flatbed_databases::server::Inner;
use flatbed_feeds::feed::hub::SAFETY_REREAD;
use flatbed_feeds::feed::watches::arm;
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::{METADATA_VERSION, RootKeys};
use flatbed_store::once::{self, Once, random_id};
use flatbed_store::proto;
use flatbed_store::root::{epoch_for_write, has_settings, name_settings, write_root};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction, bounded};
use futures_util::future::try_join;
use prost::Message;

use crate::handle::Layer;

/// Limit of stored settings.
pub const STORED_SETTINGS_MAX: usize = 500;

/// Byte limit of a section's name and of a key's.
pub const SETTING_NAME_BYTES_MAX: usize = 600;

/// Byte limit of a value.
pub const SETTING_BYTES_MAX: usize = 16_000;

/// Byte limit of all names and values together: one transaction reads and writes them.
const ALL_BYTES_MAX: usize = 400_000;

/// Stored settings: texts by section and key.
pub type StoredSettings = BTreeMap<(String, String), String>;

/// Age limit of a state that is known without a read.
const CONFIRMED_WITHIN: Duration = Duration::from_secs(1);

impl Layer {
    /// Reads the stored settings and their state; `None` in their place if they still have the state `seen`. The result
    /// is not older than the call.
    ///
    /// # Errors
    /// [`Error::Storage`], and errors of a store that may not be used.
    #[boxed]
    pub async fn stored_settings(
        &self,
        seen: Option<&SettingsState>,
    ) -> Result<(SettingsState, Option<StoredSettings>)> {
        let mut look = ReadSettings { inner: &self.inner, seen };
        transaction::read(&self.inner.db, &self.inner.metrics, &mut look).await
    }

    /// Returns whether the settings had this state less than a second ago, as any transaction of this process has
    /// found. Reads nothing.
    pub fn are_settings_known(&self, state: &SettingsState) -> bool {
        state.seen.is_confirmed(self.inner.confirmed.us(self.inner.clock.now()), CONFIRMED_WITHIN)
    }

    /// Waits until the state of the settings has changed, on a watch and, since a watch may be lost, an occasional
    /// read. Returns false if the server stops.
    ///
    /// # Errors
    /// [`Error::Storage`].
    #[boxed]
    pub async fn settings_changed(&self, state: &SettingsState) -> Result<bool> {
        let inner = &*self.inner;
        let (key, mut closing) = (inner.keys.settings_state(), inner.closing.subscribe());
        loop {
            let (found, fired) = bounded(arm(inner, &key)).await?;
            if inner.is_closing() || *found != *state.state {
                return Ok(!inner.is_closing());
            }
            tokio::select! {
                fired = fired => fired?,
                () = inner.clock.sleep(SAFETY_REREAD) => inner.metrics.safety_rereads.add(1),
                _ = closing.wait_for(|closing| *closing) => return Ok(false),
            }
        }
    }

    /// Changes stored settings in one transaction: `change` gets all of them, and its result is stored unless it
    /// returns an error. It may be called several times. Other processes see the change at their next read.
    ///
    /// # Errors
    /// [`Refusal::InvalidSetting`] over the limits; [`Refusal::UserChanged`] and refusals of the actor's gate;
    /// [`Error::Storage`].
    pub async fn change_settings<T, E>(
        &self,
        by: &Actor,
        change: impl FnMut(&mut StoredSettings) -> std::result::Result<T, E> + Send,
    ) -> Result<std::result::Result<T, E>>
    where
        T: Send,
        E: Send,
    {
        let (inner, once, state) = (&*self.inner, once::new_mark(&self.inner.keys, &self.inner.clock)?, random_id()?);
        let mut operation = ChangeSettings { inner, by, change, once, state, outputs: Vec::new() };
        let done = transaction::write(&self.inner.db, &self.inner.metrics, &mut operation).await?;
        Ok(match done {
            ChangeOutcome::Written(number) => match operation.outputs.into_iter().nth(number) {
                Some(output) => Ok(output),
                None => return Err(Error::Corrupt("a mark has a number that no attempt had".into())),
            },
            ChangeOutcome::Unwritten(output) => output,
        })
    }
}

enum ChangeOutcome<T, E> {
    /// An attempt has written: the one of this number.
    Written(usize),
    Unwritten(std::result::Result<T, E>),
}

struct ReadSettings<'a> {
    inner: &'a Inner,
    seen: Option<&'a SettingsState>,
}

impl Operation for ReadSettings<'_> {
    type Output = (SettingsState, Option<StoredSettings>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let version = trx.get(METADATA_VERSION, true).await?;
        let version = version.as_deref().unwrap_or_default();
        if let Some(before) = self.seen
            && before.seen.version() == version
        {
            before.seen.confirm(self.inner.confirmed.us(trx.began()));
            return Ok((before.clone(), None));
        }
        let keys = &self.inner.keys;
        let state_key = keys.settings_state();
        let state = trx.get(&state_key, true);
        let (seen, state) = try_join(self.inner.learn(trx, version), async { Ok(state.await?) }).await?;
        let state = state.as_deref().unwrap_or_default().into();
        let is_as_before = self.seen.is_some_and(|before| before.state == state);
        let settings = if is_as_before { None } else { Some(all(trx, keys, true).await?) };
        Ok((SettingsState { seen, state }, settings))
    }
}

async fn all(trx: &Transaction, keys: &RootKeys, snapshot: bool) -> Result<StoredSettings> {
    let mut settings = StoredSettings::new();
    for row in trx.range(&keys.settings(), snapshot).all(STORED_SETTINGS_MAX).await?.iter() {
        let text = std::str::from_utf8(row.value()).map_err(|_| Error::Corrupt("a setting is not UTF-8".into()))?;
        settings.insert(keys.split_setting(row.key())?, text.to_owned());
    }
    Ok(settings)
}

fn check_bounds(settings: &StoredSettings) -> Result<()> {
    let refused = |reason: String| Err(Refusal::InvalidSetting(reason).into());
    if settings.len() > STORED_SETTINGS_MAX {
        return refused(format!("at most {STORED_SETTINGS_MAX} settings are stored"));
    }
    let mut bytes = 0;
    for ((section, key), text) in settings {
        if section.len() > SETTING_NAME_BYTES_MAX || key.len() > SETTING_NAME_BYTES_MAX {
            return refused(format!("names of settings have at most {SETTING_NAME_BYTES_MAX} bytes"));
        }
        if text.len() > SETTING_BYTES_MAX {
            return refused(format!("a setting has at most {SETTING_BYTES_MAX} bytes"));
        }
        bytes += section.len() + key.len() + text.len();
    }
    if bytes > ALL_BYTES_MAX {
        return refused(format!("all stored settings together have at most {ALL_BYTES_MAX} bytes"));
    }
    Ok(())
}

struct ChangeSettings<'a, T, F> {
    inner: &'a Inner,
    by: &'a Actor,
    change: F,
    once: Once,
    state: [u8; 16],
    /// The output of each attempt that wrote.
    outputs: Vec<T>,
}

impl<T, E, F> Operation for ChangeSettings<'_, T, F>
where
    T: Send,
    E: Send,
    F: FnMut(&mut StoredSettings) -> std::result::Result<T, E> + Send,
{
    type Output = ChangeOutcome<T, E>;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<ChangeOutcome<T, E>> {
        // Other clients may have changed the same since the earlier attempt.
        if let Some(number) = self.once.happened(trx, attempt).await? {
            return Ok(ChangeOutcome::Written(number as usize));
        }
        let keys = &self.inner.keys;
        let root_key = keys.instance();
        let root = trx.get(&root_key, false);
        let writer = self.inner.writer(trx, self.by);
        let (writer, _) = futures_util::try_join!(writer, epoch_for_write(trx, keys))?;
        // Settings do not depend on a database's `_security`.
        writer.admitted_by(trx, &DatabaseSecurity::new(&[], 0)).await?;
        let mut root = proto::Instance::decode(&*root.await?.ok_or(Error::StoreNotFound)?)?;
        let before = all(trx, keys, false).await?;
        let mut after = before.clone();
        let output = match (self.change)(&mut after) {
            Ok(output) if after != before => output,
            output => return Ok(ChangeOutcome::Unwritten(output)),
        };
        check_bounds(&after)?;
        for (section, key) in before.keys().filter(|name| !after.contains_key(name)) {
            trx.clear(&keys.setting(section, key));
        }
        for ((section, key), text) in after.iter().filter(|(name, text)| before.get(name) != Some(text)) {
            trx.set(&keys.setting(section, key), text.as_bytes());
        }
        trx.set(&keys.settings_state(), &self.state);
        if has_settings(&root) == after.is_empty() {
            // Programs without stored settings would admit the users that they lock out.
            name_settings(&mut root, !after.is_empty());
            write_root(trx, keys, &root);
        } else {
            trx.update_metadata_version();
        }
        let number = self.once.mark(trx) as usize;
        debug_assert_eq!(number, self.outputs.len(), "each attempt that writes is marked");
        self.outputs.push(output);
        Ok(ChangeOutcome::Written(number))
    }
}
