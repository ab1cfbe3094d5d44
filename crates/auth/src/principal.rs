//! Who makes a request.

/// Who makes a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The user's name; none for an anonymous one.
    pub name: Option<String>,
    /// Whether all is allowed.
    pub is_admin: bool,
}
