//! Checks the ids of field names.

use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_flatten::FieldNames;
use flatbed_store::error::{Error, Result};
use flatbed_store::proto;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use prost::Message;

use crate::check::{Report, read_keys, run};

/// Checks that ids and names are inverse to each other, without a gap, below the next id.
pub(super) async fn check(inner: &Inner, instance: &Instance, report: &mut Report) -> Result<()> {
    // Read before the names, so that names allocated meanwhile are not missed.
    let next = run(inner, &mut NextFieldId { instance }).await?;
    match instance.reload_names(inner).await {
        Ok(()) | Err(Error::Corrupt(_)) => {}
        Err(error) => return Err(error),
    }
    let ids = read_keys(inner, instance, instance.keys.field_ids(), |key, value| {
        Ok((instance.keys.field_id_name(key)?, proto::FieldId::decode(value)?.id))
    });
    let ids = ids.await?;
    let view = instance.fields.view();
    for (name, id) in &ids {
        // Names from `next` on were allocated meanwhile.
        if *id < next && view.name_of(*id) != Some(name) {
            report.violation(format!("field {name:?} has id {id}, which is not its own"));
        }
    }
    if flatbed_flatten::path::FIRST_FIELD_ID + (view.len() as u64) < next {
        report.violation(format!("the next field id is {next}, but only {} names exist", view.len()));
    }
    if ids.len() < view.len() {
        report.violation(format!("{} field ids for {} names", ids.len(), view.len()));
    }
    Ok(())
}

struct NextFieldId<'a> {
    instance: &'a Instance,
}

impl Operation for NextFieldId<'_> {
    type Output = u64;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<u64> {
        match trx.get(&self.instance.keys.next_field_id(), true).await? {
            None => Ok(flatbed_flatten::path::FIRST_FIELD_ID),
            Some(bytes) => Ok(proto::FieldId::decode(&*bytes)?.id),
        }
    }
}
