//! Keys of objects, made from templates.
//!
//! A document's values in its key are untrusted and must stay inside their segment. In a value all characters except
//! letters, digits, some signs and non-ASCII characters are percent-encoded, including slashes and a leading dot.
//! Different values therefore never become equal, open another folder, or become `..`.

use std::fmt::Write;
use std::str::FromStr;

use flatbed_flatten::json::Value;

use crate::time::Moment;
use crate::transform::text_of;

/// The longest key in bytes: S3's limit.
pub const KEY_BYTES_MAX: usize = 1_024;

const TEMPLATE_BYTES_MAX: usize = 1_000;

/// A template of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Id,
    Rev,
    Seq,
    SeqNumber,
    FirstSeq,
    Epoch,
    Job,
    Table,
    Attachment,
    /// A range of the present date's text, `2026-11-23T14:05:09Z`.
    Time(usize, usize),
    Timestamp,
    /// A member of the product.
    Member(Vec<String>),
}

/// The reason why a template is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// Longer than 1,000 bytes.
    #[error("a key's template has at most 1,000 bytes")]
    TooLong,
    /// An unbalanced brace.
    #[error("a key's template has an unbalanced brace")]
    Brace,
    /// An empty segment, `.` or `..` as a segment, a slash at an end, or a control character.
    #[error(
        "a key's template must have no empty parts, `.` or `..` between slashes, none at its ends, and no control characters"
    )]
    Path,
    /// All objects would have the same key.
    #[error(
        "a key's template needs {{id}}, {{seq}} or a member, and {{attachment}} for attachments: all would be one object"
    )]
    Same,
    /// An object of many documents whose key lacks the feed position.
    #[error(
        "the key of an object of many documents needs {{seq}}, and has nothing of a single one: no {{id}}, {{rev}} or members"
    )]
    Batch,
    /// The folder of attachments may contain other objects.
    #[error(
        "the key of an attachment begins with a folder's name that begins with a letter, as no document's does, and ends with `/{{attachment}}`; without them set `on_delete` to `ignore`. It has no members"
    )]
    Folder,
    /// A deletion could not find the object.
    #[error(
        "an object can be deleted only if its key is made of {{id}} and {{job}} alone: else set `on_delete` to `ignore` or `tombstone`"
    )]
    Lost,
    /// A tombstone could not have this key.
    #[error(
        "a document that is deleted has no members: its tombstone needs a key without them, of {{id}}, {{seq}} and the like; else set `on_delete` to `ignore`"
    )]
    Tombstone,
    /// A name that such objects do not have.
    #[error("{{attachment}} is allowed in keys of attachments only, and {{table}} is not")]
    Misplaced,
}

/// The values of a key.
#[derive(Debug, Clone, Copy)]
pub struct KeyValues<'p> {
    /// The document's id. For a batch: the last document's, here and in the next two members.
    pub id: &'p str,
    /// The revision.
    pub rev: &'p str,
    /// The position in the feed.
    pub seq: &'p str,
    /// The position of the first document.
    pub first_seq: &'p str,
    /// The product.
    pub body: &'p Value<'p>,
    /// The id of the job.
    pub job: &'p str,
    /// The epoch of the job.
    pub epoch: u64,
    /// A table of the mapping.
    pub table: &'p str,
    /// The attachment's name.
    pub attachment: &'p str,
    /// The present, in seconds of Unix time.
    pub now: u64,
}

