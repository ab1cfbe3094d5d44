//! Checks groups of views: their keys against each other, and their rows against the output of their maps.

use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::document::edit::GetOptions;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_flatten::json::{Limits, parse};
use flatbed_operations::read::get::GetOne;
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::proto;
use flatbed_store::records::decode_counter;
use flatbed_store::transaction::{Attempt, Operation, Transaction};
use flatbed_store::view_definition::GroupDefinition;
use flatbed_views::group::recompute::{RecomputeReport, recompute, written_of};
use flatbed_views::view::build::FOLLOWED;
use flatbed_views::view::check::{CheckPage, PAGE_KEYS, check};
use flatbed_views::view::group::ViewGroup;
use flatbed_views::view::written::WrittenReduces;
use prost::Message;

use crate::check::pages::{PageSize, read_page};
use crate::check::{Report, hex, read_keys, run};
use crate::handle::Reader;

/// Checks a group, and returns the number of its keys. For an unnamed group only the form of its keys is checked.
pub(super) async fn check_group(
    reader: &Reader,
    instance: &Instance,
    index: &proto::Index,
    report: &mut Report,
) -> Result<u64> {
    let inner = &reader.handle.inner;
    let Some(group) = group_of(inner, instance, index).await? else {
        let keys = instance.keys.view(index.number);
        let form = |key: &[u8], _: &[u8]| Ok(keys.split(key).is_err().then(|| hex(key)));
        let found = read_keys(inner, instance, instance.keys.index(index.number), form).await?;
        for stray in found.iter().flatten() {
            report.violation(format!("key {stray} belongs to nothing"));
        }
        return Ok(found.len() as u64);
    };
    let written = written_of(&reader.handle, instance, index).await?;
    let written = written.as_ref().map(|written| written as &dyn WrittenReduces);
    let before = run(inner, &mut ReadCounters { instance, number: index.number }).await?;
    let (mut keys, mut begin, mut found) = (0, Vec::new(), (0, 0));
    let size = &PageSize::new(PAGE_KEYS);
    loop {
        let mut part = Part { instance, group: &group, written, begin: &begin, size };
        let CheckPage { keys: more, violations, refused, set_aside, next } = read_page(inner, size, &mut part).await?;
        keys += more;
        found = (found.0 + refused, found.1 + set_aside);
        violations.into_iter().for_each(|violation| report.violation(violation));
        match next {
            Some(next) => begin = next,
            None => break,
        }
    }
    let after = run(inner, &mut ReadCounters { instance, number: index.number }).await?;
    let (_, counted) = after;
    // Only if nothing was entered meanwhile.
    if before == after && is_followed(&after) {
        let number = index.number;
        let kinds = ["refused documents", "documents set aside"];
        for ((kind, counted), found) in kinds.into_iter().zip(counted).zip([found.0, found.1]) {
            if found != counted {
                report.violation(format!("group {number} counts {counted} {kind}, a recount gives {found}"));
            }
        }
    }
    let recomputed = match recompute(&reader.handle, instance, index).await {
        // The functions cannot be run, or run for too long, which is no fault of the stored data.
        Err(Error::View(failure)) => {
            let (database, group) = (&*instance.name, index.number);
            tracing::warn!(database, group, %failure, "a group is not compared with its maps, which cannot run");
            RecomputeReport::default()
        }
        recomputed => recomputed?,
    };
    let RecomputeReport { documents, violations, .. } = recomputed;
    report.mapped += documents;
    violations.into_iter().for_each(|violation| report.violation(violation));
    Ok(keys)
}

async fn group_of(inner: &Inner, instance: &Instance, index: &proto::Index) -> Result<Option<ViewGroup>> {
    for id in &index.named_by {
        let options = GetOptions::default();
        let (name, asker) = (&instance.name, &ReadPrincipal::All);
        let document = match run(inner, &mut GetOne { inner, name, asker, id, options: &options }).await {
            Err(Error::Refused(Refusal::DocumentNotFound(_))) => continue,
            document => document?,
        };
        let text = [b"{", document.body.as_slice(), b"}"].concat();
        if let Ok(body) = parse(&text, &Limits::default())
            && let Ok(Some(definition)) = GroupDefinition::of_design(&body, instance.record.partitioned)
            && definition.signature[..] == index.definition
        {
            return ViewGroup::of(index.number, &definition).map(Some);
        }
    }
    Ok(None)
}

/// Reads the progress of a group and its counters of refused documents and of documents set aside.
struct ReadCounters<'a> {
    instance: &'a Instance,
    number: u64,
}

impl Operation for ReadCounters<'_> {
    type Output = (Option<Vec<u8>>, [i64; 2]);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let keys = self.instance.keys.view(self.number);
        let (progress, refused) = (trx.get(&keys.progress(), true), trx.get(&keys.refused(), true));
        let set_aside = trx.get(&keys.set_aside_count(), true);
        let progress = progress.await?.map(|progress| progress.to_vec());
        let counted = [decode_counter(refused.await?.as_deref())?, decode_counter(set_aside.await?.as_deref())?];
        Ok((progress, counted))
    }
}

/// Returns whether a group with this progress is built, so that its position changes with its counters.
fn is_followed((progress, _): &(Option<Vec<u8>>, [i64; 2])) -> bool {
    let progress = progress.as_deref().map(proto::ViewProgress::decode);
    matches!(progress, Some(Ok(progress)) if progress.phase == FOLLOWED)
}

struct Part<'a> {
    instance: &'a Instance,
    group: &'a ViewGroup,
    written: Option<&'a dyn WrittenReduces>,
    begin: &'a [u8],
    size: &'a PageSize,
}

impl Operation for Part<'_> {
    type Output = CheckPage;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<CheckPage> {
        let Part { instance, group, written, begin, size } = *self;
        check(trx, &instance.keys, group, written, (begin.to_vec(), size.attempt())).await
    }
}
