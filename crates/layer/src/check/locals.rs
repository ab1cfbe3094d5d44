//! Checks the counters of local documents' bytes against the records.

use std::collections::BTreeMap;

use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_operations::read::local::counted_in;
use flatbed_store::error::Result;
use flatbed_store::keys::{PrincipalPart, Subspace};
use flatbed_store::records::decode_counter;

use crate::check::{Report, read_keys};

/// The most recounts of a difference. The records are read in several transactions, so concurrent writes can
/// cause one.
const COUNTS_MAX: usize = 3;

/// Bytes by owner, without zeros. `None`: the database.
type Bytes = BTreeMap<Option<String>, i64>;

/// Compares the counters with the records. Reports the differences of the last count only if every count had some, and
/// gives up without a report if a counter changes meanwhile.
pub(super) async fn check(inner: &Inner, instance: &Instance, report: &mut Report) -> Result<()> {
    let mut violations = Vec::new();
    for _ in 0..COUNTS_MAX {
        let before = counters(inner, instance).await?;
        let counted = count(inner, instance).await?;
        if counters(inner, instance).await? != before {
            return Ok(());
        }
        violations.clear();
        for owner in before.keys().chain(counted.keys().filter(|owner| !before.contains_key(*owner))) {
            let [counter, recount] = [&before, &counted].map(|bytes| bytes.get(owner).copied().unwrap_or_default());
            if counter != recount {
                let whose = owner.as_deref().map_or_else(|| "the database".to_owned(), |name| format!("{name:?}"));
                violations.push(format!("local documents of {whose} have {counter} bytes, a recount gives {recount}"));
            }
        }
        if violations.is_empty() {
            return Ok(());
        }
    }
    violations.into_iter().for_each(|violation| report.violation(violation));
    Ok(())
}

async fn counters(inner: &Inner, instance: &Instance) -> Result<Bytes> {
    let (keys, range) = (&instance.keys, instance.keys.subspace(Subspace::LocalBytes));
    // The walk over the subspace reports malformed keys.
    let read = |key: &[u8], value: &[u8]| {
        Ok(keys.split_local_bytes(key).ok().map(|owner| decode_counter(Some(value)).map(|bytes| (owner, bytes))))
    };
    let mut all = Bytes::new();
    for found in read_keys(inner, instance, range, read).await?.into_iter().flatten() {
        let (owner, bytes) = found?;
        all.insert(owner, bytes);
    }
    all.retain(|_, bytes| *bytes != 0);
    Ok(all)
}

async fn count(inner: &Inner, instance: &Instance) -> Result<Bytes> {
    let keys = &instance.keys;
    let of_database = |key: &[u8], value: &[u8]| match keys.split_local(key) {
        Ok((_, 0)) => Ok(Some((None, counted_in(value)))),
        _ => Ok(None),
    };
    let of_users = |key: &[u8], value: &[u8]| match keys.split_principals(key) {
        Ok(PrincipalPart::Local { name, part: 0, .. }) => Ok(Some((Some(name), counted_in(value)))),
        _ => Ok(None),
    };
    let database = read_keys(inner, instance, keys.locals(), of_database).await?;
    let users = read_keys(inner, instance, keys.all_principal_locals(), of_users).await?;
    let mut all = Bytes::new();
    for (owner, bytes) in database.into_iter().chain(users).flatten() {
        *all.entry(owner).or_default() += bytes;
    }
    all.retain(|_, bytes| *bytes != 0);
    Ok(all)
}