impl FromStr for Template {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Template, TemplateError> {
        if text.len() > TEMPLATE_BYTES_MAX {
            return Err(TemplateError::TooLong);
        }
        let mut parts = Vec::new();
        // The template with each name replaced by a letter.
        let mut plain = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            let (name, after) = after.split_once('}').ok_or(TemplateError::Brace)?;
            parts.push(Part::Text(before.to_owned()));
            plain.push_str(before);
            plain.push('x');
            parts.push(match name {
                "id" | "doc_id" => Part::Id,
                "rev" => Part::Rev,
                "seq" => Part::Seq,
                "seq_number" => Part::SeqNumber,
                "first_seq" => Part::FirstSeq,
                "epoch" => Part::Epoch,
                "job" => Part::Job,
                "table" => Part::Table,
                "attachment" | "attachment_name" => Part::Attachment,
                "year" => Part::Time(0, 4),
                "month" => Part::Time(5, 7),
                "day" => Part::Time(8, 10),
                "hour" => Part::Time(11, 13),
                "date" => Part::Time(0, 10),
                "iso_date" => Part::Time(0, 20),
                "timestamp" => Part::Timestamp,
                name if name.is_empty() || name.contains('{') => return Err(TemplateError::Brace),
                member => Part::Member(member.split('.').map(str::to_owned).collect()),
            });
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        plain.push_str(rest);
        parts.retain(|part| !matches!(part, Part::Text(text) if text.is_empty()));
        if plain.contains('}') || plain.contains('{') {
            return Err(TemplateError::Brace);
        }
        if plain.chars().any(char::is_control) || plain.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err(TemplateError::Path);
        }
        Ok(Template(parts))
    }
}

/// The purpose of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPurpose {
    /// One object per document.
    Each {
        /// True if it is deleted with its document.
        is_deleted: bool,
    },
    /// One object per document, replaced by a tombstone.
    Tombstones,
    /// One object for many documents, once each.
    Batch,
    /// One object per attachment.
    Attachments {
        /// True if it is deleted with its document.
        is_deleted: bool,
    },
}

impl Template {
    /// Checks that the template fits its purpose.
    pub fn check(&self, is_for: KeyPurpose) -> Result<(), TemplateError> {
        let has = |wanted: fn(&Part) -> bool| self.0.iter().any(wanted);
        let of_one = |part: &Part| matches!(part, Part::Id | Part::Rev | Part::Member(_));
        let deletable =
            |part: &Part| matches!(part, Part::Text(_) | Part::Id | Part::Job | Part::Attachment | Part::Table);
        let is_of_attachments = matches!(is_for, KeyPurpose::Attachments { .. });
        let misplaced = |part: &Part| *part == if is_of_attachments { Part::Table } else { Part::Attachment };
        if self.0.iter().any(misplaced) {
            return Err(TemplateError::Misplaced);
        }
        match is_for {
            KeyPurpose::Each { .. } | KeyPurpose::Tombstones | KeyPurpose::Attachments { .. }
                if !has(|part| matches!(part, Part::Id | Part::Seq | Part::Member(_))) =>
            {
                Err(TemplateError::Same)
            }
            KeyPurpose::Attachments { .. } if !has(|part| *part == Part::Attachment) => Err(TemplateError::Same),
            KeyPurpose::Attachments { .. } if has(|part| matches!(part, Part::Member(_))) => Err(TemplateError::Folder),
            KeyPurpose::Attachments { is_deleted: true }
                if !has(|part| *part == Part::Id) || self.root().is_none() || self.folder().is_none() =>
            {
                Err(TemplateError::Folder)
            }
            KeyPurpose::Each { is_deleted: true } | KeyPurpose::Attachments { is_deleted: true }
                if !self.0.iter().all(deletable) =>
            {
                Err(TemplateError::Lost)
            }
            KeyPurpose::Tombstones if has(|part| matches!(part, Part::Member(_))) => Err(TemplateError::Tombstone),
            KeyPurpose::Batch if !has(|part| *part == Part::Seq) || self.0.iter().any(of_one) => {
                Err(TemplateError::Batch)
            }
            _ => Ok(()),
        }
    }

    /// Returns the literal first folder: `attachments/`.
    fn root(&self) -> Option<&str> {
        let Some(Part::Text(text)) = self.0.first() else { return None };
        let end = text.find('/')?.checked_add(1)?;
        text.get(..end).filter(|root| root.starts_with(char::is_alphabetic))
    }

