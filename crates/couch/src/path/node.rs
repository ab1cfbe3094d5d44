//! Paths beneath `/_node` and `/_reshard`, which CouchDB's tools call.

use flatbed_replicator::NODE;

use super::NODE_HERE;

/// The name of a CouchDB node without a configured name. Client programs rely on it.
pub(super) const NODE_WITHOUT_NAME: &str = "nonode@nohost";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    /// The path names no node.
    Incomplete,
    /// A node other than this one.
    Other(String),
    Name,
    Config,
    Reload,
    Section(String),
    /// One setting: section and key.
    Key(String, String),
    /// All counters, or those beneath a path.
    Stats(Vec<String>),
    /// Figures of the process.
    System,
    /// Versions of the libraries.
    Versions,
    Restart,
    Unknown,
}

impl Node {
    /// `segments`: the path after `_node`.
    pub(super) fn of(segments: &[&str]) -> Node {
        match *segments {
            [] => Node::Incomplete,
            [node, ..] if ![NODE_HERE, NODE, NODE_WITHOUT_NAME].contains(&node) => Node::Other(node.to_owned()),
            [_] => Node::Name,
            [_, "_config"] => Node::Config,
            [_, "_config", "_reload"] => Node::Reload,
            [_, "_config", section] => Node::Section(section.to_owned()),
            [_, "_config", section, key] => Node::Key(section.to_owned(), key.to_owned()),
            [_, "_stats", ref path @ ..] => Node::Stats(path.iter().map(|&segment| segment.to_owned()).collect()),
            [_, "_system"] => Node::System,
            [_, "_versions"] => Node::Versions,
            [_, "_restart"] => Node::Restart,
            _ => Node::Unknown,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reshard {
    Summary,
    State,
    Jobs,
    /// A job. None ever exists.
    Job,
}

impl Reshard {
    /// `segments`: the path after `_reshard`.
    pub(super) fn of(segments: &[&str]) -> Reshard {
        match segments {
            [] => Reshard::Summary,
            ["state"] => Reshard::State,
            ["jobs"] => Reshard::Jobs,
            _ => Reshard::Job,
        }
    }
}
