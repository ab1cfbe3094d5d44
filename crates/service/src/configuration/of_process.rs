//! Values that requests set for this process until it ends: CouchDB's `X-Couch-Persist: false`.

use std::net::IpAddr;
use std::sync::PoisonError;

use async_recursion::async_recursion as boxed;
use flatbed_layer::{Error, Refusal, SETTING_BYTES_MAX, SETTING_NAME_BYTES_MAX, STORED_SETTINGS_MAX};

use super::keys::{self, SettingError};
use super::stored::{ADMINS, AUDIT, ChangeError};
use super::{Configuration, Inner};

type ChangeResult = std::result::Result<String, ChangeError>;

impl Configuration {
    /// Sets a value for this process, until it ends or a request changes the setting again. `name` and `from`: the
    /// author and the address, for the log. Returns the previous value as administrators see it.
    ///
    /// # Errors
    /// As for [`Configuration::set`]; [`SettingError::Wrong`] for an administrator, since all processes must agree
    /// whether there is one.
    #[boxed]
    pub async fn set_here(
        &self,
        section: &str,
        key: &str,
        text: &str,
        name: Option<&str>,
        from: Option<IpAddr>,
    ) -> ChangeResult {
        let (store, section, key) = self.changeable(section, key)?;
        if section == ADMINS {
            return Err(SettingError::Wrong("stored for all processes, without X-Couch-Persist").into());
        }
        let text = text.trim();
        keys::check_stored(section, key, text)?;
        let old = self.now().shown_value(section, key).unwrap_or_default();
        let reading = store.lock_reading().await;
        self.inner.keep_here(section, key, text)?;
        self.inner.publish(false);
        drop(reading);
        let shown = keys::is_loggable(section, key).then_some(text);
        tracing::info!(target: AUDIT, section, key, text = shown, by.name = name, by.from = from.map(tracing::field::display), "a setting is set for this process");
        Ok(old)
    }

    /// Removes a value of this process, and returns it as administrators see it.
    ///
    /// # Errors
    /// [`ChangeError`]; [`SettingError::Unknown`] where none is set.
    #[boxed]
    pub async fn remove_here(
        &self,
        section: &str,
        key: &str,
        name: Option<&str>,
        from: Option<IpAddr>,
    ) -> ChangeResult {
        let (_, section, key) = self.changeable(section, key)?;
        let old = self.forget_here(section, key).await.ok_or(SettingError::Unknown)?;
        tracing::info!(target: AUDIT, section, key, by.name = name, by.from = from.map(tracing::field::display), "a setting of this process is removed");
        Ok(keys::shown(section, key, &old).to_owned())
    }

    /// Removes a value of this process, if it has one. The names are canonical.
    pub(super) async fn forget_here(&self, section: &str, key: &str) -> Option<String> {
        let _reading = match &self.inner.store {
            Some(store) => Some(store.lock_reading().await),
            None => None,
        };
        let name = (section.to_owned(), key.to_owned());
        let removed = self.inner.of_process.lock().unwrap_or_else(PoisonError::into_inner).remove(&name);
        if removed.is_some() {
            self.inner.publish(false);
        }
        removed
    }
}

impl Inner {
    /// Keeps a value, within the bounds of stored ones.
    fn keep_here(&self, section: &str, key: &str, text: &str) -> std::result::Result<(), ChangeError> {
        let refused = |reason: String| Err(ChangeError::Layer(Error::from(Refusal::InvalidSetting(reason))));
        if section.len() > SETTING_NAME_BYTES_MAX || key.len() > SETTING_NAME_BYTES_MAX {
            return refused(format!("names of settings have at most {SETTING_NAME_BYTES_MAX} bytes"));
        }
        if text.len() > SETTING_BYTES_MAX {
            return refused(format!("the text of a setting has at most {SETTING_BYTES_MAX} bytes"));
        }
        let name = (section.to_owned(), key.to_owned());
        let mut values = self.of_process.lock().unwrap_or_else(PoisonError::into_inner);
        if values.len() >= STORED_SETTINGS_MAX && !values.contains_key(&name) {
            return refused(format!("a process has at most {STORED_SETTINGS_MAX} settings of its own"));
        }
        values.insert(name, text.to_owned());
        Ok(())
    }
}