    /// Returns the template of the folder with the attachments of one document and nothing else: the part before the
    /// last slash.
    pub fn folder(&self) -> Option<Template> {
        let (last, before) = self.0.split_last()?;
        let is_own = matches!(before.last(), Some(Part::Text(text)) if text.ends_with('/'));
        (*last == Part::Attachment && is_own && !before.contains(&Part::Attachment)).then(|| Template(before.to_vec()))
    }

    /// Returns whether an object of this template may lie in the folder of another's attachments. Values contain no
    /// slashes, and times begin with a digit.
    pub fn may_meet(&self, attachments: &Template) -> bool {
        let Some(root) = attachments.root() else { return true };
        let has_slash = |part: &Part| matches!(part, Part::Text(text) if text.contains('/'));
        match self.0.first() {
            _ if !self.0.iter().any(has_slash) => false,
            Some(Part::Text(text)) => match text.find('/') {
                Some(_) => text.starts_with(root),
                None => root.starts_with(text.as_str()),
            },
            Some(Part::Time(..) | Part::Timestamp | Part::Epoch | Part::SeqNumber) => false,
            _ => true,
        }
    }

    /// Returns whether the template has `{table}`.
    pub fn has_table(&self) -> bool {
        self.0.contains(&Part::Table)
    }

    /// Returns the key. `None`: a member is missing or empty, or the key would be too long.
    pub fn key(&self, place: &KeyValues<'_>) -> Option<String> {
        let mut key = String::new();
        let moment = Moment::at(place.now);
        for part in &self.0 {
            match part {
                Part::Text(text) => key.push_str(text),
                Part::Id => value(&mut key, place.id)?,
                Part::Rev => value(&mut key, place.rev)?,
                Part::Seq => value(&mut key, place.seq)?,
                Part::FirstSeq => value(&mut key, place.first_seq)?,
                Part::SeqNumber => {
                    let number = crate::checkpoint::Seq::parse(place.seq)?.number()?;
                    key.push_str(&format!("{number:020}"));
                }
                Part::Epoch => key.push_str(&place.epoch.to_string()),
                Part::Job => value(&mut key, place.job)?,
                Part::Table => value(&mut key, place.table)?,
                Part::Attachment => value(&mut key, place.attachment)?,
                Part::Time(from, to) => key.push_str(&moment.to_string().get(*from..*to)?.replace(':', "")),
                Part::Timestamp => key.push_str(&place.now.to_string()),
                Part::Member(path) => {
                    let found = path.iter().try_fold(place.body, |value, name| value.get(name))?;
                    match found {
                        Value::Null | Value::Array(_) | Value::Object(_) => return None,
                        found => value(&mut key, &text_of(found))?,
                    }
                }
            }
            if key.len() > KEY_BYTES_MAX {
                return None;
            }
        }
        Some(key)
    }
}

