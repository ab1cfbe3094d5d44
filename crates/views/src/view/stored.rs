//! A stored tree of a group.

use flatbed_collate::reduce::{ReduceState, Reducer};
use flatbed_flatten::json::Value;
use flatbed_rowtree::{Key, KeyRange, Parts, Tree, TreePage};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::RowKey;
use futures_util::future::try_join_all;

use crate::view::asking::ConcurrentReaders;
use crate::view::group::{Reduction, ViewGroup};
use crate::view::known::KnownNodes;
use crate::view::parts::{decode, texts_bytes};
use crate::view::prepare::value_of;
use crate::view::summary::{ReducedValue, Summary};
use crate::view::undo::GroupReads;
use crate::view::written::{ReduceAsk, ReduceFailure, ReduceInput, WrittenReduces, WrittenResult, WrittenRow};

pub struct StoredTree<'a> {
    pub reads: GroupReads<'a>,
    pub group: &'a ViewGroup,
    pub tree: usize,
    pub written: Option<&'a dyn WrittenReduces>,
    /// The nodes known in this transaction.
    pub known: Option<&'a KnownNodes>,
    pub asking: ConcurrentReaders,
}

#[derive(Debug, Clone)]
pub struct TreeRow {
    /// JSON, like the value; both are empty if they are stored in parts.
    pub key: Vec<u8>,
    pub value: Vec<u8>,
    pub bytes: u64,
    /// The summary of this row alone, if key and value are stored in parts.
    pub alone: Option<Summary>,
}

/// The effect of a changed row on summaries that only count or add up values.
#[derive(Debug, Clone, Default)]
pub struct RowDelta {
    /// The removed and added values; null if only their number counts.
    pub gone: Option<Value<'static>>,
    pub come: Option<Value<'static>>,
    /// The change in bytes of keys and values.
    pub bytes: i64,
}

impl Tree for StoredTree<'_> {
    type Row = TreeRow;
    type Summary = Summary;
    type Delta = RowDelta;
    type Error = Error;

    fn value_bytes(&self, row: &TreeRow) -> usize {
        row.bytes as usize
    }

    async fn rows(&self, range: &KeyRange, limit: usize, reverse: bool) -> Result<TreePage<TreeRow>> {
        let GroupReads { keys, .. } = self.reads;
        let range = keys.rows(self.tree, &range.begin, range.end.as_deref());
        let page = self.asking.asked(self.reads.range(&range, limit, reverse)).await?;
        let prefix = keys.row_prefix(self.tree);
        let mut entries = Vec::with_capacity(page.len());
        let mut alone = Vec::new();
        for (key, value) in page.iter() {
            let key = key.get(prefix..).unwrap_or_default().to_vec();
            let row = decode(value)?;
            if !row.blob_id.is_empty() {
                alone.push((entries.len(), self.reads.get(&keys.node(self.tree, 0, &key))));
            }
            let bytes = texts_bytes(&row);
            entries.push((key, TreeRow { key: row.key, value: row.value, bytes, alone: None }));
        }
        for (at, read) in alone {
            let summary = read.await?.ok_or_else(|| Error::Corrupt("a large row of a view has no node".to_owned()))?;
            if let Some((_, row)) = entries.get_mut(at) {
                row.alone = Some(Summary::decode(&summary)?);
            }
        }
        Ok(TreePage { entries, more: page.more() })
    }

    async fn nodes(&self, level: u8, range: &KeyRange, limit: usize, reverse: bool) -> Result<TreePage<Summary>> {
        let GroupReads { keys, .. } = self.reads;
        let range = keys.nodes(self.tree, level, &range.begin, range.end.as_deref());
        let page = self.asking.asked(self.reads.range(&range, limit, reverse)).await?;
        let prefix = keys.node(self.tree, level, &[]).len();
        let entries = page
            .iter()
            .map(|(key, value)| Ok((key.get(prefix..).unwrap_or_default().to_vec(), Summary::decode(value)?)))
            .collect::<Result<Vec<_>>>()?;
        Ok(TreePage { entries, more: page.more() })
    }

    fn adjusted(&self, summary: &Summary, deltas: &[&RowDelta]) -> Option<Summary> {
        let gone: Vec<&Value<'_>> = deltas.iter().filter_map(|delta| delta.gone.as_ref()).collect();
        let come: Vec<&Value<'_>> = deltas.iter().filter_map(|delta| delta.come.as_ref()).collect();
        let state = |reduced: &ReducedValue| match reduced {
            ReducedValue::BuiltIn(state) => state.replaced(&gone, &come).map(ReducedValue::BuiltIn),
            ReducedValue::Written(_) => None,
        };
        let adjusted = Summary {
            rows: summary.rows.checked_sub(gone.len() as u64)?.checked_add(come.len() as u64)?,
            bytes: summary.bytes.checked_add_signed(deltas.iter().map(|delta| delta.bytes).sum())?,
            states: summary.states.iter().map(state).collect::<Option<_>>()?,
        };
        Some(adjusted.bounded())
    }

    fn known(&self, level: u8, range: &KeyRange) -> Option<Vec<(Key, Summary)>> {
        self.known?.get(self.tree, level, range)
    }

    fn learn(&self, level: u8, range: KeyRange, nodes: impl Iterator<Item = (Key, Summary)>) {
        if let Some(known) = self.known {
            known.learn(self.tree, level, range, nodes);
        }
    }

    async fn summaries(&self, of: Vec<Parts<TreeRow, Summary>>) -> Result<Vec<Summary>> {
        let mut done = of.iter().map(|parts| self.built_in(parts)).collect::<Result<Vec<_>>>()?;
        let written: Vec<(usize, usize)> = (self.group.reduces(self.tree).iter().enumerate())
            .filter_map(
                |(at, reduce)| if let Reduction::Written(function) = reduce { Some((at, *function)) } else { None },
            )
            .collect();
        if !written.is_empty() {
            for (summary, results) in done.iter_mut().zip(self.by_functions(&of, &written).await?) {
                for ((at, _), result) in written.iter().zip(results) {
                    if let Some(state) = summary.states.get_mut(*at) {
                        *state = ReducedValue::Written(result);
                    }
                }
            }
        }
        Ok(done.into_iter().map(Summary::bounded).collect())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Number,
    /// The values, if they are numbers.
    Numbers,
    Rows,
}

