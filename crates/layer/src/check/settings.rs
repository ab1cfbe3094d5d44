//! Checks that stored settings can be read, and that the root's record names them.

use flatbed_databases::server::Inner;
use flatbed_store::error::Result;
use flatbed_store::proto;
use flatbed_store::root::has_settings;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use prost::Message;

use crate::check::{Report, hex, run};
use crate::stored_settings::STORED_SETTINGS_MAX;

pub(super) async fn check(inner: &Inner, report: &mut Report) -> Result<()> {
    let (count, violations) = run(inner, &mut ReadSettings { inner }).await?;
    report.keys += count;
    violations.into_iter().for_each(|violation| report.violation(violation));
    Ok(())
}

struct ReadSettings<'a> {
    inner: &'a Inner,
}

impl Operation for ReadSettings<'_> {
    type Output = (u64, Vec<String>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let keys = &self.inner.keys;
        let (root_key, range) = (keys.instance(), keys.settings());
        let root = trx.get(&root_key, true);
        let is_right = |key: &[u8], value: &[u8]| keys.split_setting(key).is_ok() && str::from_utf8(value).is_ok();
        let rows = trx.range(&range, true).first(STORED_SETTINGS_MAX + 1).await?;
        let count = rows.len();
        let wrong = rows.iter().filter(|row| !is_right(row.key(), row.value()));
        let mut violations: Vec<_> = wrong.map(|row| format!("key {} is no setting", hex(row.key()))).collect();
        if count > STORED_SETTINGS_MAX {
            violations.push(format!("there are more than {STORED_SETTINGS_MAX} stored settings"));
        }
        let root = root.await?.map(|bytes| proto::Instance::decode(&*bytes)).transpose()?.unwrap_or_default();
        if has_settings(&root) != (count > 0) {
            violations.push("the root's record differs from whether stored settings exist".to_owned());
        }
        Ok((count as u64, violations))
    }
}
