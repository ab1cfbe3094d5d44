//! What a document's id says of the document.

/// First segment of a design document's path.
pub const DESIGN: &str = "_design";

/// First segment of a local document's path.
pub const LOCAL: &str = "_local";

/// The ids of all design documents: from the first of these, which is none, up to the second.
pub const DESIGN_IDS: (&str, &str) = ("_design/", "_design0");

const LOCAL_PREFIX: &str = "_local/";

/// What a document is, as its id says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DocumentKind {
    /// One that users write. Of their ids, those with another underscore in front are refused where they are written.
    Ordinary,
    /// `_design/...`: it defines functions and indexes, and replicates as others do.
    Design,
    /// `_local/...`: it has no history, and does not replicate.
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
    /// Reads an id: any text is one.
    #[must_use]
    #[inline]
    pub fn of(id: &'a str) -> Self {
        // Most ids have no underscore in front.
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

    /// What the document is.
    #[must_use]
    pub fn kind(self) -> DocumentKind {
        self.kind
    }

    /// What stands behind `_design/` or `_local/`; of others the whole id.
    #[must_use]
    pub fn name(self) -> &'a str {
        self.name
    }

    /// What stands behind `_local/`, if that is what the id begins with.
    #[must_use]
    pub fn local_name(self) -> Option<&'a str> {
        (self.kind == DocumentKind::Local).then_some(self.name)
    }

    /// Whether the id is a design document's.
    #[must_use]
    #[inline]
    pub fn is_design(self) -> bool {
        self.kind == DocumentKind::Design
    }

    /// Whether the id is a local document's.
    #[must_use]
    #[inline]
    pub fn is_local(self) -> bool {
        self.kind == DocumentKind::Local
    }
}

/// The id of the design document of a name.
#[must_use]
pub fn design_id(name: &str) -> String {
    [DESIGN_IDS.0, name].concat()
}

/// The id of the local document of a name, as clients see it.
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