impl Needs {
    pub fn of(reduces: &[Reduction]) -> Needs {
        let needs = reduces.iter().map(|reduce| match reduce {
            Reduction::BuiltIn(Reducer::Count) => Needs::Number,
            Reduction::BuiltIn(Reducer::Sum | Reducer::Stats) => Needs::Numbers,
            _ => Needs::Rows,
        });
        needs.max_by_key(|needs| *needs as u8).unwrap_or(Needs::Number)
    }

    /// Returns a value to keep for a change; `None`: it is not a number, or not known.
    pub fn value(self, text: &[u8]) -> Option<Value<'static>> {
        match self {
            Needs::Number => Some(Value::Null),
            Needs::Numbers => value_of(text).filter(|value| matches!(value, Value::Number(_))).map(Value::into_owned),
            Needs::Rows => None,
        }
    }
}

impl StoredTree<'_> {
    /// Computes counts and built-in reductions of parts. JavaScript reductions are filled in later.
    fn built_in(&self, of: &Parts<TreeRow, Summary>) -> Result<Summary> {
        let reduces = self.group.reduces(self.tree);
        let unicode = self.group.unicode();
        let mut sum = Summary::default();
        let mut states: Vec<ReduceState> = vec![ReduceState::default(); reduces.len()];
        let mut failures: Vec<Option<ReduceFailure>> = vec![None; reduces.len()];
        let mut merge = |states: &mut Vec<ReduceState>, summary: &Summary| {
            let of_reduces = states.iter_mut().zip(&mut failures).zip(reduces).zip(&summary.states);
            for (((state, failure), reduce), other) in of_reduces {
                match (reduce, other) {
                    (Reduction::BuiltIn(reducer), ReducedValue::BuiltIn(other)) => {
                        state.merge(*reducer, unicode, other)
                    }
                    (Reduction::BuiltIn(_), ReducedValue::Written(Err(other))) => {
                        failure.get_or_insert_with(|| other.clone());
                    }
                    _ => {}
                }
            }
        };
        match of {
            Parts::Summaries(summaries) => {
                for summary in summaries {
                    sum.rows += summary.rows;
                    sum.bytes += summary.bytes;
                    merge(&mut states, summary);
                }
            }
            Parts::Rows(rows) => {
                let needs = |needs: fn(Reducer) -> bool| {
                    reduces.iter().any(|reduce| matches!(reduce, Reduction::BuiltIn(reducer) if needs(*reducer)))
                };
                let has_built_in = needs(|_| true);
                let (needs_key, needs_value) = (needs(Reducer::needs_key), needs(Reducer::needs_value));
                // Only needed texts are parsed.
                let parsed = |text, is_needed| match is_needed {
                    true => value_of(text).ok_or_else(|| Error::Corrupt("a row of a view is not JSON".to_owned())),
                    false => Ok(Value::Null),
                };
                for (_, row) in rows {
                    sum.rows += 1;
                    sum.bytes += row.bytes;
                    if let Some(alone) = &row.alone {
                        merge(&mut states, alone);
                    } else if has_built_in {
                        let (key, value) = (parsed(&row.key, needs_key)?, parsed(&row.value, needs_value)?);
                        for (state, reduce) in states.iter_mut().zip(reduces) {
                            if let Reduction::BuiltIn(reducer) = reduce {
                                state.add(*reducer, unicode, &key, &value);
                            }
                        }
                    }
                }
            }
        }
        // If the state of one part is too large, that of the whole is, too.
        let state = |(state, failure): (ReduceState, Option<ReduceFailure>)| match failure {
            Some(failure) => ReducedValue::Written(Err(failure)),
            None => ReducedValue::BuiltIn(state),
        };
        sum.states = states.into_iter().zip(failures).map(state).collect();
        Ok(sum)
    }

    /// Runs the JavaScript reduces on parts: in one call usually, and in two at most.
    async fn by_functions(
        &self,
        of: &[Parts<TreeRow, Summary>],
        written: &[(usize, usize)],
    ) -> Result<Vec<Vec<WrittenResult>>> {
        let functions: Vec<usize> = written.iter().map(|(_, function)| *function).collect();
        let mut asks = Vec::new();
        // For each part, its pieces in order: a known result, or the index of the request for it.
        let mut pieces: Vec<Vec<std::result::Result<Vec<WrittenResult>, usize>>> = Vec::new();
        let known = |summary: &Summary| {
            let result = |(at, _): &(usize, usize)| match summary.states.get(*at) {
                Some(ReducedValue::Written(result)) => result.clone(),
                _ => Err(failure("a node of the view lacks a reduction")),
            };
            written.iter().map(result).collect::<Vec<_>>()
        };
        for parts in of {
            let mut of_one = Vec::new();
            match parts {
                Parts::Summaries(summaries) => of_one.extend(summaries.iter().map(|summary| Ok(known(summary)))),
                Parts::Rows(rows) => {
                    for run in rows.chunk_by(|(_, a), (_, b)| a.alone.is_none() && b.alone.is_none()) {
                        if let [(_, TreeRow { alone: Some(alone), .. })] = run {
                            of_one.push(Ok(known(alone)));
                            continue;
                        }
                        of_one.push(Err(asks.len()));
                        let rows = run.iter().map(written_row).collect::<Result<_>>()?;
                        asks.push(ReduceAsk { functions: functions.clone(), input: ReduceInput::Rows(rows) });
                    }
                }
            }
            pieces.push(of_one);
        }
        let told = self.ask(&asks).await?;
        let mut asks = Vec::new();
        let mut done: Vec<Vec<std::result::Result<WrittenResult, usize>>> = Vec::new();
        for of_one in pieces {
            let of_one: Vec<Vec<WrittenResult>> = of_one
                .into_iter()
                .map(|piece| piece.unwrap_or_else(|at| told.get(at).cloned().unwrap_or_default()))
                .collect();
            let result = |(at, function): (usize, &usize)| {
                let mut results = of_one.iter().filter_map(|results| results.get(at));
                if let ([_], Some(result)) = (of_one.as_slice(), results.next()) {
                    return Ok(result.clone());
                }
                let texts: std::result::Result<Vec<String>, _> =
                    of_one.iter().filter_map(|results| results.get(at).cloned()).collect();
                match texts {
                    Err(failure) => Ok(Err(failure)),
                    Ok(texts) => {
                        asks.push(ReduceAsk { functions: vec![*function], input: ReduceInput::Reductions(texts) });
                        Err(asks.len() - 1)
                    }
                }
            };
            done.push(functions.iter().enumerate().map(result).collect());
        }
        let told = self.ask(&asks).await?;
        let result = |result: std::result::Result<WrittenResult, usize>| {
            let told = |at: usize| told.get(at).and_then(|results| results.first().cloned());
            result.unwrap_or_else(|at| told(at).unwrap_or_else(|| Err(failure("a reduce gave nothing"))))
        };
        Ok(done.into_iter().map(|of_one| of_one.into_iter().map(result).collect()).collect())
    }

    async fn ask(&self, asks: &[ReduceAsk]) -> Result<Vec<Vec<WrittenResult>>> {
        if asks.is_empty() {
            return Ok(Vec::new());
        }
        match self.written {
            Some(written) => written.reduce(asks).await,
            None => Ok(asks
                .iter()
                .map(|ask| vec![Err(failure("no function reduces this view")); ask.functions.len()])
                .collect()),
        }
    }
}

fn failure(reason: &str) -> ReduceFailure {
    ReduceFailure { error: "internal_server_error".to_owned(), reason: reason.to_owned() }
}

fn written_row((key, row): &(Key, TreeRow)) -> Result<WrittenRow> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| Error::Corrupt("a row is no text".into()));
    Ok(WrittenRow { key: text(&row.key)?, id: RowKey::decode(key)?.id, value: text(&row.value)? })
}

impl StoredTree<'_> {
    /// Computes the summaries of single rows, which are stored with rows whose key and value are in parts.
    pub async fn alone(&self, rows: Vec<(Key, TreeRow)>) -> Result<Vec<Summary>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        self.summaries(rows.into_iter().map(|row| Parts::Rows(vec![row])).collect()).await
    }
}

pub async fn each_tree<T, F: Future<Output = Result<T>>>(futures: impl Iterator<Item = F>) -> Result<Vec<T>> {
    try_join_all(futures).await
}
