//! What can be wrong with stored rows.

/// The rows of a body cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// An id that the names given do not have.
    #[error("field id {0} has no name")]
    UnknownFieldId(u64),
    /// A path that flattening does not make.
    #[error("a path is not one of a body")]
    BadPath,
    /// A path that is not greater than the one before it.
    #[error("a path is out of order")]
    OutOfOrder,
    /// A run that is cut, or has lengths that do not fit.
    #[error("a run cannot be read")]
    BadRun,
    /// A scalar with an unknown tag, or that is not what its place or its tag asks for.
    #[error("a scalar cannot be read")]
    BadScalar,
    /// An array with a gap, or parts of a string with one.
    #[error("a row is missing")]
    Gap,
    /// A permutation that is none of the object's members.
    #[error("an object's order cannot be read")]
    BadOrder,
    /// No rows at all.
    #[error("there are no rows")]
    Empty,
}
