//! Documents as clients write and read them.

use std::borrow::Cow;

use flatbed_channels::Expiry;
use flatbed_clock::Clock;
use flatbed_flatten::json::Value;
use flatbed_revtree::{DESIGN_IDS, DocumentId, RevId};
use flatbed_store::error::{Invalid, Refusal};
use flatbed_store::seq::Seq;

use crate::document::attachments::{Attachment, AttachmentEdit};

/// The longest document id, in bytes of UTF-8. A key of FoundationDB holds 10,000 bytes; CouchDB has no limit by
/// default.
pub const DOCUMENT_ID_BYTES_MAX: usize = 2048;

/// An edit of a document.
#[derive(Debug, Clone, PartialEq)]
pub struct Edit<'a> {
    /// The id, checked by [`check_document_id`].
    pub id: Cow<'a, str>,
    /// The parent revision; `None` for a new document.
    pub parent: Option<RevId>,
    /// A revision of another replica (`new_edits=false`) and its ancestors, newest first, each one generation below the
    /// one before. `parent` is ignored then.
    pub history: Option<Vec<RevId>>,
    /// True if the edit is a deletion.
    pub deleted: bool,
    /// The expiry time that the client sets: `_exp`. Only in a database with channels.
    pub expiry: Option<Expiry>,
    /// All attachments of the revision, with distinct names, in the client's order.
    pub attachments: Vec<(String, AttachmentEdit)>,
    /// The body: an object without special members (names that begin with `_`, except `_replication_...`), in the
    /// client's order.
    pub body: Value<'a>,
}

/// The largest body of a deletion that a full database accepts, in bytes of JSON.
const DELETION_BYTES_MAX: usize = 4_096;

impl Edit<'_> {
    /// Returns whether the edit is a deletion of an earlier revision, without attachments and with a body of at most
    /// [`DELETION_BYTES_MAX`].
    pub fn is_small_deletion(&self) -> bool {
        let is_of_revision = self.parent.is_some() || self.history.as_ref().is_some_and(|history| history.len() > 1);
        if !self.deleted || !is_of_revision || !self.attachments.is_empty() {
            return false;
        }
        let mut text = Vec::new();
        flatbed_flatten::json::write(&self.body, &mut text);
        text.len() <= DELETION_BYTES_MAX
    }
}

/// The parts of a JSON document: special members as fields, all others in `body`.
#[derive(Debug, Clone, PartialEq)]
pub struct EditParts<'a> {
    /// `_id`, unchecked.
    pub id: Option<Cow<'a, str>>,
    /// `_rev`.
    pub rev: Option<RevId>,
    /// `_deleted`.
    pub deleted: bool,
    /// `_exp`: seconds from now, seconds of Unix time, or a date.
    pub expiry: Option<Expiry>,
    /// `_revisions`, as written.
    pub revisions: Option<Value<'a>>,
    /// `_attachments`, an object as written.
    pub attachments: Option<Value<'a>>,
    /// The body: an object.
    pub body: Value<'a>,
}

impl<'a> EditParts<'a> {
    /// Splits a parsed document as CouchDB does: members that CouchDB writes into answers (`_revs_info`, `_conflicts`,
    /// ...) are dropped, and other names that begin with an underscore are refused.
    ///
    /// A relative expiry counts from `clock`'s present.
    ///
    /// # Errors
    /// [`Refusal::InvalidDocument`], [`Refusal::InvalidRevision`].
    pub fn from_json(value: Value<'a>, clock: &Clock) -> Result<Self, Refusal> {
        let Value::Object(all) = value else {
            return Err(Refusal::invalid(Invalid::Document, "Document must be a JSON object"));
        };
        let mut parts = EditParts {
            id: None,
            rev: None,
            deleted: false,
            expiry: None,
            revisions: None,
            attachments: None,
            body: Value::Null,
        };
        let mut members = Vec::with_capacity(all.len());
        for (name, value) in all {
            if !name.starts_with('_') {
                members.push((name, value));
                continue;
            }
            match (name.as_ref(), value) {
                ("_id", Value::String(id)) => parts.id = Some(id),
                ("_id", _) => return Err(Refusal::invalid(Invalid::Id, "Document id must be a string")),
                ("_rev", Value::String(rev)) if rev.is_empty() => {}
                ("_rev", Value::String(rev)) => parts.rev = Some(rev.parse()?),
                ("_rev", _) => return Err(Refusal::InvalidRevision),
                ("_deleted", Value::Bool(deleted)) => parts.deleted = deleted,
                ("_exp", value) => {
                    let expiry = Expiry::parse(&value, clock.unix_seconds());
                    parts.expiry = Some(expiry.map_err(|error| Refusal::invalid(Invalid::Member, error.to_string()))?);
                }
                ("_revisions", value @ Value::Object(_)) => parts.revisions = Some(value),
                ("_attachments", value @ Value::Object(_)) => parts.attachments = Some(value),
                ("_revs_info" | "_conflicts" | "_deleted_conflicts" | "_local_seq", _) => {}
                // A replicator's members in its documents: part of the body.
                (
                    "_replication_id"
                    | "_replication_state"
                    | "_replication_state_time"
                    | "_replication_state_reason"
                    | "_replication_stats",
                    value,
                ) => members.push((name, value)),
                (other, _) => {
                    return Err(Refusal::invalid(Invalid::Member, format!("Bad special document member: {other}")));
                }
            }
        }
        parts.body = Value::Object(members);
        Ok(parts)
    }
}

