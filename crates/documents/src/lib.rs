//! Documents for all surfaces: ids and revisions in requests; attachments in JSON, in multipart bodies, and as answers
//! of their own; feeds as they are sent; the end of answers whose reader loses its rights.
//!
//! Each surface maps [`DocumentError`] to its own words.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod attached;
mod attachment;
mod base;
mod error;
mod feed;
mod history;
mod interrupted;
mod open_revs;
mod read;
mod related;
mod revocation;
mod uploading;

pub use attached::{
    ATTS_SINCE_MAX, AttachmentMember, AttachmentOptions, DEFAULT_TYPE, Part, Source, attachment_edits, base64,
    check_name, length, parse_attachments, parts, send, send_or_null,
};
pub use attachment::attachment;
pub use base::{BaseError, BaseRevision};
pub use error::{DocumentError, Result};
pub use feed::{FeedOutput, FeedWait, feed_page_bytes, gives_way, id_set_bytes};
pub use history::{HistoryError, check_any_id, history_of, parse_revisions};
pub use interrupted::{Interrupted, page_bytes};
pub use open_revs::{Form, ListOptions, open_revs};
pub use read::read_document;
pub use related::{MultipartRelated, header_text, related};
pub use revocation::while_allowed;
pub use uploading::StreamedUpload;
