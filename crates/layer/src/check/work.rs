//! Checks the list of due background work and its leases: that they can be read, and that no work is missing.

use std::collections::HashSet;

use flatbed_databases::server::Inner;
use flatbed_operations::index::build::unbuilt;
use flatbed_store::due::{DueKind, slice_of};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{KeyRange, Subspace};
use flatbed_store::proto;
use flatbed_store::secrets::secrets_of;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use prost::Message;

use crate::check::pages::{PageSize, read_page};
use crate::check::{Begin, PAGE_KEYS, Report, hex, run};

/// `names`: of all databases.
pub(super) async fn check(inner: &Inner, names: &[String], report: &mut Report) -> Result<()> {
    let (mut swept, mut built) = (HashSet::new(), HashSet::new());
    let (size, mut rest) = (&PageSize::new(PAGE_KEYS), Some(inner.keys.due_all()));
    while let Some(range) = rest {
        let (entries, violations, next) = read_page(inner, size, &mut Page { inner, range, size }).await?;
        report.keys += (entries.len() + violations.len()) as u64;
        violations.into_iter().for_each(|violation| report.violation(violation));
        for (kind, name) in entries {
            match DueKind::of(kind) {
                Some(DueKind::Uploads) => drop(swept.insert(name)),
                Some(DueKind::Indexes) => drop(built.insert(name)),
                _ => {}
            }
        }
        rest = next;
    }
    if let Some(violation) = run(inner, &mut Secrets { inner }).await? {
        report.violation(violation);
    }
    for violation in run(inner, &mut Leases { inner }).await? {
        report.violation(violation);
    }
    for name in names {
        for (kind, noted, wrong) in [
            (DueKind::Uploads, &swept, "has uploads or lists that wait, and no due work to sweep it"),
            (DueKind::Indexes, &built, "has indexes that are not built, and no due work to build them"),
        ] {
            if noted.contains(name) {
                continue;
            }
            match run(inner, &mut FindForgotten { inner, name, kind }).await {
                Ok(true) => report.violation(format!("{name:?} {wrong}")),
                Ok(false) | Err(Error::DatabaseNotFound) => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

struct Secrets<'a> {
    inner: &'a Inner,
}

impl Operation for Secrets<'_> {
    type Output = Option<String>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<String>> {
        let found = trx.get(&self.inner.keys.secrets(), true).await?;
        Ok(found.and_then(|found| secrets_of(&found).err()).map(|error| error.to_string()))
    }
}

struct Page<'a> {
    inner: &'a Inner,
    range: KeyRange,
    size: &'a PageSize,
}

impl Operation for Page<'_> {
    type Output = (Vec<(u64, String)>, Vec<String>, Option<KeyRange>);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let page = trx.range(&self.range, true).page(self.size.attempt()).await?;
        let (mut entries, mut violations) = (Vec::new(), Vec::new());
        for row in &page {
            match (self.inner.keys.split_due(row.key()), proto::Due::decode(row.value())) {
                (Ok(due), Ok(_)) if due.slice == slice_of(&due.name) => entries.push((due.kind, due.name)),
                _ => violations.push(format!("key {} is no due work", hex(row.key()))),
            }
        }
        Ok((entries, violations, page.rest))
    }
}

/// The leases of running work, slices and index builds, which are few.
struct Leases<'a> {
    inner: &'a Inner,
}

impl Operation for Leases<'_> {
    type Output = Vec<String>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<String>> {
        let keys = &self.inner.keys;
        let leases = trx.range(&keys.leases(), true).first(PAGE_KEYS).await?;
        let is_right =
            |key: &[u8], value: &[u8]| keys.lease_id(key).is_ok() && flatbed_store::leases::decode(value).is_ok();
        let wrong = leases.iter().filter(|row| !is_right(row.key(), row.value()));
        Ok(wrong.map(|row| format!("key {} is no lease", hex(row.key()))).collect())
    }
}

/// Checks whether a database has work of a kind but, in the same transaction, no entry for it.
struct FindForgotten<'a> {
    inner: &'a Inner,
    name: &'a str,
    kind: DueKind,
}

impl Operation for FindForgotten<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<bool> {
        let instance = Begin { inner: self.inner, name: self.name }.attempt(trx, attempt).await?;
        let mut is_any = false;
        if self.kind == DueKind::Indexes {
            is_any = unbuilt(instance.record.clone()).next().is_some();
        } else {
            for subspace in [Subspace::Staged, Subspace::Released] {
                let range = instance.keys.subspace(subspace);
                is_any |= trx.range(&range, true).any().await?;
            }
        }
        let mut rest = Some(self.inner.keys.due_all()).filter(|_| is_any);
        while let Some(range) = rest {
            let mut page = Page { inner: self.inner, range, size: &PageSize::new(PAGE_KEYS) };
            let (entries, _, next) = page.attempt(trx, attempt).await?;
            is_any &= !entries.iter().any(|(kind, name)| *kind == self.kind as u64 && name == self.name);
            rest = next.filter(|_| is_any);
        }
        Ok(is_any)
    }
}
