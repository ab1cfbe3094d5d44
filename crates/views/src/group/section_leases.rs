//! The leases of sections, with which several processes build the nodes of a group.
//!
//! A section's key names its holder and the place up to which its nodes are built ([`crate::view::sections`]). The
//! transaction that writes nodes reads the key with a conflict and moves the place, so a dead holder loses at most one
//! transaction, and no section is built by two processes at once. A holder also writes a beat each second. A section
//! whose place and beat stand still, by another process's own clock, is taken over.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use flatbed_clock::Clock;
use flatbed_store::error::Result;
use flatbed_store::keys::{KeyRange, ViewKeys, ViewPart};
use flatbed_store::proto::{ViewBuilding, ViewProgress, ViewSection};
use flatbed_store::transaction::RangePage;
use futures_util::future::join;
use prost::Message;
use tokio::time::Instant;

use crate::group::leases::{LeaseToken, SILENCE_MAX};
use crate::group::steps::{GroupContext, NODES_FOR, Work};
use crate::view::build::{NODES, NodesPace, SECTIONS};
use crate::view::sections::SectionRule;
use crate::view_updates::lock;

/// The sections that a process reads from a random place on, to find a free one.
const PLACES_READ: usize = 50;

/// The sections and beats that a process reads if none of them is free.
const ALL_READ: usize = 1_000;

/// A section as it is stored.
#[derive(Debug, Clone, PartialEq)]
struct StoredSection {
    section: ViewSection,
    beat: Vec<u8>,
}

/// The sections of other processes, as this process sees them.
#[derive(Debug, Default)]
pub struct OtherSections {
    seen: Mutex<HashMap<Vec<u8>, (StoredSection, Instant)>>,
    own: Mutex<HashSet<LeaseToken>>,
}

impl OtherSections {
    /// Notes the token of a builder of this process, before it takes a section.
    pub fn note_own(&self, token: LeaseToken) {
        lock(&self.own).insert(token);
    }

    pub fn forget_own(&self, token: &LeaseToken) {
        lock(&self.own).remove(token);
    }

    /// Returns whether a section has no holder. One with this process's mark and an unknown token belongs to an ended
    /// build of this process.
    fn is_left(&self, section: &ViewSection, owner: &[u8]) -> bool {
        let is_known =
            || LeaseToken::try_from(section.token.as_slice()).is_ok_and(|token| lock(&self.own).contains(&token));
        section.owner.is_empty() || section.owner == owner && !is_known()
    }

    /// Notes all sections, and returns those whose holder has been silent for too long.
    fn silent(&self, clock: &Clock, all: &[(Vec<u8>, StoredSection)], owner: &[u8]) -> HashSet<Vec<u8>> {
        let mut seen = lock(&self.seen);
        let mut before = std::mem::take(&mut *seen);
        let mut silent = HashSet::new();
        for (hash, stored) in all.iter().filter(|(_, stored)| stored.section.owner != owner) {
            let since = before.remove(hash).filter(|(before, _)| before == stored).map(|(_, since)| since);
            let since = since.unwrap_or_else(|| clock.now());
            if clock.since(since) >= SILENCE_MAX.get() {
                silent.insert(hash.clone());
            }
            seen.insert(hash.clone(), (stored.clone(), since));
        }
        silent
    }
}

fn sections_of(keys: &ViewKeys, page: &RangePage) -> Result<Vec<(Vec<u8>, StoredSection)>> {
    let mut all: Vec<(Vec<u8>, StoredSection)> = Vec::with_capacity(page.len());
    for row in page {
        match keys.split(row.key())? {
            ViewPart::Section(hash) => {
                all.push((hash, StoredSection { section: ViewSection::decode(row.value())?, beat: Vec::new() }));
            }
            ViewPart::SectionBeat(of) => {
                if let Some((_, stored)) = all.last_mut().filter(|(hash, _)| *hash == of) {
                    stored.beat = row.value().to_vec();
                }
            }
            _ => {}
        }
    }
    Ok(all)
}

