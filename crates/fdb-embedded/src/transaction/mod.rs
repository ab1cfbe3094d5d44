//! FoundationDB's calls, and the state of a transaction between them.

pub(crate) mod calls;
pub(crate) mod commit;
pub(crate) mod cost;
pub(crate) mod late;
pub(crate) mod late_answer;
pub(crate) mod look;
pub(crate) mod options;
pub(crate) mod outgoing;
pub(crate) mod read_calls;
pub(crate) mod retry;
pub(crate) mod special;
pub(crate) mod state;
pub(crate) mod timeout;
pub(crate) mod write;
pub(crate) mod write_calls;
