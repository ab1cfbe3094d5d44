//! Documents for restricted readers: the reads of [`crate::read::get`] and [`crate::read::missing`] with the rights of
//! a [`Viewer`].
//!
//! The reads that decide visibility are issued at once, and are the same for a hidden and for an absent document. Reads
//! of visible documents follow. For an invisible one a further read follows whose result is not known in advance.

use std::collections::{BTreeSet, HashSet};

use flatbed_databases::asker::ReadPrincipal;
use flatbed_databases::document::body::Rows;
use flatbed_databases::document::edit::{Document, GetOptions};
use flatbed_databases::document::latest::begin_latest;
use flatbed_databases::document::tree::Leaves;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_revtree::{RevId, Tree};
use flatbed_store::error::{Error, NotFound, Refusal, Result};
use flatbed_store::keys::DocumentKeys;
use flatbed_store::records::{Info, RevisionRecord};
use flatbed_store::transaction::Transaction;
use foundationdb::FdbResult;
use foundationdb::future::FdbSlice;
use futures_util::FutureExt;
use futures_util::future::try_join_all;

use crate::read::get::{
    Get, GetMany, GetOne, GetOpenRevs, GetOutcome, LEAF_COST_BYTES, OpenRevs, READ_AHEAD, READ_BYTES_MAX,
    REVISION_COST_BYTES, finish_small,
};
use crate::read::missing::{LOOKS_MAX, MissingRevs, NamedRevisions};
use crate::read::over::{DocumentReads, RequestReads};
use crate::read::revision_records::{RecordCheck, Records};
use crate::read::viewer::{PendingViewer, Removals, Viewer, check_id};

/// Named revisions of a document up to which each record is read by itself; for more, the records are scanned.
const NAMED_MAX: usize = 100;

/// Typical bytes of a record: a larger one counts as several looks.
const RECORD_BYTES: usize = 160;

fn missing() -> Error {
    Refusal::DocumentNotFound(NotFound::Missing).into()
}

async fn info_of(trx: &Transaction, read: impl Future<Output = FdbResult<Option<FdbSlice>>>) -> Result<Option<Info>> {
    let info = read.await?.map(|bytes| Info::decode(&bytes)).transpose()?;
    Ok(info.map(|info| info.read_at(trx.clock().unix_ms())))
}

async fn record_of(read: impl Future<Output = FdbResult<Option<FdbSlice>>>) -> Result<Option<RevisionRecord>> {
    read.await?.map(|bytes| RevisionRecord::decode(&bytes)).transpose()
}

/// Returns whether the reader sees a named revision.
fn is_seen(viewer: &Viewer, record: Option<&RevisionRecord>) -> bool {
    record.is_some_and(|record| viewer.can_see(record))
}

struct VisibleRequest<'a> {
    inner: &'a Inner,
    instance: &'a Instance,
    trx: &'a Transaction,
    viewer: &'a Viewer,
    id: &'a str,
    keys: &'a DocumentKeys,
    once: &'a DocumentReads,
}

impl VisibleRequest<'_> {
    /// Returns whether its body is, or may be, the winner's.
    fn is_latest(info: &Info, options: &GetOptions) -> bool {
        !options.no_body && (options.latest || options.rev.as_ref().is_none_or(|rev| *rev == info.winner))
    }

    /// Returns the document; its latest body was read if it is that.
    async fn answer(&self, found: &(Info, Rows), options: &GetOptions, tree: Option<&Tree>) -> Result<Document> {
        let mut options = options.clone();
        // The sequence is that of the newest change, whichever revision is shown.
        options.local_seq = options.local_seq
            && (options.rev.is_none() || self.viewer.can_see_winner(self.trx, self.keys, &found.0).await?);
        let VisibleRequest { inner, instance, trx, id, once, .. } = *self;
        Get { inner, instance, trx, id, options: &options, tree, once, viewer: Some(self.viewer) }
            .answer(Some(found))
            .boxed()
            .await
    }
}

