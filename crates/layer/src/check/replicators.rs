//! Checks that the list of replicator databases has exactly the databases created as such.

use std::collections::BTreeSet;
use std::sync::Arc;

use flatbed_databases::server::Inner;
use flatbed_store::database_name::is_replicator_name;
use flatbed_store::error::Result;
use flatbed_store::features::is_replicator;
use flatbed_store::proto;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use prost::Message;

use crate::check::{Report, run};
use crate::handle::Layer;

/// Compares the list with the records. `names`: the names of all databases.
pub(super) async fn check(layer: &Layer, names: &[String], report: &mut Report) -> Result<()> {
    let listed = layer.replicator_databases().names().await?;
    report.keys += listed.len() as u64;
    let named = names.iter().filter(|name| is_replicator_name(name)).map(|name| Arc::<str>::from(name.as_str()));
    let all: BTreeSet<Arc<str>> = named.chain(listed).collect();
    for name in all {
        let inner = &*layer.inner;
        if let Some(violation) = run(inner, &mut CompareEntry { inner, name: &name }).await? {
            report.violation(violation);
        }
    }
    Ok(())
}

/// Compares a database's record and list entry in one transaction, and returns the difference.
struct CompareEntry<'a> {
    inner: &'a Inner,
    name: &'a str,
}

impl Operation for CompareEntry<'_> {
    type Output = Option<String>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<String>> {
        let keys = &self.inner.keys;
        let is_listed = trx.get(&keys.replicator(self.name), true).await?.is_some();
        let record = trx.get(&keys.database(self.name), true).await?;
        let record = record.map(|bytes| proto::DatabaseRecord::decode(&*bytes)).transpose()?;
        let is_one = record.is_some_and(|record| is_replicator(&record));
        Ok(match (is_listed, is_one) {
            (true, false) => Some(format!("{:?} is listed as one that asks for replications, and is none", self.name)),
            (false, true) => Some(format!("{:?} asks for replications, and is not listed as such", self.name)),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::CreateOptions;
    use crate::check::check_namespaces;
    use crate::tests::fenced::layer;

    #[tokio::test]
    async fn what_the_list_lacks_or_has_too_much_is_found() {
        let (layer, authority, _storage) = layer().await;
        let database = layer.database("a/_replicator", authority.for_job("test"));
        database.create(&CreateOptions::default()).await.unwrap();
        assert!(check_namespaces(&layer).await.unwrap().is_clean());
        let inner = &layer.inner;
        let trx = Transaction::begin(&inner.db, &inner.metrics).unwrap();
        trx.clear(&inner.keys.replicator("a/_replicator"));
        trx.set(&inner.keys.replicator("db"), &[]);
        trx.commit().await.unwrap();
        let report = check_namespaces(&layer).await.unwrap();
        let expected = [
            "\"a/_replicator\" asks for replications, and is not listed as such",
            "\"db\" is listed as one that asks for replications, and is none",
        ];
        assert_eq!(report.violations, expected);
    }
}
