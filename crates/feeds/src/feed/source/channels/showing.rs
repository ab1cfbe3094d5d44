//! Adds leaves and documents to rows of a feed of channels, as far as the reader may see them.

use std::collections::{HashSet, VecDeque};

use flatbed_channels::{FeedRow, RowKind as Kind};
use flatbed_databases::document::body::Rows;
use flatbed_databases::document::edit::Document;
use flatbed_databases::document::latest::begin_latest_of;
use flatbed_databases::document::tree::{self, Leaves};
use flatbed_databases::held::HeldRights;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_operations::read::get::{READ_BYTES_MAX, read_ahead, shown};
use flatbed_revtree::{RevId, rank};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::DocumentKeys;
use flatbed_store::records::Info;
use flatbed_store::seq::Seq;
use flatbed_store::transaction::Transaction;
use futures_util::stream::{self, StreamExt, TryStreamExt};

use crate::feed::query::Extras;
use crate::feed::row::{ChangeRow, RowKind};
use crate::feed::source::channels::reading::{AT_ONCE, channels_of, channels_of_revision};

/// The body of a document that the reader has lost.
const REMOVED: &[u8] = br#""_removed":true"#;

/// The extras of rows under a reader's rights.
pub(super) struct Show<'a> {
    pub(super) trx: &'a Transaction,
    pub(super) inner: &'a Inner,
    pub(super) instance: &'a Instance,
    pub(super) held: &'a HeldRights,
    pub(super) extras: Extras,
    /// The name in the reader's own row.
    pub(super) name: Option<&'a str>,
}