impl VisibleRequest<'_> {
    /// Answers a request, with or without a revision's name.
    async fn asked(&self, found: &(Info, Rows), options: &GetOptions, tree: Option<&Tree>) -> Result<Document> {
        let answer = self.answer(found, options, tree).await;
        let Some(rev) = &options.rev else { return answer };
        // With `latest` it may be another revision.
        let shown = answer.as_ref().map_or_else(|_| rev.clone(), |document| document.rev.clone());
        self.unless_left(&shown, answer, &found.0).await
    }

    /// Answers a request for a named revision. If the feed reports that the document left with this revision, answers
    /// that instead: a reader who sees the revision by channels granted later would otherwise keep a body that they
    /// must remove, and for an expired document the body that they had before.
    async fn unless_left(&self, rev: &RevId, found: Result<Document>, info: &Info) -> Result<Document> {
        match &found {
            Ok(_) | Err(Error::Refused(Refusal::DocumentNotFound(_))) => {}
            Err(_) => return found,
        }
        let sees_winner = self.viewer.can_see_winner(self.trx, self.keys, info).await?;
        if *rev == info.winner || (sees_winner && self.viewer.is_reported(info, self.trx.clock().unix_ms())) {
            return found;
        }
        let removals = self.viewer.removals(self.trx, self.instance, self.id).boxed().await?;
        removals.shown(self.id, rev).map_or(found, Ok)
    }
}

fn no_rows() -> Rows {
    Rows::new(Vec::new(), 0)
}

/// Performs [`GetOne`] for a restricted reader.
pub(super) async fn get_one(get: &GetOne<'_>, trx: &Transaction, instance: &Instance) -> Result<Document> {
    let GetOne { inner, id, options, asker, .. } = *get;
    check_id(id)?;
    let keys = instance.keys.document(id);
    let coming = PendingViewer::begin(inner, trx, instance, asker);
    let info = trx.get(&keys.info(), true);
    let record = options.rev.as_ref().map(|rev| trx.get(&keys.revision(rev), true));
    let viewer = coming.viewer().await?;
    let info = info_of(trx, info).await?;
    let sees = match (&options.rev, record, &info) {
        (Some(rev), Some(record), _) => {
            let record = record_of(record).await?;
            if !is_seen(&viewer, record.as_ref()) {
                return viewer.removals(trx, instance, id).await?.shown(id, rev).ok_or_else(missing);
            }
            true
        }
        (_, _, Some(info)) => viewer.can_see_winner(trx, &keys, info).await?,
        (_, _, None) => false,
    };
    let Some(info) = info.filter(|_| sees) else { return Err(missing()) };
    let found = if VisibleRequest::is_latest(&info, options) {
        let read = begin_latest(trx, instance, id);
        let found = match options.small_only {
            true => finish_small(read, trx).await?,
            false => Box::pin(read.finish(trx, instance)).await?,
        };
        found.ok_or_else(missing)?
    } else {
        (info, no_rows())
    };
    let once = DocumentReads::of([options], true);
    let shown = VisibleRequest { inner, instance, trx, viewer: &viewer, id, keys: &keys, once: &once };
    shown.asked(&found, options, None).await
}

/// The next step once the visibility of a request's revision is known.
enum NextRead {
    Show(Info),
    /// There are further leaves.
    Several,
    /// The revision is invisible: the document may have left with it.
    Look(RevId),
    /// The winner is invisible: another leaf may be visible.
    LookAtLeaves,
    /// The document is absent.
    Missing,
}

/// The result of the further read for an invisible revision.
enum FurtherRead {
    Nothing,
    Removed(Removals),
    Leaf(bool),
}

