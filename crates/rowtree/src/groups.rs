//! Rows that belong together, as those of one key do, or of the same first members of keys: a summary of each group.

use std::collections::VecDeque;

use futures_util::future::try_join_all;

use crate::cover::{Piece, PieceOf, pieces, sums};
use crate::shape::Shape;
use crate::tree::{Key, KeyRange, Tree, read_all};

/// Nodes that are opened at once.
const OPENED_AT_ONCE: usize = 512;

/// Some rows that belong together.
#[derive(Debug, Clone)]
pub struct Group<S> {
    /// The first row's key.
    pub first: Key,
    /// What is kept of them.
    pub summary: S,
}

/// The groups of a range, or the first ones of them.
#[derive(Debug, Clone)]
pub struct Groups<S> {
    /// In order.
    pub groups: Vec<Group<S>>,
    /// The first row's key of the group behind them, `reverse`: of the last one here, before which the next ends; `None`: the
    /// range is through.
    pub next: Option<Key>,
}

/// Summaries of the groups of a range, at most `limit`; `reverse`: the last ones, the last first.
///
/// `are_together` says of two rows, by their keys, whether they belong to one group; rows between two that do, do too.
///
/// A node whose rows belong to one group is taken whole; one in which a group ends is opened, with all others of which that is
/// so at once. So the cost is that of groups, some 16 entries of each level for each; it waits once for each level
/// and 512 groups.
///
/// # Errors
/// The tree's.
pub async fn groups<T: Tree>(
    tree: &T,
    shape: &Shape,
    height: u8,
    range: &KeyRange,
    limit: usize,
    reverse: bool,
    are_together: impl Fn(&[u8], &[u8]) -> bool,
) -> Result<Groups<T::Summary>, T::Error> {
    let mut ahead: VecDeque<PieceOf<T>> = pieces(tree, shape, height, range).await?.into();
    let mut done: Vec<(Key, Vec<PieceOf<T>>)> = Vec::new();
    // What was taken last, where it is taken from the end.
    let mut behind: Option<Key> = None;
    loop {
        // What is known from the side that it begins at.
        while let Some(piece) = if reverse { ahead.back() } else { ahead.front() } {
            let next = if reverse { behind.as_ref() } else { ahead.get(1).map(|next| &next.key) };
            if !is_of_one(piece, next, &are_together) {
                break;
            }
            let taken = if reverse { ahead.pop_back() } else { ahead.pop_front() };
            let Some(piece) = taken else { break };
            if reverse {
                behind = Some(piece.key.clone());
            }
            let count = done.len();
            match done.last_mut() {
                Some((first, group)) if are_together(first, &piece.key) => {
                    if reverse {
                        first.clone_from(&piece.key);
                    }
                    group.push(piece);
                }
                last if count == limit => {
                    let next = if reverse { last.map(|(first, _)| first.clone()) } else { Some(piece.key) };
                    return Ok(Groups { groups: summed(tree, done, reverse).await?, next });
                }
                _ => done.push((piece.key.clone(), vec![piece])),
            }
        }
        if ahead.is_empty() {
            return Ok(Groups { groups: summed(tree, done, reverse).await?, next: None });
        }
        let wanted = limit.saturating_sub(done.len()) + 1;
        open(tree, &mut ahead, behind.as_ref(), wanted, range, reverse, &are_together).await?;
    }
}

/// Whether all rows of a piece belong to one group, that of its key, as far as the next piece's key tells.
fn is_of_one<R, S>(piece: &Piece<R, S>, next: Option<&Key>, are_together: impl Fn(&[u8], &[u8]) -> bool) -> bool {
    // The first node's key is no row's.
    piece.level == 0 || !piece.key.is_empty() && next.is_some_and(|next| are_together(&piece.key, next))
}

/// Puts what lies in the first nodes (`reverse`: the last ones) in which groups may end in their places: as many as groups
/// are wanted. `behind`: what comes behind them, if that was taken.
async fn open<T: Tree>(
    tree: &T,
    ahead: &mut VecDeque<PieceOf<T>>,
    behind: Option<&Key>,
    wanted: usize,
    range: &KeyRange,
    reverse: bool,
    are_together: impl Fn(&[u8], &[u8]) -> bool,
) -> Result<(), T::Error> {
    let most = wanted.min(OPENED_AT_ONCE);
    let nexts = || ahead.iter().skip(1).map(|next| Some(&next.key)).chain([behind]);
    let to_open =
        ahead.iter().zip(nexts()).enumerate().filter(|(_, (piece, next))| !is_of_one(piece, *next, &are_together));
    let to_open = to_open.map(|(at, (piece, next))| {
        let end = next.cloned().or_else(|| range.end.clone());
        (at, piece.level - 1, KeyRange { begin: piece.key.clone(), end })
    });
    let mut opened: Vec<(usize, u8, KeyRange)> = to_open.collect();
    if reverse {
        opened.drain(..opened.len().saturating_sub(most));
    } else {
        opened.truncate(most);
    }
    let found = try_join_all(opened.iter().map(|(_, level, range)| read_all(tree, *level, range))).await?;
    let mut replaced = opened.into_iter().zip(found).peekable();
    for (at, piece) in std::mem::take(ahead).into_iter().enumerate() {
        match replaced.next_if(|((opened, ..), _)| *opened == at) {
            Some(((_, level, _), entries)) => {
                ahead.extend(entries.into_iter().map(|(key, entry)| Piece { level, key, entry }));
            }
            None => ahead.push_back(piece),
        }
    }
    Ok(())
}

async fn summed<T: Tree>(
    tree: &T,
    groups: Vec<(Key, Vec<PieceOf<T>>)>,
    reverse: bool,
) -> Result<Vec<Group<T::Summary>>, T::Error> {
    let (firsts, mut of): (Vec<Key>, Vec<_>) = groups.into_iter().unzip();
    if reverse {
        of.iter_mut().for_each(|pieces| pieces.reverse());
    }
    let sums = sums(tree, of).await?;
    Ok(firsts.into_iter().zip(sums).filter_map(|(first, summary)| Some(Group { first, summary: summary? })).collect())
}
