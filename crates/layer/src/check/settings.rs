//! Stored settings: whether they can be read, and the root's record names them.

use prost::Message;

use crate::check::{PAGE_KEYS, Report, hex, run};
use crate::error::Result;
use crate::layer::Inner;
use crate::store::proto;
use crate::store::root_upgrade::has_settings;
use crate::store::transaction::{Attempt, Operation, Transaction, page_of};
use crate::stored_settings::STORED_SETTINGS_MAX;

pub(super) async fn check(inner: &Inner, report: &mut Report) -> Result<()> {
    let (count, violations) = run(inner, &mut Look { inner }).await?;
    report.keys += count;
    violations.into_iter().for_each(|violation| report.violation(violation));
    Ok(())
}

struct Look<'a> {
    inner: &'a Inner,
}

impl Operation for Look<'_> {
    /// How many there are, and what is wrong.
    type Output = (u64, Vec<String>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let keys = &self.inner.keys;
        let (root_key, mut range) = (keys.instance(), keys.settings());
        let root = trx.get(&root_key, true);
        let (mut count, mut violations) = (0, Vec::new());
        let is_right = |key: &[u8], value: &[u8]| keys.split_setting(key).is_ok() && str::from_utf8(value).is_ok();
        while count <= STORED_SETTINGS_MAX {
            let page = trx.get_range(&page_of(&range, PAGE_KEYS, false), 1, true).await?;
            count += page.len();
            let wrong = page.iter().filter(|row| !is_right(row.key(), row.value()));
            violations.extend(wrong.map(|row| format!("key {} is no setting", hex(row.key()))));
            match page.last().filter(|_| page.more()) {
                Some(last) => range.begin = [last.key(), &[0]].concat(),
                None => break,
            }
        }
        if count > STORED_SETTINGS_MAX {
            violations.push(format!("there are more than {STORED_SETTINGS_MAX} stored settings"));
        }
        let root = root.await?.map(|bytes| proto::Instance::decode(&*bytes)).transpose()?.unwrap_or_default();
        if has_settings(&root) != (count > 0) {
            violations.push("the root's record is wrong about whether there are stored settings".to_owned());
        }
        Ok((count as u64, violations))
    }
}