/// Performs [`GetMany`] for a restricted reader.
pub(super) async fn get_many(get: &GetMany<'_>, trx: &Transaction, instance: &Instance) -> Result<Vec<GetOutcome>> {
    let GetMany { inner, asker, requests, .. } = *get;
    let mut coming = Some(PendingViewer::begin(inner, trx, instance, asker));
    let mut known: Option<Viewer> = None;
    let mut documents = Vec::with_capacity(requests.len());
    let (mut bytes, mut reads_once) = (0, RequestReads::of(requests, true));
    for requests in requests.chunks(READ_AHEAD) {
        if bytes > READ_BYTES_MAX {
            break;
        }
        let all_keys: Vec<_> = requests.iter().map(|(id, _)| instance.keys.document(id)).collect();
        let reads = requests.iter().zip(&all_keys).map(|((_, options), keys)| {
            let record = options.rev.as_ref().map(|rev| trx.get(&keys.revision(rev), true));
            (trx.get(&keys.info(), true), record)
        });
        let reads: Vec<_> = reads.collect();
        let viewer = match coming.take() {
            Some(coming) => &*known.insert(coming.viewer().await?),
            None => known.as_ref().ok_or_else(|| Error::Corrupt("nobody reads".into()))?,
        };
        let (mut infos, mut records) = (Vec::with_capacity(reads.len()), Vec::with_capacity(reads.len()));
        for (info, record) in reads {
            infos.push(info_of(trx, info).await?);
            records.push(match record {
                Some(record) => record_of(record).await?,
                None => None,
            });
        }
        let winners = requests.iter().zip(&infos).zip(&all_keys);
        let winners =
            winners.map(|(((_, options), info), keys)| Some((keys, info.as_ref().filter(|_| options.rev.is_none())?)));
        let winners = viewer.see_winners(trx, winners).await?;
        let then = requests.iter().zip(infos).zip(records.into_iter().zip(winners));
        let then = then.map(|(((id, options), info), (record, sees_winner))| match (&options.rev, info) {
            _ if check_id(id).is_err() => NextRead::Missing,
            (Some(_), Some(info)) if is_seen(viewer, record.as_ref()) => match options.latest && info.leaf_count > 1 {
                true => NextRead::Several,
                false => NextRead::Show(info),
            },
            (Some(rev), _) => NextRead::Look(rev.clone()),
            (None, Some(info)) if sees_winner => match info.leaf_count > 1 {
                true => NextRead::Several,
                false => NextRead::Show(info),
            },
            (None, _) => NextRead::LookAtLeaves,
        });
        let then: Vec<NextRead> = then.collect();
        let latest: Vec<_> = requests
            .iter()
            .zip(&then)
            .map(|((id, options), then)| match then {
                NextRead::Show(info) if VisibleRequest::is_latest(info, options) => {
                    Some(begin_latest(trx, instance, id))
                }
                _ => None,
            })
            .collect();
        let looks = requests.iter().zip(&then).zip(&all_keys).map(|(((id, _), then), keys)| async move {
            Ok::<_, Error>(match then {
                NextRead::Look(_) => FurtherRead::Removed(viewer.removals(trx, instance, id).await?),
                NextRead::LookAtLeaves => FurtherRead::Leaf(!visible_leaves(trx, keys, viewer).await?.is_empty()),
                _ => FurtherRead::Nothing,
            })
        });
        let looked = try_join_all(looks).await?;
        let each = requests.iter().zip(all_keys.iter()).zip(then).zip(latest.into_iter().zip(looked));
        for ((((id, options), keys), then), (latest, looked)) in each {
            if bytes > READ_BYTES_MAX || !reads_once.has_room_for(id) {
                return Ok(documents);
            }
            let got = match (then, looked) {
                (NextRead::Show(info), _) => {
                    let found = match latest {
                        Some(read) => read.finish(trx, instance).await?,
                        None => Some((info, no_rows())),
                    };
                    let found = found.ok_or_else(missing)?;
                    let shown =
                        VisibleRequest { inner, instance, trx, viewer, id, keys, once: reads_once.of_document(id) };
                    match shown.asked(&found, options, None).await {
                        Err(Error::Refused(Refusal::DocumentNotFound(reason))) => GetOutcome::Missing(reason),
                        answer => GetOutcome::Document(Box::new(answer?)),
                    }
                }
                (NextRead::Several, _) | (_, FurtherRead::Leaf(true)) => GetOutcome::Several,
                (NextRead::Look(rev), FurtherRead::Removed(removals)) => match removals.shown(id, &rev) {
                    Some(document) => GetOutcome::Document(Box::new(document)),
                    None => GetOutcome::Missing(NotFound::Missing),
                },
                _ => GetOutcome::Missing(NotFound::Missing),
            };
            bytes += match &got {
                GetOutcome::Document(document) => document.body.len(),
                GetOutcome::Several => 2 * LEAF_COST_BYTES,
                GetOutcome::Missing(_) => 0,
            };
            reads_once.reckon(id);
            documents.push(got);
        }
    }
    Ok(documents)
}

