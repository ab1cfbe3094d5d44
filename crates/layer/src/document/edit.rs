//! Documents as they come in and go out.

use std::borrow::Cow;

use flatbed_channels::Expiry;
use flatbed_clock::Clock;
use flatbed_flatten::json::Value;
use flatbed_revtree::{DESIGN_IDS, DocumentId, RevId};

use crate::document::attachments::{Attachment, AttachmentEdit};
use crate::error::{Invalid, Refusal};
use crate::store::seq::Seq;

/// The longest document id, in bytes of UTF-8. FoundationDB's keys hold 10,000 bytes; CouchDB has no limit of its own
/// by default.
pub const DOCUMENT_ID_BYTES_MAX: usize = 2048;

/// A document as it is to be written.
#[derive(Debug, Clone, PartialEq)]
pub struct Edit<'a> {
    /// Checked by [`check_document_id`].
    pub id: Cow<'a, str>,
    /// The revision that the edit is made on; `None` for a new document.
    pub parent: Option<RevId>,
    /// What another replica made (`new_edits=false`): the revision itself and its ancestors, newest first, each one
    /// generation below the one before. `parent` means nothing then.
    pub history: Option<Vec<RevId>>,
    /// Whether the edit is a deletion.
    pub deleted: bool,
    /// When the document goes, as the client says: `_exp`. Only where the database has channels.
    pub expiry: Option<Expiry>,
    /// All attachments that the revision has, by distinct names, in the order written.
    pub attachments: Vec<(String, AttachmentEdit)>,
    /// The body: an object without the special members (names beginning with `_`, but for `_replication_...`), in the
    /// order written.
    pub body: Value<'a>,
}

/// The largest body of a deletion that a full database accepts, in bytes of JSON.
const DELETION_BYTES_MAX: usize = 4_096;

impl Edit<'_> {
    /// Whether the edit is a deletion of an earlier revision, without attachments and with a body of at most [`DELETION_BYTES_MAX`].
    pub(crate) fn is_small_deletion(&self) -> bool {
        let is_of_revision = self.parent.is_some() || self.history.as_ref().is_some_and(|history| history.len() > 1);
        if !self.deleted || !is_of_revision || !self.attachments.is_empty() {
            return false;
        }
        let mut text = Vec::new();
        flatbed_flatten::json::write(&self.body, &mut text);
        text.len() <= DELETION_BYTES_MAX
    }
}

/// A JSON document taken apart: special members here, all others in `body`.
#[derive(Debug, Clone, PartialEq)]
pub struct EditParts<'a> {
    /// `_id`, not checked yet.
    pub id: Option<Cow<'a, str>>,
    /// `_rev`.
    pub rev: Option<RevId>,
    /// `_deleted`.
    pub deleted: bool,
    /// `_exp`: seconds from now on, or of Unix time, or a date.
    pub expiry: Option<Expiry>,
    /// `_revisions`, as written.
    pub revisions: Option<Value<'a>>,
    /// `_attachments`, an object as written.
    pub attachments: Option<Value<'a>>,
    /// The body: an object.
    pub body: Value<'a>,
}

impl<'a> EditParts<'a> {
    /// Takes a parsed document apart as CouchDB does: what it writes into answers (`_revs_info`, `_conflicts`, ...) is
    /// dropped, any other name that begins with an underscore is refused.
    ///
    /// An end that is given in seconds from now counts from `clock`'s present.
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
                // A replicator's own, in its documents: part of the body.
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

/// Checks a document id as CouchDB does: not empty, no leading underscore but in `_design/...` (and `_local/...`, which
/// is not for [`Edit`]), at most [`DOCUMENT_ID_BYTES_MAX`] bytes.
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

/// The partition of a document in a partitioned database; design documents are of none.
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

/// Checks the id of a document in a partitioned database, beyond what [`check_document_id`] checks.
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

/// Where ids of a partition begin, and where they have ended.
pub(crate) fn partition_ids(partition: &str) -> [String; 2] {
    [format!("{partition}:"), format!("{partition};")]
}

/// What a write gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Updated {
    /// The new revision.
    pub rev: RevId,
}

/// What became of one edit of several.
pub type Outcome = Result<Updated, Refusal>;

/// What of a document is asked for.
#[derive(Debug, Clone, Default)]
pub struct GetOptions {
    /// This revision instead of the winner.
    pub rev: Option<RevId>,
    /// If `rev` is an ancestor of a leaf, that leaf instead.
    pub latest: bool,
    /// The winner also if it is a tombstone, instead of an error.
    pub tombstone: bool,
    /// With its ancestors.
    pub revs: bool,
    /// With its ancestors and whether their bodies are there.
    pub revs_info: bool,
    /// With where its present life began: see [`Document::born`].
    pub born: bool,
    /// With the other leaves that are not deleted.
    pub conflicts: bool,
    /// With the other leaves that are.
    pub deleted_conflicts: bool,
    /// With its sequence.
    pub local_seq: bool,
    /// Without its body: only whether it is there, and its revision.
    pub no_body: bool,
    /// Only a document that is read at once: of a larger one [`Refusal::LargeDocument`] is
    /// the answer, so that who asks can make room for it first.
    pub small_only: bool,
}

/// Which other leaves a document that is shown names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Conflicts {
    /// None.
    #[default]
    No,
    /// Those that are not deleted.
    Live,
    /// Those, and by themselves those that are deleted: what maps of views see.
    All,
}

impl From<bool> for Conflicts {
    fn from(are_wanted: bool) -> Conflicts {
        if are_wanted { Conflicts::Live } else { Conflicts::No }
    }
}

impl GetOptions {
    /// The same of another revision, of that one alone.
    pub(crate) fn of_revision(&self, rev: &RevId) -> GetOptions {
        GetOptions { rev: Some(rev.clone()), latest: false, ..self.clone() }
    }

    pub(crate) fn conflicts(&self) -> bool {
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
    /// Whether it is a tombstone.
    pub deleted: bool,
    /// The body's members as compact JSON text without the outer braces, such as `"a":1,"b":[2]`; may be empty.
    pub body: Vec<u8>,
    /// The revision and its ancestors, newest first.
    pub revisions: Option<Vec<RevId>>,
    /// The same, each with whether its body is there.
    pub revs_info: Option<Vec<(RevId, bool)>>,
    /// The oldest of the revision and its ancestors since the last of them that was a tombstone: another one once the document
    /// was deleted and made anew, and the same after any other edit, but where more than `revs_limit` others have followed. An
    /// ancestor that never came here is taken for a tombstone where it is what a deletion without members gives.
    pub born: Option<RevId>,
    /// The other leaves that are not deleted, the best first.
    pub conflicts: Option<Vec<RevId>>,
    /// The other leaves that are deleted, the best first.
    pub deleted_conflicts: Option<Vec<RevId>>,
    /// Its attachments, in the order written.
    pub attachments: Vec<Attachment>,
    /// Where in the order of commits the document stands.
    pub local_seq: Option<Seq>,
    /// When the document ends, in milliseconds of Unix time, where it does; of its winner.
    pub ends_at_ms: Option<u64>,
}
