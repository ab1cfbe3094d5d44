//! Errors in stored rows.

/// The rows of a body are unreadable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A field id without a name.
    #[error("field id {0} has no name")]
    UnknownFieldId(u64),
    /// A path that flattening does not produce.
    #[error("a path that no body has")]
    BadPath,
    /// A path that is not greater than the previous one.
    #[error("a path is out of order")]
    OutOfOrder,
    /// A run that is truncated or has inconsistent lengths.
    #[error("a run cannot be read")]
    BadRun,
    /// A scalar with an unknown tag, or with the wrong type for its position or tag.
    #[error("a scalar cannot be read")]
    BadScalar,
    /// An array or a string in parts with a gap.
    #[error("a row is missing")]
    Gap,
    /// A permutation that does not match the object's members.
    #[error("an object's order cannot be read")]
    BadOrder,
    /// There are no rows.
    #[error("there are no rows")]
    Empty,
}