impl Show<'_> {
    /// Returns the rows that fit a page, and those left behind them. Documents that have changed since have no row:
    /// their new row comes later.
    pub(super) async fn rows(&self, found: Vec<FeedRow>) -> Result<(Vec<ChangeRow>, VecDeque<FeedRow>)> {
        if self.extras.has_documents() {
            return self.with_documents(found.into()).await;
        }
        let rows = stream::iter(found).map(|row| async move {
            let (is_change, row) = (row.kind == Kind::Changed, self.row(row)?);
            if is_change && self.extras.leaves { self.with_leaves(row).await } else { Ok(Some(row)) }
        });
        let rows: Vec<Option<ChangeRow>> = rows.buffered(AT_ONCE.get()).try_collect().await?;
        Ok((rows.into_iter().flatten().collect(), VecDeque::new()))
    }

    fn row(&self, row: FeedRow) -> Result<ChangeRow> {
        let incarnation = self.instance.incarnation();
        let at = Seq::new(incarnation, row.position.at.0);
        let (seq, because) = match row.position.of {
            Some(of) => (Seq::new(incarnation, of.0), Some(at)),
            None => (at, None),
        };
        if row.kind == Kind::User {
            let id = format!("_user/{}", self.name.unwrap_or_default());
            let of = ChangeRow::changed(seq, id, RevId::new(0, [0; 16]), Vec::new());
            return Ok(ChangeRow { kind: RowKind::User, because, leaf_count: 0, ..of });
        }
        let corrupt = |_| Error::Corrupt("an entry of a channel has no revision".into());
        let rev = row.rev.parse::<RevId>().map_err(corrupt)?;
        let kind = match row.kind {
            Kind::Changed => RowKind::Changed,
            Kind::Removed => RowKind::Lost,
            Kind::Revoked | Kind::User => RowKind::Revoked,
        };
        let (deleted, removed) = (row.deleted, row.removed);
        let of = ChangeRow::changed(seq, row.doc, rev.clone(), vec![rev]);
        Ok(ChangeRow { kind, because, deleted, removed, ..of })
    }

    async fn with_leaves(&self, mut row: ChangeRow) -> Result<Option<ChangeRow>> {
        let keys = self.instance.keys.document(&row.id);
        let info = tree::info(self.trx, &keys, true).await?;
        let Some(info) = info.filter(|info| is_of(info, &row)) else { return Ok(None) };
        row.leaves = self.leaves(&keys, &info).await?;
        row.leaf_count = row.leaves.len();
        Ok(Some(row))
    }

    /// Returns the visible leaves, the winner first.
    async fn leaves(&self, keys: &DocumentKeys, info: &Info) -> Result<Vec<RevId>> {
        if info.leaf_count < 2 {
            return Ok(vec![info.winner.clone()]);
        }
        let leaves = Leaves::read(self.trx, keys).await?.0;
        let mut others: Vec<(bool, RevId)> = leaves.into_iter().map(|leaf| (leaf.deleted, leaf.rev)).collect();
        others.retain(|(_, rev)| *rev != info.winner);
        others.sort_by(|a, b| rank(b.0, &b.1).cmp(&rank(a.0, &a.1)));
        let seen = stream::iter(others).map(|(_, rev)| async move {
            let is_seen = self.held.has_all() || {
                let channels = channels_of_revision(self.trx, keys, &rev).await?;
                self.held.can_see(channels.iter().map(String::as_str))
            };
            Ok::<_, Error>(is_seen.then_some(rev))
        });
        let seen: Vec<Option<RevId>> = seen.buffered(AT_ONCE.get()).try_collect().await?;
        Ok([info.winner.clone()].into_iter().chain(seen.into_iter().flatten()).collect())
    }

    async fn with_documents(&self, mut found: VecDeque<FeedRow>) -> Result<(Vec<ChangeRow>, VecDeque<FeedRow>)> {
        let (mut rows, mut reads, mut bytes) = (Vec::with_capacity(found.len()), VecDeque::new(), 0);
        let mut done = 0;
        while bytes <= READ_BYTES_MAX {
            let (width, target_bytes) = read_ahead(bytes, done);
            while reads.len() < width
                && let Some(row) = found.get(reads.len())
            {
                let is_change = row.kind == Kind::Changed;
                reads.push_back(is_change.then(|| begin_latest_of(self.trx, self.instance, &row.doc, target_bytes)));
            }
            let Some(row) = found.pop_front() else { break };
            let mut row = self.row(row)?;
            match reads.pop_front().flatten() {
                Some(read) => {
                    let latest = read.finish(self.trx, self.instance).await?;
                    let Some(latest) = latest.filter(|(info, _)| is_of(info, &row)) else { continue };
                    if !self.with_document(&mut row, &latest).await? {
                        continue;
                    }
                }
                None if row.kind == RowKind::User => {}
                None => row.doc = Some(removed(&row)),
            }
            bytes += row.doc.as_ref().map_or(0, |document| document.body.len());
            done += 1;
            rows.push(row);
        }
        Ok((rows, found))
    }

    async fn with_document(&self, row: &mut ChangeRow, latest: &(Info, Rows)) -> Result<bool> {
        let (info, keys) = (&latest.0, self.instance.keys.document(&row.id));
        let is_seen = self.held.has_all()
            || self.held.can_see(channels_of(self.trx, &keys, info).await?.iter().map(String::as_str));
        if !is_seen {
            return Ok(false);
        }
        let conflicts = self.extras.conflicts();
        let wants_leaves = self.extras.leaves || conflicts != Default::default();
        let leaves = if wants_leaves { self.leaves(&keys, info).await? } else { vec![info.winner.clone()] };
        let mut document = shown(latest, self.trx, self.inner, self.instance, &row.id, conflicts).await?;
        let seen: HashSet<&RevId> = leaves.iter().collect();
        for names in [&mut document.conflicts, &mut document.deleted_conflicts].into_iter().flatten() {
            names.retain(|rev| seen.contains(rev));
        }
        // It may have expired since the row was read.
        row.deleted = document.deleted;
        row.doc = Some(document);
        if self.extras.leaves {
            row.leaf_count = leaves.len();
            row.leaves = leaves;
        }
        Ok(true)
    }
}

/// Returns whether a document is still in the state of the row.
fn is_of(info: &Info, row: &ChangeRow) -> bool {
    info.stamp == *row.seq.stamp() && info.winner == row.rev
}

/// Returns the document that stands for one that the reader has lost.
fn removed(row: &ChangeRow) -> Document {
    Document {
        id: row.id.clone(),
        rev: row.rev.clone(),
        deleted: row.deleted,
        body: if row.deleted { Vec::new() } else { REMOVED.to_vec() },
        revisions: None,
        revs_info: None,
        born: None,
        conflicts: None,
        deleted_conflicts: None,
        attachments: Vec::new(),
        local_seq: None,
        ends_at_ms: None,
    }
}
