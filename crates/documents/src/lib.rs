//! Documents as surfaces read and write them: attachments in their JSON and beside it, and what pages of them take in memory.
//!
//! What a surface makes of it, its words for failures among them, is its own.
#![forbid(unsafe_code)]
#![warn(clippy::indexing_slicing)]

mod attached;
mod attachment;
mod error;
mod interrupted;
mod open_revs;
mod related;
mod uploading;

pub use attached::{
    ATTS_SINCE_MAX, DEFAULT_TYPE, Part, Show, Source, Written, attachment_edits, base64, check_name, length, parts,
    send, send_or_null, written,
};
pub use attachment::attachment;
pub use error::{DocumentError, Result};
pub use interrupted::{Interrupted, page_bytes};
pub use open_revs::{Form, Shown, open_revs};
pub use related::{Related, header_text, related};
pub use uploading::Uploading;