/// Returns the visible leaves of a document. Takes as many reads if there is no document.
async fn visible_leaves(trx: &Transaction, keys: &DocumentKeys, viewer: &Viewer) -> Result<Vec<RevId>> {
    let (now_ms, sees) = (trx.clock().unix_ms(), |record: &RevisionRecord| viewer.can_see(record));
    let (leaves, records) = (Leaves::read(trx, keys), Records::read(trx, keys, 0, now_ms, &sees));
    let (leaves, mut records) = futures_util::future::try_join(leaves, records).await?;
    records.complete(trx, keys, leaves.0.iter().map(|leaf| &leaf.rev), now_ms, &sees).await?;
    let revs = leaves.0.into_iter().map(|leaf| leaf.rev);
    Ok(revs.filter(|rev| records.get(rev).is_some_and(|record| record.is_given)).collect())
}

/// Performs [`GetOpenRevs`] for a restricted reader.
pub(super) async fn open_revs(
    get: &GetOpenRevs<'_>,
    trx: &Transaction,
    instance: &Instance,
) -> Result<(Vec<std::result::Result<Document, RevId>>, usize)> {
    let GetOpenRevs { inner, id, revs, from, descending, options, asker, .. } = *get;
    check_id(id)?;
    let keys = instance.keys.document(id);
    let coming = PendingViewer::begin(inner, trx, instance, asker);
    let info = trx.get(&keys.info(), true);
    let named: BTreeSet<&RevId> = match revs {
        OpenRevs::All => BTreeSet::new(),
        OpenRevs::Some(revs) => revs.iter().collect(),
    };
    let reads: Vec<_> = named.iter().map(|rev| trx.get(&keys.revision(rev), true)).collect();
    let viewer = coming.viewer().await?;
    let info = info_of(trx, info).await?;
    let mut seen = BTreeSet::new();
    for (rev, read) in named.iter().zip(reads) {
        if is_seen(&viewer, record_of(read).await?.as_ref()) {
            seen.insert((*rev).clone());
        }
    }
    let is_alone = match (&info, revs) {
        (Some(info), OpenRevs::All) if info.leaf_count == 1 => viewer.can_see_winner(trx, &keys, info).await?,
        _ => false,
    };
    let unseen = || named.iter().filter(|rev| !seen.contains(**rev)).map(|rev| (*rev).clone());
    let removals = match unseen().next() {
        Some(_) => Some(viewer.removals(trx, instance, id).await?),
        None => None,
    };
    // The tree is read once for all revisions.
    let tells_tree = options.revs || options.revs_info || options.born || options.conflicts();
    let wants_tree = !seen.is_empty() && (options.latest || tells_tree);
    let mut tree = None;
    let mut wanted: Vec<RevId> = match (&info, revs) {
        (Some(info), OpenRevs::All) if is_alone => vec![info.winner.clone()],
        (_, OpenRevs::All) => visible_leaves(trx, &keys, &viewer).await?,
        (_, OpenRevs::Some(_)) if wants_tree => {
            let tree = &*tree.insert(whole_tree(trx, &keys).await?);
            let over = match options.latest {
                true => visible_leaves_above(trx, &keys, &viewer, tree, &seen).await?,
                false => seen.clone(),
            };
            unseen().chain(over).collect()
        }
        (_, OpenRevs::Some(_)) => named.iter().map(|rev| (*rev).clone()).collect(),
    };
    wanted.sort_unstable();
    wanted.dedup();
    if descending {
        wanted.reverse();
    }
    let count = wanted.len();
    let Some(info) = info else {
        let shown = |rev: RevId| removals.as_ref().and_then(|removals| removals.shown(id, &rev)).ok_or(rev);
        return Ok((wanted.into_iter().skip(from).map(shown).collect(), count));
    };
    if tree.is_none() && tells_tree && matches!(revs, OpenRevs::All) && !wanted.is_empty() {
        tree = Some(whole_tree(trx, &keys).await?);
    }
    let rest = wanted.get(from..).unwrap_or_default();
    let is_unseen = |rev: &RevId| named.contains(rev) && !seen.contains(rev);
    let latest = match rest.iter().any(|rev| *rev == info.winner && !is_unseen(rev)) {
        true => begin_latest(trx, instance, id).finish(trx, instance).await?,
        false => None,
    };
    let found = latest.unwrap_or_else(|| (info, no_rows()));
    let oldest = wanted.iter().min().map(|rev| options.of_revision(rev));
    let once = DocumentReads::of(&oldest, true);
    let shown = VisibleRequest { inner, instance, trx, viewer: &viewer, id, keys: &keys, once: &once };
    let (mut answers, mut bytes) = (Vec::new(), 0);
    for rev in rest {
        if bytes > READ_BYTES_MAX {
            break;
        }
        let answer = if is_unseen(rev) {
            removals.as_ref().and_then(|removals| removals.shown(id, rev)).ok_or_else(|| rev.clone())
        } else {
            let options = options.of_revision(rev);
            let answer = match named.is_empty() {
                true => shown.answer(&found, &options, tree.as_ref()).await,
                false => shown.asked(&found, &options, tree.as_ref()).await,
            };
            match answer {
                Err(Error::Refused(Refusal::DocumentNotFound(_))) => Err(rev.clone()),
                answer => Ok(answer?),
            }
        };
        bytes += REVISION_COST_BYTES + answer.as_ref().map_or(0, |document| document.body.len());
        answers.push(answer);
    }
    Ok((answers, count))
}

