//! The keys of a document in readable form, as `design/data-model.md` describes them.

use std::cell::Cell;
use std::fmt::Write;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_databases::document::edit::DOCUMENT_ID_BYTES_MAX;
use flatbed_databases::field_names::FieldsView;
use flatbed_databases::handles::ReadHandle;
use flatbed_databases::instance::Instance;
use flatbed_databases::server::Inner;
use flatbed_flatten::FieldNames;
use flatbed_flatten::path::{ARRAY, Element, FIRST_FIELD_ID, PACKED, PART, PERMUTATION, take};
use flatbed_store::error::{Error, Result};
use flatbed_store::keys::{DocumentPart, KeyRange, Keys, take_rev};
use flatbed_store::records::Info;
use flatbed_store::seq::{Seq, VERSIONSTAMP_OFFSET};
use flatbed_store::transaction::{Attempt, Operation, Transaction};

/// Key limit of a page.
const KEYS_MAX: usize = 100;

/// A key of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredKey {
    /// The first 10,000 bytes of the key.
    pub key: Vec<u8>,
    /// The elements of the key, with names of fields in the place of numbers: `{NS} / 2 / "a" / 1 / customer / city`.
    pub form: String,
    /// The kind of the key: `info`, `body`, `leaf`, `revision`, `revision_body`, `ancestors`, `attachments`, `by_seq`,
    /// `all_docs`.
    pub what: &'static str,
    /// Size of the value in bytes.
    pub value_bytes: usize,
}

/// A page of the keys of a document.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredKeys {
    /// The keys in order: those under the document's id, then, on the first page, its by-seq and `_all_docs` keys.
    pub keys: Vec<StoredKey>,
    /// The last key of the page; `None` if there are no more.
    pub next: Option<Vec<u8>>,
}

type KeyAndLength = (Vec<u8>, usize);

struct ReadKeys<'a> {
    inner: &'a Inner,
    name: &'a str,
    id: &'a str,
    after: Option<&'a [u8]>,
}

impl Operation for ReadKeys<'_> {
    /// The instance; the keys under the document; keys elsewhere, each with its form; whether there are more.
    type Output = (Arc<Instance>, Vec<KeyAndLength>, Vec<(&'static str, String, KeyAndLength)>, bool);

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Self::Output> {
        let instance = self.inner.resolve(trx, self.name).await?;
        let document = instance.keys.document(self.id);
        let KeyRange { mut begin, end } = document.whole();
        // A key of another document must not be shown for this one.
        if let Some(after) = self.after.filter(|after| (begin.as_slice()..end.as_slice()).contains(after)) {
            begin = [after, &[0]].concat();
        }
        // The first page may end before the info, so the info is read by its key.
        let info = self.after.is_none().then(|| trx.get(&document.info(), true));
        let rows = trx.range(&KeyRange { begin, end }, true).page(KEYS_MAX).await?;
        let under = rows.iter().map(|row| (row.key().to_vec(), row.value().len())).collect();
        let mut beside = Vec::new();
        let info = match info {
            Some(info) => info.await?,
            None => None,
        };
        if let Some(info) = info {
            let info = Info::decode(&info)?;
            let bucket = instance.buckets.of(info.bucket);
            let bucket =
                bucket.ok_or_else(|| Error::Corrupt(format!("a document stands in bucket {}", info.bucket)))?;
            let seq = Seq::new(instance.incarnation(), info.stamp);
            let entry = bucket.by_seq(&seq);
            let listed = instance.keys.all_docs_entry(self.id);
            let (in_feed, in_list) = futures_util::try_join!(trx.get(&entry, true), trx.get(&listed, true))?;
            let versionstamp = hexadecimal(seq.stamp().get(VERSIONSTAMP_OFFSET as usize..).unwrap_or_default());
            let by_seq = format!("{{NS}} / 3 / {} / {} / {versionstamp}", seq.incarnation(), seq.epoch());
            let all_docs = format!("{{NS}} / 4 / {:?}", self.id);
            let found = [("by_seq", by_seq, entry, in_feed), ("all_docs", all_docs, listed, in_list)];
            for (what, form, key, value) in found {
                beside.extend(value.map(|value| (what, form, (key, value.len()))));
            }
        }
        Ok((instance, under, beside, !rows.is_all()))
    }
}

/// Performs `Reader::stored_keys` of the layer.
#[boxed]
pub async fn stored_keys(database: &ReadHandle, id: &str, after: Option<&[u8]>) -> Result<StoredKeys> {
    if id.len() > DOCUMENT_ID_BYTES_MAX {
        return Ok(StoredKeys::default());
    }
    let mut operation = ReadKeys { inner: &database.inner, name: &database.name, id, after };
    let (instance, under, beside, has_more) = database.read(&mut operation).await?;
    let next = under.last().filter(|_| has_more).map(|(key, _)| key.clone());
    let known = parse_keys(&instance.keys, &instance.fields.view(), &under);
    let mut keys = match known {
        Some(keys) => keys,
        None => {
            // Another process may have added names.
            instance.reload_names(&database.inner).await?;
            let names = instance.fields.view();
            under
                .iter()
                .map(|(key, bytes)| describe_key(&instance.keys, &NamesOrNumbers(&names), key, *bytes))
                .collect()
        }
    };
    for (what, form, (key, value_bytes)) in beside {
        keys.push(StoredKey { key, form, what, value_bytes });
    }
    Ok(StoredKeys { keys, next })
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

trait FieldLabels {
    fn field_name(&self, id: u64) -> String;
}

/// Names alone; records whether one is unknown.
struct Names<'n> {
    names: &'n FieldsView<'n>,
    is_any_unknown: Cell<bool>,
}

impl FieldLabels for Names<'_> {
    fn field_name(&self, id: u64) -> String {
        let name = self.names.name_of(id);
        self.is_any_unknown.set(self.is_any_unknown.get() || name.is_none());
        name.unwrap_or_default().to_owned()
    }
}

