//! Summaries of rows: their count, and the states of the reduces.

use flatbed_collate::reduce::ReduceState;
use flatbed_store::error::{Error, Result};
use flatbed_store::proto;
use prost::Message;

use crate::view::written::{ReduceFailure, WrittenResult};

/// The largest stored summary, in bytes: it is one value of FoundationDB, whose limit is 100,000.
pub const SUMMARY_BYTES_MAX: usize = 90_000;

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Summary {
    pub rows: u64,
    /// The bytes of keys and values as JSON.
    pub bytes: u64,
    pub states: Vec<ReducedValue>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum ReducedValue {
    BuiltIn(ReduceState),
    Written(WrittenResult),
}

impl flatbed_rowtree::Summary for Summary {
    fn rows(&self) -> u64 {
        self.rows
    }
}

impl ReducedValue {
    fn stored(&self) -> proto::ViewState {
        match self {
            ReducedValue::BuiltIn(state) => {
                let mut built_in = Vec::new();
                state.encode(&mut built_in);
                proto::ViewState { built_in, ..Default::default() }
            }
            ReducedValue::Written(Ok(text)) => {
                proto::ViewState { written: text.clone().into_bytes(), ..Default::default() }
            }
            ReducedValue::Written(Err(failure)) => {
                proto::ViewState { failure: Some(failure.into()), ..Default::default() }
            }
        }
    }

    fn too_large() -> ReducedValue {
        let reason = format!(
            "Reduce output must shrink more rapidly: all reductions of a map take at most {SUMMARY_BYTES_MAX} bytes"
        );
        ReducedValue::Written(Err(ReduceFailure { error: "reduce_overflow_error".to_owned(), reason }))
    }
}

impl Summary {
    /// Returns the summary in a form that fits into storage. If its states take more than [`SUMMARY_BYTES_MAX`]
    /// together, the largest ones become failures, as few as possible, and of equal ones the first.
    pub fn bounded(mut self) -> Summary {
        // The encoding adds a tag and a length to each state, and two numbers.
        let mut sizes: Vec<usize> = self.states.iter().map(|state| state.stored().encoded_len() + 6).collect();
        let mut bytes = sizes.iter().sum::<usize>() + 22;
        while bytes > SUMMARY_BYTES_MAX {
            let largest = sizes.iter_mut().zip(&mut self.states).rev().max_by_key(|(size, _)| **size);
            let Some((size, state)) = largest else { break };
            let failed = ReducedValue::too_large();
            let now = failed.stored().encoded_len() + 6;
            if now >= *size {
                break;
            }
            bytes -= *size - now;
            (*size, *state) = (now, failed);
        }
        self
    }

    pub fn encode(&self) -> Vec<u8> {
        let states = self.states.iter().map(ReducedValue::stored).collect();
        proto::ViewNode { rows: self.rows, bytes: self.bytes, states }.encode_to_vec()
    }

    pub fn decode(bytes: &[u8]) -> Result<Summary> {
        let node = proto::ViewNode::decode(bytes)?;
        let bad = || Error::Corrupt("a node of a view has no state".to_owned());
        let state = |state: proto::ViewState| {
            let proto::ViewState { built_in, written, failure } = state;
            Ok(match failure {
                Some(failure) => ReducedValue::Written(Err(ReduceFailure::from(failure))),
                None if !written.is_empty() => {
                    ReducedValue::Written(Ok(String::from_utf8(written).map_err(|_| bad())?))
                }
                None => ReducedValue::BuiltIn(ReduceState::decode(&mut built_in.as_slice()).ok_or_else(bad)?),
            })
        };
        let states = node.states.into_iter().map(state).collect::<Result<_>>()?;
        Ok(Summary { rows: node.rows, bytes: node.bytes, states })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: usize) -> ReducedValue {
        ReducedValue::Written(Ok("x".repeat(bytes)))
    }

    #[test]
    fn the_largest_states_have_no_room() {
        let summary = |states| Summary { rows: u64::MAX, bytes: u64::MAX, states };
        let states = vec![of(10), of(50_000), of(70_000), of(30_000), of(50_000)];
        let bounded = summary(states.clone()).bounded();
        let failed = ReducedValue::too_large();
        assert_eq!(bounded.states, [of(10), failed.clone(), failed.clone(), of(30_000), of(50_000)]);
        assert!(bounded.encode().len() <= SUMMARY_BYTES_MAX);
        assert_eq!(Summary::decode(&bounded.encode()).unwrap(), bounded);
        assert_eq!(bounded.clone().bounded(), bounded);
        let fits = summary(vec![of(SUMMARY_BYTES_MAX - 50)]);
        assert_eq!(fits.clone().bounded(), fits);
        assert!(summary(vec![of(SUMMARY_BYTES_MAX - 20)]).bounded().encode().len() < 1_000);
        // Even failures do not fit; the writer handles that.
        assert_eq!(summary(vec![of(90); 2_000]).bounded().states.len(), 2_000);
    }
}
