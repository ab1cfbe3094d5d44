//! Compiled definitions of indexes, of all databases in this process.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_store::error::Result;
use flatbed_store::proto;

use crate::index::apart::selector_lock;
use crate::index::apart::{digest_in, run_in_turn};
use crate::index::kinds::{DefinedIndex, with_kinds};
use crate::index::maintainers::IndexContext;

/// The most cached definitions of a kind, and the most weight of their selectors. A regular expression weighs 1 per kB.
const COUNT_MAX: usize = 10_000;
const WEIGHT_MAX: usize = 1 << 18;

/// The marker of selectors that are slow to compile.
const LONG: &[u8] = b"\"$regex\"";

/// Compiled definitions of one kind, by the design document's id and the definition. Beyond the bounds a random one is
/// evicted for each new one, so that a cyclic access to more than the bound still hits most of the time.
pub struct CompiledIndexes<T> {
    known: RwLock<Contents<T>>,
    count_max: usize,
    weight_max: usize,
}

/// Compiled definitions of a design document, each with its weight, by the definition.
type OfDesign<T> = HashMap<Vec<u8>, (Arc<T>, usize)>;

struct Contents<T> {
    all: HashMap<String, OfDesign<T>>,
    places: Vec<(String, Vec<u8>)>,
    weight: usize,
}

impl<T> Default for CompiledIndexes<T> {
    fn default() -> CompiledIndexes<T> {
        CompiledIndexes::with_room(COUNT_MAX, WEIGHT_MAX)
    }
}

impl<T> CompiledIndexes<T> {
    fn with_room(count_max: usize, weight_max: usize) -> CompiledIndexes<T> {
        let known = Contents { all: HashMap::new(), places: Vec::new(), weight: 0 };
        CompiledIndexes { known: RwLock::new(known), count_max, weight_max }
    }

    fn get(&self, index: &proto::Index) -> Option<Arc<T>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let (found, _) = known.all.get(&index.source)?.get(&index.definition)?;
        Some(found.clone())
    }

    /// Returns the compiled definition, or calls `compile`, which returns it with its weight.
    ///
    /// # Errors
    /// That of `compile`.
    pub fn get_or_compile(&self, index: &proto::Index, compile: impl FnOnce() -> Result<(T, usize)>) -> Result<Arc<T>> {
        if let Some(found) = self.get(index) {
            return Ok(found);
        }
        let (made, weight) = compile()?;
        let made = Arc::new(made);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        while known.places.len() >= self.count_max || known.weight.saturating_add(weight) > self.weight_max {
            if !known.forget_one() {
                break;
            }
        }
        known.enter(index, made.clone(), weight);
        Ok(made)
    }

    /// Returns whether the definition is not cached and takes long to compile.
    pub fn takes_long(&self, index: &proto::Index) -> bool {
        self.get(index).is_none() && index.definition.windows(LONG.len()).any(|part| part == LONG)
    }
}

impl<T> Contents<T> {
    fn enter(&mut self, index: &proto::Index, made: Arc<T>, weight: usize) {
        let of = self.all.entry(index.source.clone()).or_default();
        // Another thread may have inserted it first.
        if of.insert(index.definition.clone(), (made, weight)).is_none() {
            self.places.push((index.source.clone(), index.definition.clone()));
            self.weight += weight;
        }
    }

    /// Evicts a random one; `false`: the cache is empty.
    fn forget_one(&mut self) -> bool {
        let Some(last) = self.places.len().checked_sub(1) else { return false };
        let at = RandomState::new().hash_one(last) % self.places.len() as u64;
        let (source, definition) = self.places.swap_remove(usize::try_from(at).unwrap_or(last));
        if let Some(of) = self.all.get_mut(&source) {
            if let Some((_, weight)) = of.remove(&definition) {
                self.weight -= weight;
            }
            if of.is_empty() {
                self.all.remove(&source);
            }
        }
        true
    }
}

/// Returns the database's indexes whose definitions are not compiled yet and take long to compile.
pub fn uncompiled(instance: &Instance) -> impl Iterator<Item = DefinedIndex> {
    let those = with_kinds(instance).filter(|(index, kind)| kind.takes_long(index));
    those.map(|(index, kind)| DefinedIndex { index: index.clone(), kind })
}

/// Compiles the missing definitions of a database in its turn. Must not be called in a transaction.
///
/// # Errors
/// [`Error::BrokenOff`](flatbed_store::error::Error::BrokenOff),
/// [`Error::ShuttingDown`](flatbed_store::error::Error::ShuttingDown).
pub async fn compile_all(inner: &Inner, instance: &Instance) -> Result<()> {
    let uncompiled: Vec<DefinedIndex> = uncompiled(instance).collect();
    if uncompiled.is_empty() {
        return Ok(());
    }
    let work = move || uncompiled.iter().for_each(|found| found.kind.compile(&found.index));
    inner.turns.select(selector_lock(instance), work).await
}

/// Like [`compile_all`] in a transaction, which does not wait for the turn: the attempt ends.
///
/// # Errors
/// The error of an attempt that begins again.
pub async fn compile_within(within: &IndexContext<'_>) -> Result<()> {
    let uncompiled: Vec<DefinedIndex> = uncompiled(within.instance).collect();
    if uncompiled.is_empty() {
        return Ok(());
    }
    // Once per operation, even if the cache evicts some meanwhile: otherwise the operation might never end.
    let digest = digest_in(within.instance, "compiled");
    let work = move || uncompiled.iter().for_each(|found| found.kind.compile(&found.index));
    run_in_turn(within, digest, Duration::ZERO, work).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn index(n: usize, definition: &str) -> proto::Index {
        proto::Index { source: format!("_design/{}", n % 3), definition: definition.into(), ..Default::default() }
    }

    #[test]
    fn one_goes_where_there_is_no_room() {
        for (count_max, weight_max, weight, kept) in [(10, 1_000, 1, 10), (1_000, 100, 10, 10), (1_000, 5, 10, 1)] {
            let all = CompiledIndexes::with_room(count_max, weight_max);
            let indexes: Vec<_> = (0..30).map(|n| index(n, &n.to_string())).collect();
            for (n, index) in indexes.iter().enumerate() {
                assert_eq!(*all.get_or_compile(index, || Ok((n, weight))).unwrap(), n);
                // The newest is cached.
                assert_eq!(*all.get_or_compile(index, || Ok((99, weight))).unwrap(), n);
            }
            assert_eq!(indexes.iter().filter(|index| all.get(index).is_some()).count(), kept);
            let known = all.known.read().unwrap();
            assert_eq!((known.places.len(), known.weight), (kept, kept * weight));
            assert_eq!(known.all.values().map(HashMap::len).sum::<usize>(), kept);
        }
    }

    #[test]
    fn regular_expressions_take_long_once() {
        let all = CompiledIndexes::default();
        let [long, short] = [r#"{"$regex":"a"}"#, r#"{"$gt":"a"}"#].map(|definition| index(0, definition));
        assert!(all.takes_long(&long) && !all.takes_long(&short));
        all.get_or_compile(&long, || Ok(((), 1))).unwrap();
        assert!(!all.takes_long(&long));
    }
}
