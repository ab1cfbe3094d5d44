//! What is kept of rows together: how many they are, and what reduces make of them.

use flatbed_collate::reduce::State;
use prost::Message;

use crate::error::{Error, Result};
use crate::store::proto;
use crate::view::written::{ReduceFailure, WrittenResult};

/// Of some rows, or nodes.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Summary {
    pub rows: u64,
    /// Of keys and values as JSON.
    pub bytes: u64,
    /// One for each reduce of the tree.
    pub states: Vec<Reduced>,
}

/// What a reduce has made of rows.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reduced {
    BuiltIn(State),
    Written(WrittenResult),
}

impl flatbed_rowtree::Summary for Summary {
    fn rows(&self) -> u64 {
        self.rows
    }
}

impl Summary {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let state = |reduced: &Reduced| match reduced {
            Reduced::BuiltIn(state) => {
                let mut built_in = Vec::new();
                state.encode(&mut built_in);
                proto::ViewState { built_in, ..Default::default() }
            }
            Reduced::Written(Ok(text)) => proto::ViewState { written: text.clone().into_bytes(), ..Default::default() },
            Reduced::Written(Err(failure)) => proto::ViewState { failure: Some(failure.into()), ..Default::default() },
        };
        let states = self.states.iter().map(state).collect();
        proto::ViewNode { rows: self.rows, bytes: self.bytes, states }.encode_to_vec()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Summary> {
        let node = proto::ViewNode::decode(bytes)?;
        let bad = || Error::Corrupt("a node of a view has no state".to_owned());
        let state = |state: proto::ViewState| {
            let proto::ViewState { built_in, written, failure } = state;
            Ok(match failure {
                Some(failure) => Reduced::Written(Err(ReduceFailure::from(failure))),
                None if !written.is_empty() => Reduced::Written(Ok(String::from_utf8(written).map_err(|_| bad())?)),
                None => Reduced::BuiltIn(State::decode(&mut built_in.as_slice()).ok_or_else(bad)?),
            })
        };
        let states = node.states.into_iter().map(state).collect::<Result<_>>()?;
        Ok(Summary { rows: node.rows, bytes: node.bytes, states })
    }
}