/// A section that a builder of this process holds.
#[derive(Debug, Clone)]
pub struct HeldSection {
    pub hash: Vec<u8>,
    pub token: LeaseToken,
    pub section: ViewSection,
    pub rule: SectionRule,
}

/// Takes a section: one without a holder, or one whose holder is silent.
pub struct TakeSection<'a> {
    pub others: &'a OtherSections,
    /// The token of the holder, the same in all attempts. The search begins at the section with this hash.
    pub token: LeaseToken,
    /// The section of the previous attempt.
    pub chosen: Option<Vec<u8>>,
}

#[derive(Debug)]
pub enum TakeSectionOutcome {
    Section(HeldSection),
    /// Other processes or builders hold all sections.
    Nothing,
    /// All sections are built.
    Over,
}

impl Work for TakeSection<'_> {
    type Output = TakeSectionOutcome;

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<TakeSectionOutcome>> {
        let GroupContext { job, trx, instance, .. } = *within;
        let keys = instance.keys.view(job.number());
        let (all, owner) = (keys.sections(), within.owner());
        let progress = trx.get(&instance.keys.index_progress(job.number()), true);
        let from = KeyRange { begin: keys.section(&self.token), end: all.end.clone() };
        let some = trx.range(&from, true).page(PLACES_READ);
        let progress = progress.await?.map(|bytes| ViewProgress::decode(&*bytes)).transpose()?;
        let is_at_it =
            |progress: &ViewProgress| progress.phase == SECTIONS && progress.incarnation == instance.incarnation();
        let Some(progress) = progress.filter(is_at_it) else { return Ok(Some(TakeSectionOutcome::Over)) };
        let rule = SectionRule::of(&progress)?;
        if let Some(hash) = self.chosen.take() {
            // The previous attempt may have committed (`commit_unknown_result`).
            let stored = trx.get(&keys.section(&hash), false).await?;
            let section = stored.map(|stored| ViewSection::decode(&*stored)).transpose()?;
            if let Some(section) = section.filter(|section| section.token == self.token) {
                let (token, rule) = (self.token, rule);
                return Ok(Some(TakeSectionOutcome::Section(HeldSection { hash, token, section, rule })));
            }
        }
        let mut candidates = sections_of(&keys, &some.await?)?;
        candidates.retain(|(_, stored)| self.others.is_left(&stored.section, &owner));
        if candidates.is_empty() {
            let page = trx.range(&all, true).page(ALL_READ).await?;
            let mut found = sections_of(&keys, &page)?;
            if found.is_empty() && page.is_all() {
                // None is added any more.
                self.end(within).await?;
                return Ok(Some(TakeSectionOutcome::Over));
            }
            let silent = self.others.silent(job.clock(), &found, &owner);
            found.retain(|(hash, stored)| self.others.is_left(&stored.section, &owner) || silent.contains(hash));
            candidates = found;
        }
        for (hash, StoredSection { section, .. }) in candidates {
            let key = keys.section(&hash);
            // If two processes take it, one of them retries.
            if trx.get(&key, false).await?.is_none_or(|stored| *stored != *section.encode_to_vec()) {
                continue;
            }
            let section = ViewSection { owner: owner.to_vec(), token: self.token.to_vec(), ..section };
            trx.set(&key, &section.encode_to_vec());
            self.chosen = Some(hash.clone());
            return Ok(Some(TakeSectionOutcome::Section(HeldSection { hash, token: self.token, section, rule })));
        }
        Ok(Some(TakeSectionOutcome::Nothing))
    }
}

impl TakeSection<'_> {
    /// Makes this process the holder, which builds the nodes above the sections.
    async fn end(&self, within: &GroupContext<'_>) -> Result<()> {
        let GroupContext { job, trx, instance, .. } = *within;
        let stored = trx.get(&instance.keys.index_progress(job.number()), false).await?;
        let Some(mut progress) = stored.map(|stored| ViewProgress::decode(&*stored)).transpose()? else {
            return Ok(());
        };
        let all = instance.keys.view(job.number()).sections();
        trx.clear_range(&all.begin, &all.end);
        progress.phase = NODES;
        progress.building = Some(ViewBuilding::default());
        progress.holder = within.owner().to_vec();
        within.write(&progress);
        Ok(())
    }
}