async fn whole_tree(trx: &Transaction, keys: &DocumentKeys) -> Result<Tree> {
    Leaves::read(trx, keys).await?.whole(trx, keys).await
}

/// Returns the visible leaves above some revisions; a revision without a leaf above it stands for itself.
async fn visible_leaves_above(
    trx: &Transaction,
    keys: &DocumentKeys,
    viewer: &Viewer,
    tree: &Tree,
    revs: &BTreeSet<RevId>,
) -> Result<BTreeSet<RevId>> {
    let over = revs.iter().map(|rev| (rev, tree.branches_over(rev).map(|branch| &branch.leaf).collect::<Vec<_>>()));
    let over: Vec<_> = over.collect();
    let leaves: BTreeSet<&RevId> = over.iter().flat_map(|(_, leaves)| leaves.iter().copied()).collect();
    let reads: Vec<_> = leaves.iter().map(|leaf| (*leaf, trx.get(&keys.revision(leaf), true))).collect();
    let mut seen = BTreeSet::new();
    for (leaf, read) in reads {
        if is_seen(viewer, record_of(read).await?.as_ref()) {
            seen.insert(leaf);
        }
    }
    let of_one = |(rev, leaves): (&RevId, Vec<&RevId>)| {
        let mut found: Vec<RevId> = leaves.into_iter().filter(|leaf| seen.contains(leaf)).cloned().collect();
        if found.is_empty() {
            found.push(rev.clone());
        }
        found
    };
    Ok(over.into_iter().flat_map(of_one).collect())
}

async fn read_named(trx: &Transaction, keys: &DocumentKeys, revs: &[RevId], asked: RecordCheck<'_>) -> Result<Records> {
    let (now_ms, lowest) = (trx.clock().unix_ms(), revs.iter().map(RevId::generation).min().unwrap_or_default());
    let mut records = Records::read(trx, keys, lowest, now_ms, asked).await?;
    records.complete(trx, keys, revs, now_ms, asked).await?;
    Ok(records)
}

/// The pending reads of the records of named revisions.
enum NamedReads<F> {
    Each(Vec<F>),
    All,
}

