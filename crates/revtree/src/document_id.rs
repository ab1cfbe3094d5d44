//! Document ids and the kinds of documents that they name.

/// First segment of a design document's path.
pub const DESIGN: &str = "_design";

/// First segment of a local document's path.
pub const LOCAL: &str = "_local";

/// The ids of all design documents: from the first of these, which is not a design document's id, up to the second.
pub const DESIGN_IDS: (&str, &str) = ("_design/", "_design0");

const LOCAL_PREFIX: &str = "_local/";

/// The kind of a document, as its id tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentKind {
    /// A document that users write. Other ids that begin with an underscore are refused by writes.
    Ordinary,
    /// `_design/...`: defines functions and indexes, and replicates like ordinary documents.
    Design,
    /// `_local/...`: has no history and does not replicate.
    Local,
}

/// A document's id as clients write it, with its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DocumentId<'a> {
    text: &'a str,
    kind: DocumentKind,
    name: &'a str,
}

impl<'a> DocumentId<'a> {
    /// Parses an id; every text is valid.
    #[must_use]
    #[inline]
    pub fn of(id: &'a str) -> Self {
        // Most ids do not begin with an underscore.
        if !id.starts_with('_') {
            return DocumentId { text: id, kind: DocumentKind::Ordinary, name: id };
        }
        match (id.strip_prefix(DESIGN_IDS.0), id.strip_prefix(LOCAL_PREFIX)) {
            (Some(name), _) => DocumentId { text: id, kind: DocumentKind::Design, name },
            (_, Some(name)) => DocumentId { text: id, kind: DocumentKind::Local, name },
            _ => DocumentId { text: id, kind: DocumentKind::Ordinary, name: id },
        }
    }

    /// The whole id.
    #[must_use]
    pub fn text(self) -> &'a str {
        self.text
    }

    /// The kind of the document.
    #[must_use]
    pub fn kind(self) -> DocumentKind {
        self.kind
    }

    /// The part after `_design/` or `_local/`; for other ids the whole id.
    #[must_use]
    pub fn name(self) -> &'a str {
        self.name
    }

    /// The part after `_local/`, if the id begins with it.
    #[must_use]
    pub fn local_name(self) -> Option<&'a str> {
        (self.kind == DocumentKind::Local).then_some(self.name)
    }

    /// Returns whether the id is a design document's.
    #[must_use]
    #[inline]
    pub fn is_design(self) -> bool {
        self.kind == DocumentKind::Design
    }

    /// Returns whether the id is a local document's.
    #[must_use]
    #[inline]
    pub fn is_local(self) -> bool {
        self.kind == DocumentKind::Local
    }
}

/// Returns the id of the design document with a name.
#[must_use]
pub fn design_id(name: &str) -> String {
    [DESIGN_IDS.0, name].concat()
}

/// Returns the id of the local document with a name, as clients see it.
#[must_use]
pub fn local_id(name: &str) -> String {
    [LOCAL_PREFIX, name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_segment_says_the_kind() {
        let read = |id| {
            let id = DocumentId::of(id);
            (id.kind(), id.name(), id.local_name(), id.is_design(), id.is_local())
        };
        assert_eq!(read("_design/d"), (DocumentKind::Design, "d", None, true, false));
        assert_eq!(read("_local/l/m"), (DocumentKind::Local, "l/m", Some("l/m"), false, true));
        assert_eq!(read("_local/"), (DocumentKind::Local, "", Some(""), false, true));
        for id in ["", "d", "_design", "_local", "_designs/d", "x_design/d", "_other", "design/d", "_Design/d"] {
            assert_eq!(read(id), (DocumentKind::Ordinary, id, None, false, false));
        }
    }

    proptest! {
        #[test]
        fn ids_are_made_of_what_they_are_read_as(name in ".{0,20}", other in "(_design|_local)?[/0_a-z]{0,4}") {
            let (design, local) = (design_id(&name), local_id(&name));
            prop_assert_eq!(DocumentId::of(&design), DocumentId { text: &design, kind: DocumentKind::Design, name: &name });
            prop_assert_eq!(DocumentId::of(&local), DocumentId { text: &local, kind: DocumentKind::Local, name: &name });
            prop_assert_eq!(&design, &format!("{DESIGN}/{name}"));
            prop_assert_eq!(&local, &format!("{LOCAL}/{name}"));
            let is_within = (DESIGN_IDS.0..DESIGN_IDS.1).contains(&other.as_str());
            prop_assert_eq!(is_within, DocumentId::of(&other).is_design());
        }
    }
}