/// Writes the next nodes of a section.
pub struct BuildSection<'a> {
    pub held: &'a HeldSection,
    pub pace: &'a mut NodesPace,
    pub began: Option<Instant>,
    /// The time that the transaction waited for permits.
    pub waited: &'a mut Duration,
}

#[derive(Debug)]
pub enum BuildSectionOutcome {
    /// The section as it is now.
    Part(ViewSection),
    Complete,
    /// Another process holds it.
    Lost,
}

impl Work for BuildSection<'_> {
    type Output = BuildSectionOutcome;

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<BuildSectionOutcome>> {
        let GroupContext { job, trx, instance, .. } = *within;
        let clock = job.clock();
        if self.began.replace(clock.now()).is_some_and(|began| clock.since(began) > NODES_FOR) {
            self.pace.halve();
        }
        let keys = instance.keys.view(job.number());
        let HeldSection { hash, token, section, rule } = self.held;
        let (key, pace) = (keys.section(hash), &mut *self.pace);
        let expected = rule.build((trx, &keys), &job.storage, Some(&job.written), section, pace);
        let (stored, expected) = join(trx.get(&key, false), expected).await;
        // The previous attempt may have completed the section.
        let Some(stored) = stored? else { return Ok(Some(BuildSectionOutcome::Complete)) };
        let stored = ViewSection::decode(&*stored)?;
        if stored.token != *token {
            return Ok(Some(BuildSectionOutcome::Lost));
        }
        let built = match stored == *section {
            true => expected?,
            // The previous attempt has committed.
            false => rule.build((trx, &keys), &job.storage, Some(&job.written), &stored, self.pace).await?,
        };
        if let Some((height, rows, bytes)) = built.root {
            let progress = trx.get(&instance.keys.index_progress(job.number()), false).await?;
            let progress = progress.map(|progress| ViewProgress::decode(&*progress)).transpose()?;
            let Some(mut progress) = progress else { return Ok(None) };
            if let Some(tree) = progress.trees.get_mut(stored.tree as usize) {
                (tree.height, tree.rows, tree.bytes) = (height, rows, bytes);
            }
            within.write(&progress);
        }
        built.write(trx)?;
        Ok(Some(match built.next {
            Some(next) => {
                trx.set(&key, &next.encode_to_vec());
                BuildSectionOutcome::Part(next)
            }
            None => {
                trx.clear(&key);
                trx.clear(&keys.section_beat(hash));
                BuildSectionOutcome::Complete
            }
        }))
    }

    fn bytes(&self) -> usize {
        self.pace.bytes()
    }

    fn record_wait(&mut self, time: Duration) {
        self.began = None;
        *self.waited += time;
    }
}

/// Shows that this process works on its sections. `leaves`: returns them instead.
pub struct BeatSections<'a> {
    /// Hashes and tokens.
    pub held: &'a [(Vec<u8>, LeaseToken)],
    pub beats: u64,
    pub leaves: bool,
}

impl Work for BeatSections<'_> {
    type Output = ();

    async fn attempt(&mut self, within: &GroupContext<'_>) -> Result<Option<()>> {
        let GroupContext { job, trx, instance, .. } = *within;
        let keys = instance.keys.view(job.number());
        let stored: Vec<_> = self.held.iter().map(|(hash, _)| trx.get(&keys.section(hash), false)).collect();
        for ((hash, token), stored) in self.held.iter().zip(stored) {
            let stored = stored.await?.map(|stored| ViewSection::decode(&*stored)).transpose()?;
            let Some(section) = stored.filter(|section| section.token == *token) else { continue };
            if self.leaves {
                let left = ViewSection { owner: Vec::new(), token: Vec::new(), ..section };
                trx.set(&keys.section(hash), &left.encode_to_vec());
                trx.clear(&keys.section_beat(hash));
            } else {
                trx.set(&keys.section_beat(hash), &self.beats.to_le_bytes());
            }
        }
        Ok(Some(()))
    }
}