/// Names, or numbers for fields without one: in a damaged or partly restored store.
struct NamesOrNumbers<'n>(&'n FieldsView<'n>);

impl FieldLabels for NamesOrNumbers<'_> {
    fn field_name(&self, id: u64) -> String {
        self.0.name_of(id).map_or_else(|| format!("field {id}"), ToOwned::to_owned)
    }
}

/// Returns the keys in readable form; `None` if a name is unknown.
fn parse_keys(keys: &Keys, names: &FieldsView<'_>, found: &[KeyAndLength]) -> Option<Vec<StoredKey>> {
    let names = Names { names, is_any_unknown: Cell::new(false) };
    let shown = found.iter().map(|(key, bytes)| describe_key(keys, &names, key, *bytes)).collect();
    (!names.is_any_unknown.get()).then_some(shown)
}

fn describe_key(keys: &Keys, names: &impl FieldLabels, key: &[u8], value_bytes: usize) -> StoredKey {
    let (what, form) = match keys.split_document(key) {
        // The checker reports values that are not keys.
        Err(_) => ("unknown", format!("{{NS}} / {}", hexadecimal(key))),
        Ok((id, part, rest)) => {
            let (what, number) = match part {
                DocumentPart::Info => ("info", 0),
                DocumentPart::Body => ("body", 1),
                DocumentPart::Leaf => ("leaf", 2),
                DocumentPart::Revision => ("revision", 3),
                DocumentPart::RevisionBody => ("revision_body", 4),
                DocumentPart::Ancestors => ("ancestors", 5),
                DocumentPart::Attachments => ("attachments", 6),
            };
            (what, format!("{{NS}} / 2 / {id:?} / {number}{}", behind(part, rest, names)))
        }
    };
    StoredKey { key: key.to_vec(), form, what, value_bytes }
}

/// Returns the elements behind a part's number: a revision, a path, or both.
fn behind(part: DocumentPart, rest: &[u8], names: &impl FieldLabels) -> String {
    let revision = |rest| match take_rev(rest) {
        Ok((rev, rest)) => (format!(" / {rev}"), rest),
        Err(_) => (format!(" / {}", hexadecimal(rest)), &[][..]),
    };
    match part {
        DocumentPart::Info => String::new(),
        DocumentPart::Body => path(rest, names),
        DocumentPart::RevisionBody => {
            let (rev, rest) = revision(rest);
            rev + &path(rest, names)
        }
        DocumentPart::Leaf => {
            let deleted = matches!(take(rest), Some((Element::Int(0), _)));
            let rest = take(rest).and_then(|(_, used)| rest.get(used..)).unwrap_or_default();
            format!(" / {}{}", u8::from(!deleted), revision(rest).0)
        }
        DocumentPart::Revision | DocumentPart::Ancestors | DocumentPart::Attachments => revision(rest).0,
    }
}

/// Returns a path with the names of fields: `/ customer / city`, `/ tags / [3]`.
fn path(mut rest: &[u8], names: &impl FieldLabels) -> String {
    let mut text = String::new();
    while let Some((element, used)) = take(rest) {
        rest = rest.get(used..).unwrap_or_default();
        let mut number = || {
            let (element, used) = take(rest)?;
            rest = rest.get(used..).unwrap_or_default();
            if let Element::Int(number) = element { Some(number) } else { None }
        };
        // Writing into a String cannot fail.
        let _ = match element {
            Element::Literal(name) => write!(text, " / {name:?}"),
            Element::Int(id) if id >= FIRST_FIELD_ID => write!(text, " / {}", names.field_name(id)),
            Element::Int(marker) => {
                let at = number().unwrap_or_default();
                match marker {
                    ARRAY => write!(text, " / [{at}]"),
                    PART => write!(text, " / part {at}"),
                    PERMUTATION => write!(text, " / order, part {at}"),
                    PACKED => write!(text, " / packed, part {at}"),
                    _ => write!(text, " / {marker} / {at}"),
                }
            }
        };
    }
    if !rest.is_empty() {
        let _ = write!(text, " / {}", hexadecimal(rest));
    }
    text
}