/// Appends an encoded value. `None`: it is empty.
fn value(key: &mut String, text: &str) -> Option<()> {
    for (at, character) in text.char_indices().take(KEY_BYTES_MAX + 1) {
        let is_plain = match character {
            '.' => at > 0,
            '-' | '_' | '~' | ':' | '@' | '=' | ',' => true,
            character if character.is_ascii() => character.is_ascii_alphanumeric(),
            character => !character.is_control(),
        };
        if is_plain {
            key.push(character);
        } else {
            for byte in character.encode_utf8(&mut [0; 4]).bytes() {
                // Writing into a String cannot fail.
                let _ = write!(key, "%{byte:02X}");
            }
        }
    }
    (!text.is_empty()).then_some(())
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};
    use proptest::prelude::*;

    use super::*;

    fn place<'p>(id: &'p str, body: &'p Value<'p>) -> KeyValues<'p> {
        KeyValues {
            id,
            rev: "3-x",
            seq: "17-g1AA",
            first_seq: "5-g1AA",
            body,
            job: "j",
            epoch: 9,
            table: "t",
            attachment: "a b.png",
            now: 1_795_442_709,
        }
    }

    fn key(template: &str, id: &str) -> Option<String> {
        let body =
            parse(br#"{"type":"x/../y","n":1.50,"a":{"b":"c"},"empty":"","list":[]}"#, &Limits::default()).unwrap();
        template.parse::<Template>().unwrap().key(&place(id, &body))
    }

    #[test]
    fn keys() {
        for (template, id, expected) in [
            ("{id}", "order::1", "order::1"),
            ("in/{doc_id}.json", "a/b c", "in/a%2Fb%20c.json"),
            ("{id}", "..", "%2E."),
            ("{id}", "%2E.", "%252E."),
            ("{id}", "a\n\u{85}ä", "a%0A%C2%85ä"),
            ("{type}/{n}/{a.b}/{id}", "x", "x%2F..%2Fy/1.50/c/x"),
            (
                "{year}/{month}/{day}/{hour}-{date}-{timestamp}/{iso_date}",
                "x",
                "2026/11/23/14-2026-11-23-1795442709/2026-11-23T140509Z",
            ),
            ("{job}/{epoch}/{seq_number}-{seq}-{first_seq}", "x", "j/9/00000000000000000017-17-g1AA-5-g1AA"),
            ("{id}/{attachment}/{table}/{rev}", "x", "x/a%20b.png/t/3-x"),
        ] {
            assert_eq!(key(template, id).as_deref(), Some(expected), "{template} {id:?}");
        }
        for (template, id) in [("{gone}", "x"), ("{empty}", "x"), ("{list}", "x"), ("{a.b.c}", "x"), ("{id}", "")] {
            assert_eq!(key(template, id), None, "{template}");
        }
        assert_eq!(key("{id}", &"a".repeat(KEY_BYTES_MAX + 1)), None);
        assert!(key("{id}", &"a".repeat(KEY_BYTES_MAX)).is_some());
    }

    #[test]
    fn what_is_no_template() {
        for (template, expected) in [
            ("{id", TemplateError::Brace),
            ("id}", TemplateError::Brace),
            ("{}", TemplateError::Brace),
            ("{a{b}", TemplateError::Brace),
            ("/{id}", TemplateError::Path),
            ("{id}/", TemplateError::Path),
            ("a//{id}", TemplateError::Path),
            ("../{id}", TemplateError::Path),
            ("a/./{id}", TemplateError::Path),
            ("", TemplateError::Path),
            ("a\n{id}", TemplateError::Path),
        ] {
            assert_eq!(template.parse::<Template>(), Err(expected), "{template:?}");
        }
        assert_eq!("x".repeat(1_001).parse::<Template>(), Err(TemplateError::TooLong));
    }

    #[test]
    fn templates_fit_what_they_are_for() {
        let check = |template: &str, is_for| template.parse::<Template>().unwrap().check(is_for);
        let (kept, deleted) = (KeyPurpose::Each { is_deleted: false }, KeyPurpose::Each { is_deleted: true });
        for (template, is_for, expected) in [
            ("{id}.json", deleted, Ok(())),
            ("{job}/{id}", deleted, Ok(())),
            ("{type}/{id}", deleted, Err(TemplateError::Lost)),
            ("{id}/{seq}", deleted, Err(TemplateError::Lost)),
            ("{date}/{id}", deleted, Err(TemplateError::Lost)),
            ("{date}/{id}", kept, Ok(())),
            ("{type}/{id}", kept, Ok(())),
            ("{type}/{id}", KeyPurpose::Tombstones, Err(TemplateError::Tombstone)),
            ("{id}/{rev}", KeyPurpose::Tombstones, Ok(())),
            ("{date}", KeyPurpose::Tombstones, Err(TemplateError::Same)),
            ("{seq}", kept, Ok(())),
            ("{date}", kept, Err(TemplateError::Same)),
            ("{date}/{seq}.jsonl", KeyPurpose::Batch, Ok(())),
            ("{date}.jsonl", KeyPurpose::Batch, Err(TemplateError::Batch)),
            ("{id}/{seq}.jsonl", KeyPurpose::Batch, Err(TemplateError::Batch)),
            ("attachments/{id}/{attachment}", KeyPurpose::Attachments { is_deleted: true }, Ok(())),
            ("a/{job}/x-{id}/{attachment}", KeyPurpose::Attachments { is_deleted: true }, Ok(())),
            ("{id}/{attachment}", KeyPurpose::Attachments { is_deleted: true }, Err(TemplateError::Folder)),
            ("1/{id}/{attachment}", KeyPurpose::Attachments { is_deleted: true }, Err(TemplateError::Folder)),
            ("a/{id}-{attachment}", KeyPurpose::Attachments { is_deleted: true }, Err(TemplateError::Folder)),
            ("a/{id}/{attachment}.bin", KeyPurpose::Attachments { is_deleted: true }, Err(TemplateError::Folder)),
            ("a/{id}/{attachment}/{rev}", KeyPurpose::Attachments { is_deleted: true }, Err(TemplateError::Folder)),
            ("a/{seq}/{attachment}", KeyPurpose::Attachments { is_deleted: true }, Err(TemplateError::Folder)),
            ("{id}/{rev}-{attachment}", KeyPurpose::Attachments { is_deleted: false }, Ok(())),
            ("{type}/{id}/{attachment}", KeyPurpose::Attachments { is_deleted: false }, Err(TemplateError::Folder)),
            ("{id}", KeyPurpose::Attachments { is_deleted: true }, Err(TemplateError::Same)),
            ("{id}/{attachment}", deleted, Err(TemplateError::Misplaced)),
            ("{id}/{attachment}", KeyPurpose::Tombstones, Err(TemplateError::Misplaced)),
            ("{seq}/{attachment}", KeyPurpose::Batch, Err(TemplateError::Misplaced)),
            (
                "a/{table}/{id}/{attachment}",
                KeyPurpose::Attachments { is_deleted: false },
                Err(TemplateError::Misplaced),
            ),
        ] {
            assert_eq!(check(template, is_for), expected, "{template} {is_for:?}");
        }
    }

    #[test]
    fn documents_lie_beside_attachments() {
        let attachments: Template = "attachments/{id}/{attachment}".parse().unwrap();
        for (template, may_meet) in [
            ("{id}.json", false),
            ("in/{id}/{rev}", false),
            ("{date}/{seq}.jsonl", false),
            ("attachments", false),
            ("attachments/{id}", true),
            ("attach{id}/x", true),
            ("attached{id}/x", false),
            ("{id}/x", true),
            ("{type}/{id}", true),
            ("{job}/{id}", true),
        ] {
            assert_eq!(template.parse::<Template>().unwrap().may_meet(&attachments), may_meet, "{template}");
        }
    }

    proptest! {
        #[test]
        fn ids_stay_in_their_place_and_apart(one in "\\PC{1,12}|[./%\\\\\u{0}-\u{20}]{1,6}", other in "\\PC{1,12}|[./%]{1,6}") {
            let (of_one, of_other) = (key("in/{id}", &one).unwrap(), key("in/{id}", &other).unwrap());
            prop_assert_eq!(of_one == of_other, one == other);
            let parts: Vec<_> = of_one.split('/').collect();
            prop_assert!(parts.len() == 2 && !matches!(parts[1], "" | "." | ".."));
            prop_assert!(!of_one.chars().any(char::is_control));
        }

        #[test]
        fn any_text_is_a_template_or_none(text in "[a-z{}./\u{0}]{0,20}") {
            let _ = text.parse::<Template>();
        }
    }
}
