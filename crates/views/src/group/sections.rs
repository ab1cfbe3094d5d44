//! Builds the nodes of a group's sections, together with other processes.
//!
//! Each process runs several builders. A builder takes a section, writes its nodes level by level and a part in each
//! transaction, and takes the next one. The builder that finds none ends the phase, and its process becomes the holder.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flatbed_store::error::{Error, Result};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::group::build::{BEATS, LEAVES_IN, LOOKS, STALLED_MAX, ranges_at_once};
use crate::group::job::Job;
use crate::group::leases::{LeaseToken, new_token};
use crate::group::section_leases::{
    BeatSections, BuildSection, BuildSectionOutcome, HeldSection, OtherSections, TakeSection, TakeSectionOutcome,
};
use crate::group::steps::{NODES_FOR, Step};
use crate::view::build::NodesPace;
use crate::view_updates::lock;

/// The builders of a process.
#[derive(Default)]
struct Builders {
    others: OtherSections,
    /// By token: the section's hash, and when a part of it was last built.
    held: Mutex<HashMap<LeaseToken, (Vec<u8>, Instant)>>,
}

/// Builds sections until all are built, or the group is gone.
pub(super) async fn build(job: &Arc<Job>) -> Result<()> {
    let builders = Arc::new(Builders::default());
    let mut work = JoinSet::new();
    for _ in 0..ranges_at_once() {
        work.spawn(take_and_build(Arc::clone(job), Arc::clone(&builders)));
    }
    let (clock, mut beats) = (job.clock().clone(), 0);
    let mut next_beat = clock.now() + BEATS.get();
    let outcome = loop {
        tokio::select! {
            // One that ends has found that nothing is left.
            Some(ended) = work.join_next() => break ended.map_err(Error::of_task).and_then(|ended| ended),
            () = clock.sleep_until(next_beat) => {
                beats += 1;
                if let Err(error) = builders.beat(job, beats, false).await {
                    break Err(error);
                }
                next_beat = clock.now() + BEATS.get();
            }
        }
    };
    work.shutdown().await;
    if let Ok(Err(error)) = clock.timeout(LEAVES_IN, builders.beat(job, beats, true)).await {
        // Other processes notice by themselves.
        tracing::debug!(database = &*job.reader.name, %error, "sections of a first build could not be returned");
    }
    outcome
}

async fn take_and_build(job: Arc<Job>, builders: Arc<Builders>) -> Result<()> {
    let mut pace = NodesPace::default();
    while !job.is_closing() {
        let token = new_token()?;
        builders.others.note_own(token);
        let take = TakeSection { others: &builders.others, token, chosen: None };
        match Step::run(&job, take).await? {
            None | Some(TakeSectionOutcome::Over) => return Ok(()),
            Some(TakeSectionOutcome::Nothing) => job.clock().sleep(LOOKS.get()).await,
            Some(TakeSectionOutcome::Section(held)) => {
                builders.note(&job, &held);
                if !build_one(&job, &builders, held, &mut pace).await? {
                    return Ok(());
                }
                lock(&builders.held).remove(&token);
            }
        }
        builders.others.forget_own(&token);
    }
    Ok(())
}

/// Builds a section to its end, or until another process has it. Returns false if the group is gone or the process
/// stops.
async fn build_one(job: &Job, builders: &Builders, mut held: HeldSection, pace: &mut NodesPace) -> Result<bool> {
    while !job.is_closing() {
        let (began, mut waited) = (job.clock().now(), Duration::ZERO);
        let step = BuildSection { held: &held, pace, began: None, waited: &mut waited };
        let built = Step::run(job, step).await?;
        if job.clock().since(began).saturating_sub(waited) > NODES_FOR {
            pace.halve();
        }
        match built {
            None => return Ok(false),
            Some(BuildSectionOutcome::Complete | BuildSectionOutcome::Lost) => return Ok(true),
            Some(BuildSectionOutcome::Part(section)) => held.section = section,
        }
        builders.note(job, &held);
        // Shows when it moved last.
        job.state.add_done(0);
    }
    Ok(false)
}

impl Builders {
    fn note(&self, job: &Job, held: &HeldSection) {
        lock(&self.held).insert(held.token, (held.hash.clone(), job.clock().now()));
    }

    /// Renews the sections that are built, or `leaves` all of them to others.
    async fn beat(&self, job: &Job, beats: u64, leaves: bool) -> Result<()> {
        let clock = job.clock();
        let held: Vec<(Vec<u8>, LeaseToken)> = {
            let mut held = lock(&self.held);
            if job.is_waiting() {
                // Another process would have to wait as well.
                let now = clock.now();
                held.values_mut().for_each(|(_, moved_at)| *moved_at = now);
            }
            let moves = |(_, (_, moved_at)): &(&LeaseToken, &(Vec<u8>, Instant))| {
                leaves || clock.since(*moved_at) < STALLED_MAX.get()
            };
            held.iter().filter(moves).map(|(token, (hash, _))| (hash.clone(), *token)).collect()
        };
        if held.is_empty() {
            return Ok(());
        }
        Step::run(job, BeatSections { held: &held, beats, leaves }).await?;
        Ok(())
    }
}
