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
    /// The first row's key of the group behind them; `None`: the range is through.
    pub next: Option<Key>,
}

/// Summaries of the groups of a range, at most `limit`.
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
    are_together: impl Fn(&[u8], &[u8]) -> bool,
) -> Result<Groups<T::Summary>, T::Error> {
    let mut ahead: VecDeque<PieceOf<T>> = pieces(tree, shape, height, range).await?.into();
    let mut done: Vec<(Key, Vec<PieceOf<T>>)> = Vec::new();
    loop {
        // What is known from the left on.
        while let Some(piece) = ahead.front() {
            if !is_of_one(piece, ahead.get(1), &are_together) {
                break;
            }
            let Some(piece) = ahead.pop_front() else { break };
            let count = done.len();
            match done.last_mut() {
                Some((first, group)) if are_together(first, &piece.key) => group.push(piece),
                _ if count == limit => {
                    return Ok(Groups { groups: summed(tree, done).await?, next: Some(piece.key) });
                }
                _ => done.push((piece.key.clone(), vec![piece])),
            }
        }
        if ahead.is_empty() {
            return Ok(Groups { groups: summed(tree, done).await?, next: None });
        }
        open(tree, &mut ahead, limit.saturating_sub(done.len()) + 1, range, &are_together).await?;
    }
}

/// Whether all rows of a piece belong to one group, that of its key, as far as the next piece's key tells.
fn is_of_one<R, S>(
    piece: &Piece<R, S>,
    next: Option<&Piece<R, S>>,
    are_together: impl Fn(&[u8], &[u8]) -> bool,
) -> bool {
    // The first node's key is no row's.
    piece.level == 0 || !piece.key.is_empty() && next.is_some_and(|next| are_together(&piece.key, &next.key))
}

/// Puts what lies in the first nodes in which groups may end in their places: as many as groups are wanted.
async fn open<T: Tree>(
    tree: &T,
    ahead: &mut VecDeque<PieceOf<T>>,
    wanted: usize,
    range: &KeyRange,
    are_together: impl Fn(&[u8], &[u8]) -> bool,
) -> Result<(), T::Error> {
    let most = wanted.min(OPENED_AT_ONCE);
    let ends = ahead.iter().skip(1).map(|next| Some(next.key.clone())).chain([range.end.clone()]);
    let opened: Vec<(usize, u8, KeyRange)> = (ahead.iter().zip(ends).enumerate())
        .filter(|(at, (piece, _))| !is_of_one(piece, ahead.get(at + 1), &are_together))
        .map(|(at, (piece, end))| (at, piece.level - 1, KeyRange { begin: piece.key.clone(), end }))
        .take(most)
        .collect();
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

async fn summed<T: Tree>(tree: &T, groups: Vec<(Key, Vec<PieceOf<T>>)>) -> Result<Vec<Group<T::Summary>>, T::Error> {
    let (firsts, of): (Vec<Key>, Vec<_>) = groups.into_iter().unzip();
    let sums = sums(tree, of).await?;
    Ok(firsts.into_iter().zip(sums).filter_map(|(first, summary)| Some(Group { first, summary: summary? })).collect())
}