/// Performs [`MissingRevs`] for a restricted reader: revisions count as present if the reader sees them or wrote them.
pub(super) async fn missing_revs(
    get: &MissingRevs<'_>,
    trx: &Transaction,
    instance: &Instance,
) -> Result<Vec<(Vec<RevId>, Vec<RevId>)>> {
    let MissingRevs { inner, wanted, asker, .. } = *get;
    let mut coming = Some(PendingViewer::begin(inner, trx, instance, asker));
    let mut known: Option<Viewer> = None;
    let mut answers = Vec::with_capacity(wanted.len());
    let mut looks = 0;
    for part in wanted.chunks(READ_AHEAD) {
        if looks > LOOKS_MAX {
            break;
        }
        let begin = |(id, revs): &NamedRevisions| {
            let keys = instance.keys.document(id);
            let is_read = !revs.is_empty() && check_id(id).is_ok();
            let info = is_read.then(|| trx.get(&keys.info(), true));
            let records = match revs.len() <= NAMED_MAX {
                true if is_read => {
                    NamedReads::Each(revs.iter().map(|rev| trx.get(&keys.revision(rev), true)).collect())
                }
                true => NamedReads::Each(Vec::new()),
                false => NamedReads::All,
            };
            (keys, is_read, info, records)
        };
        let reads: Vec<_> = part.iter().map(begin).collect();
        let viewer = match coming.take() {
            Some(coming) => &*known.insert(coming.viewer().await?),
            None => known.as_ref().ok_or_else(|| Error::Corrupt("nobody reads".into()))?,
        };
        let knows = |record: &RevisionRecord| viewer.can_see(record) || viewer.has_written(record, asker);
        let mut found = Vec::with_capacity(reads.len());
        for ((_, revs), (keys, is_read, info, records)) in part.iter().zip(reads) {
            let mut known: HashSet<&RevId> = HashSet::new();
            match records {
                NamedReads::Each(reads) => {
                    for (rev, read) in revs.iter().zip(reads) {
                        if record_of(read).await?.is_some_and(|record| knows(&record)) {
                            known.insert(rev);
                        }
                    }
                }
                NamedReads::All if is_read => {
                    let records = read_named(trx, &keys, revs, &knows).await?;
                    known.extend(revs.iter().filter(|rev| records.get(rev).is_some_and(|told| told.is_given)));
                    looks += usize::try_from(records.bytes()).unwrap_or(usize::MAX) / RECORD_BYTES;
                }
                NamedReads::All => {}
            }
            looks += revs.len();
            let info = match info {
                Some(info) => info_of(trx, info).await?,
                None => None,
            };
            let missing: Vec<RevId> = revs.iter().filter(|rev| !known.contains(rev)).cloned().collect();
            found.push((keys, is_read, info, missing, !known.is_empty()));
        }
        let winners = found.iter().map(|(keys, _, info, ..)| Some((keys, info.as_ref()?)));
        let winners = viewer.see_winners(trx, winners).await?;
        let ancestors = found.into_iter().zip(winners).map(
            |((keys, is_read, info, mut missing, has_known), sees_winner)| async move {
                let Some(greatest) = missing.iter().map(RevId::generation).max().filter(|_| is_read) else {
                    return Ok((missing, Vec::new()));
                };
                let mut leaves = match info {
                    Some(info) if sees_winner && info.leaf_count == 1 => vec![info.winner],
                    _ => visible_leaves(trx, &keys, viewer).await?,
                };
                // The order must not reveal that a hidden document exists.
                if has_known || sees_winner || !leaves.is_empty() {
                    missing.sort_unstable();
                    missing.dedup();
                }
                leaves.retain(|leaf| leaf.generation() < greatest);
                leaves.sort_unstable_by(|a, b| b.cmp(a));
                Ok::<_, Error>((missing, leaves))
            },
        );
        answers.extend(try_join_all(ancestors).await?);
    }
    Ok(answers)
}

/// Looks up the infos of documents with visible winners, for [`crate::read::all_docs::AllDocsKeys`].
pub(super) async fn winners_of(
    inner: &Inner,
    trx: &Transaction,
    instance: &Instance,
    asker: &ReadPrincipal,
    ids: &[String],
) -> Result<(Viewer, Vec<Option<Info>>)> {
    let coming = PendingViewer::begin(inner, trx, instance, asker);
    let all_keys: Vec<_> = ids.iter().map(|id| instance.keys.document(id)).collect();
    let reads: Vec<_> =
        ids.iter().zip(&all_keys).map(|(id, keys)| check_id(id).is_ok().then(|| trx.get(&keys.info(), true))).collect();
    let viewer = coming.viewer().await?;
    let mut infos = Vec::with_capacity(reads.len());
    for read in reads {
        infos.push(match read {
            Some(read) => info_of(trx, read).await?,
            None => None,
        });
    }
    let winners = infos.iter().zip(&all_keys).map(|(info, keys)| Some((keys, info.as_ref()?)));
    let seen = viewer.see_winners(trx, winners).await?;
    Ok((viewer, infos.into_iter().zip(seen).map(|(info, is_seen)| info.filter(|_| is_seen)).collect()))
}
