//! Paths beneath `/_node`, and others by which CouchDB's own tools find their feet.

use flatbed_replicator::NODE;

use super::NODE_HERE;

/// What a CouchDB calls itself that was given no name: programs rely on it.
pub(super) const NODE_WITHOUT_NAME: &str = "nonode@nohost";

/// Beneath `/_node/_local`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Node {
    /// No node is named.
    Incomplete,
    /// Another node than the one that there is.
    Other(String),
    /// The node itself.
    Name,
    /// All settings.
    Config,
    /// Settings are read again.
    Reload,
    /// The settings of a section.
    Section(String),
    /// One of them.
    Key(String, String),
    /// Counters, or those beneath a path.
    Stats(Vec<String>),
    /// The process.
    System,
    /// What it is built on.
    Versions,
    Restart,
    /// What there is not.
    Unknown,
}

impl Node {
    /// `segments`: what stands behind `_node`.
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

/// Beneath `/_reshard`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reshard {
    Summary,
    State,
    Jobs,
    /// A job: there never is one.
    Job,
}

impl Reshard {
    /// `segments`: what stands behind `_reshard`.
    pub(super) fn of(segments: &[&str]) -> Reshard {
        match segments {
            [] => Reshard::Summary,
            ["state"] => Reshard::State,
            ["jobs"] => Reshard::Jobs,
            _ => Reshard::Job,
        }
    }
}