/// Checks a document id as CouchDB does: not empty, no leading underscore except in `_design/...` (and `_local/...`,
/// which [`Edit`] does not allow), at most [`DOCUMENT_ID_BYTES_MAX`] bytes.
///
/// # Errors
/// [`Refusal::InvalidDocument`].
pub fn check_document_id(id: &str) -> Result<(), Refusal> {
    let reason = if id.is_empty() {
        "Document id must not be empty".to_owned()
    } else if id.len() > DOCUMENT_ID_BYTES_MAX {
        format!("Document id is too long: at most {DOCUMENT_ID_BYTES_MAX} bytes")
    } else if id == DESIGN_IDS.0 {
        "Illegal document id `_design/`".to_owned()
    } else if id.starts_with('_') && !DocumentId::of(id).is_design() {
        "Only reserved document ids may start with underscore.".to_owned()
    } else {
        return Ok(());
    };
    Err(Refusal::invalid(Invalid::Id, reason))
}

/// Returns the partition of a document in a partitioned database; design documents have none.
#[inline]
pub fn partition_of(id: &str) -> Option<&str> {
    if DocumentId::of(id).is_design() { None } else { id.split_once(':').map(|(partition, _)| partition) }
}

/// Checks a partition's name.
///
/// # Errors
/// [`Refusal::InvalidDocument`].
pub fn check_partition(partition: &str) -> Result<(), Refusal> {
    let reason = if partition.is_empty() {
        "Partition must not be empty"
    } else if partition.starts_with('_') {
        "Partition must not start with an underscore"
    } else if partition.contains(':') {
        "Partition must not contain a colon"
    } else {
        return Ok(());
    };
    Err(Refusal::invalid(Invalid::Partition, reason.to_owned()))
}

/// Checks the id of a document in a partitioned database, in addition to [`check_document_id`].
///
/// # Errors
/// [`Refusal::InvalidDocument`].
pub fn check_partitioned_id(id: &str) -> Result<(), Refusal> {
    if DocumentId::of(id).is_design() {
        return Ok(());
    }
    let Some((partition, rest)) = id.split_once(':') else {
        return Err(Refusal::invalid(Invalid::Id, "Doc id must be of form partition:id".to_owned()));
    };
    check_partition(partition)?;
    check_document_id(rest)
}

/// Returns the bounds of a partition's ids: the first possible one, and the first behind them.
pub fn partition_ids(partition: &str) -> [String; 2] {
    [format!("{partition}:"), format!("{partition};")]
}

/// The result of an applied edit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenRevision {
    /// The new revision.
    pub rev: RevId,
}

/// The outcome of one of several edits.
pub type Outcome = Result<WrittenRevision, Refusal>;

/// The parts of a document to read.
#[derive(Debug, Clone, Default)]
pub struct GetOptions {
    /// The revision, instead of the winner.
    pub rev: Option<RevId>,
    /// If `rev` is an ancestor of a leaf, reads that leaf.
    pub latest: bool,
    /// Returns a winner that is a tombstone, instead of an error.
    pub tombstone: bool,
    /// Includes the ancestors.
    pub revs: bool,
    /// Includes the ancestors, and whether their bodies are stored.
    pub revs_info: bool,
    /// Includes the beginning of its present life: see [`Document::born`].
    pub born: bool,
    /// Includes the other leaves that are not deleted.
    pub conflicts: bool,
    /// Includes the other leaves that are deleted.
    pub deleted_conflicts: bool,
    /// Includes the sequence.
    pub local_seq: bool,
    /// Omits the body: returns only the existence and the revision.
    pub no_body: bool,
    /// Reads only a document that fits one read; a larger one gives [`Refusal::LargeDocument`], so that the caller can
    /// reserve memory first.
    pub small_only: bool,
}

/// The other leaves that a document names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Conflicts {
    /// None.
    #[default]
    No,
    /// Those that are not deleted.
    Live,
    /// Those, and separately the deleted ones: the input of the map functions of views.
    All,
}

impl From<bool> for Conflicts {
    fn from(are_wanted: bool) -> Conflicts {
        if are_wanted { Conflicts::Live } else { Conflicts::No }
    }
}

impl GetOptions {
    /// Returns the options for exactly one revision.
    pub fn of_revision(&self, rev: &RevId) -> GetOptions {
        GetOptions { rev: Some(rev.clone()), latest: false, ..self.clone() }
    }

    pub fn conflicts(&self) -> bool {
        self.conflicts || self.deleted_conflicts
    }
}

/// A revision of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The document's id.
    pub id: String,
    /// The revision.
    pub rev: RevId,
    /// True if it is a tombstone.
    pub deleted: bool,
    /// The body's members as compact JSON text without the outer braces, such as `"a":1,"b":[2]`; may be empty.
    pub body: Vec<u8>,
    /// The revision and its ancestors, newest first, if requested.
    pub revisions: Option<Vec<RevId>>,
    /// The revision and its ancestors, each with whether its body is stored.
    pub revs_info: Option<Vec<(RevId, bool)>>,
    /// The oldest of the revision and its ancestors since the last tombstone among them. It changes when the document
    /// is deleted and created again, and stays the same for other edits, up to `revs_limit` of them. An unknown
    /// ancestor counts as a tombstone if it has the revision of a deletion without members.
    pub born: Option<RevId>,
    /// The other leaves that are not deleted, the best first.
    pub conflicts: Option<Vec<RevId>>,
    /// The other leaves that are deleted, the best first.
    pub deleted_conflicts: Option<Vec<RevId>>,
    /// Its attachments, in the order written.
    pub attachments: Vec<Attachment>,
    /// The sequence of the document.
    pub local_seq: Option<Seq>,
    /// The expiry time of the winner in milliseconds of Unix time, if it has one.
    pub ends_at_ms: Option<u64>,
}
