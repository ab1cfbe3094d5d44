//! Paths of documents at an endpoint: templates whose names in braces are replaced by percent-encoded values.

use flatbed_client::encode_segment;
use flatbed_flatten::json::Value;
use hyper::Uri;

use crate::output::Delivery;
use crate::transform::text_of;

const PATH_BYTES_MAX: usize = 8 << 10;

/// The purpose of a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathPurpose {
    /// Documents.
    Documents {
        /// True if their deletions are sent too.
        is_deleted: bool,
        /// True if the body of a deletion names its document.
        is_told: bool,
    },
    /// Attachments that are delivered individually.
    Attachments,
}

/// The reason why a template is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathTemplateError {
    /// An unbalanced brace, or an empty name.
    #[error("the template has an unbalanced brace, or an empty name")]
    Brace,
    /// The path is not valid in a request.
    #[error(
        "the template must begin with a slash, and have no blanks, control characters or other characters that no path or query has"
    )]
    Character,
    /// A member of the document, which deletions do not have.
    #[error(
        "deletions have no members, so none could be sent to {{{0}}}: {{id}} is the document's id; or `on_delete` is `ignore`, and documents stay there that are deleted, match no longer or change that member"
    )]
    Lost(String),
    /// The path and body of a deletion do not name the document.
    #[error(
        "no deletion would say which document it is of: {{id}} in the path, `send_delete_body`, or `on_delete` `ignore` is needed"
    )]
    Same,
    /// A name that is valid for attachments only.
    #[error("{{{0}}} is allowed in the path of attachments only")]
    Attachment(String),
    /// All attachments would have the same path.
    #[error("a path of attachments needs {{id}} and {{attachment}}, or all would be the same")]
    Attachments,
}

fn names(template: &str) -> Result<Vec<&str>, PathTemplateError> {
    let (mut names, mut rest) = (Vec::new(), template);
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}').ok_or(PathTemplateError::Brace)?;
        if before.contains('}') || name.contains('{') || name.split('.').any(str::is_empty) {
            return Err(PathTemplateError::Brace);
        }
        names.push(name);
        rest = after;
    }
    if rest.contains('}') { Err(PathTemplateError::Brace) } else { Ok(names) }
}

/// Returns whether the path is valid in a request for all values of its names, which are percent-encoded.
fn is_target(template: &str) -> bool {
    let (mut target, mut rest) = (String::with_capacity(template.len()), template);
    while let Some((before, after)) = rest.split_once('{') {
        target.push_str(before);
        target.push('x');
        rest = after.split_once('}').map_or("", |(_, rest)| rest);
    }
    target.push_str(rest);
    // The part after `#` would not be sent.
    target.starts_with('/') && !target.contains('#') && target.parse::<Uri>().is_ok()
}

/// Returns whether the template uses members of the product.
pub fn has_members(template: &str) -> bool {
    let known = ["id", "doc_id", "rev", "seq", "attachment", "attachment_name"];
    names(template).is_ok_and(|names| names.iter().any(|name| !known.contains(name)))
}

/// Checks that a template fits its purpose.
pub fn check(template: &str, is_for: PathPurpose) -> Result<(), PathTemplateError> {
    check_names(template, is_for)?;
    if is_target(template) { Ok(()) } else { Err(PathTemplateError::Character) }
}

fn check_names(template: &str, is_for: PathPurpose) -> Result<(), PathTemplateError> {
    let names = names(template)?;
    let has = |wanted: [&str; 2]| names.iter().any(|name| wanted.contains(name));
    let (id, attachment) = (["id", "doc_id"], ["attachment", "attachment_name"]);
    let PathPurpose::Documents { is_deleted, is_told } = is_for else {
        return if has(id) && has(attachment) { Ok(()) } else { Err(PathTemplateError::Attachments) };
    };
    if let Some(name) = names.iter().find(|name| attachment.contains(name)) {
        return Err(PathTemplateError::Attachment((*name).to_owned()));
    }
    if !is_deleted {
        return Ok(());
    }
    let known = ["id", "doc_id", "rev", "seq"];
    match names.iter().find(|name| !known.contains(name)) {
        Some(member) => Err(PathTemplateError::Lost((*member).to_owned())),
        None if !has(id) && !is_told => Err(PathTemplateError::Same),
        None => Ok(()),
    }
}

/// Returns the path of a document or of one of its attachments, from `{id}`, `{rev}`, `{seq}`, `{attachment}` and
/// members of the product (`{customer.id}`), percent-encoded. `None`: the path is too long, a member is missing, or a
/// name is unknown.
pub fn path_of(template: &str, delivery: &Delivery, body: &Value<'_>, attachment: Option<&str>) -> Option<String> {
    let mut path = String::with_capacity(template.len() + delivery.id.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (name, after) = after.split_once('}')?;
        path.push_str(before);
        let value = match (name, attachment) {
            ("id" | "doc_id", _) => encode_segment(&delivery.id),
            ("rev", _) => encode_segment(&delivery.rev),
            ("seq", _) => encode_segment(&delivery.seq),
            ("attachment" | "attachment_name", Some(attachment)) => encode_segment(attachment),
            (member, _) => {
                let found = member.split('.').try_fold(body, |value, name| value.get(name))?;
                encode_segment(&text_of(found))
            }
        };
        // Servers that normalize paths would treat dots as path segments.
        if matches!(value.as_str(), "" | "." | "..") {
            return None;
        }
        path.push_str(&value);
        rest = after;
    }
    path.push_str(rest);
    (path.len() <= PATH_BYTES_MAX).then_some(path)
}

#[cfg(test)]
mod tests {
    use flatbed_flatten::json::{Limits, parse};

    use super::*;
    use crate::output::DeliveryState;

    #[test]
    fn paths_stay_where_their_template_puts_them() {
        let delivery = |id: &str| Delivery {
            id: id.to_owned(),
            rev: "1-x".to_owned(),
            seq: "7".to_owned(),
            state: DeliveryState::Gone,
            attachments: Vec::new(),
        };
        let body = parse(br#"{"customer":{"id":7},"name":"a/b?c"}"#, &Limits::default()).unwrap();
        let path = |template: &str, id: &str| path_of(template, &delivery(id), &body, None);
        assert_eq!(path("/in/{id}", "order::1/2").as_deref(), Some("/in/order%3A%3A1%2F2"));
        assert_eq!(
            path("/{customer.id}/{name}?rev={rev}&seq={seq}", "a").as_deref(),
            Some("/7/a%2Fb%3Fc?rev=1-x&seq=7")
        );
        assert_eq!(path("/x/{doc_id}", "a").as_deref(), Some("/x/a"));
        let of = |name: &str| path_of("/in/{doc_id}/{attachment}", &delivery("a/b"), &body, Some(name));
        assert_eq!(of("c d/../e.png").as_deref(), Some("/in/a%2Fb/c%20d%2F..%2Fe.png"));
        assert_eq!([of(".."), path("/{id}/{attachment}", "a")], [None, None]);
        for (template, id) in [("/{id}", ".."), ("/{id}", "."), ("/{gone}", "a"), ("/{customer.x}", "a"), ("/{id", "a")]
        {
            assert_eq!(path(template, id), None, "{template} {id}");
        }
        assert_eq!(path("/{id}", &"a".repeat(PATH_BYTES_MAX)), None);
    }

    #[test]
    fn templates_fit_what_they_are_for() {
        let documents = |is_deleted, is_told| PathPurpose::Documents { is_deleted, is_told };
        let (deleted, told, kept) = (documents(true, false), documents(true, true), documents(false, false));
        let lost = |name: &str| Err(PathTemplateError::Lost(name.to_owned()));
        let attachment = |name: &str| Err(PathTemplateError::Attachment(name.to_owned()));
        for (template, is_for, expected) in [
            ("/in/{id}", deleted, Ok(())),
            ("/in/{doc_id}?rev={rev}&seq={seq}", deleted, Ok(())),
            ("/{type}/{id}", deleted, lost("type")),
            ("/{type}/{id}", told, lost("type")),
            // A mapping may set this member to anything.
            ("/in/{_id}", deleted, lost("_id")),
            ("/{type}/{_id}", kept, Ok(())),
            ("/in", deleted, Err(PathTemplateError::Same)),
            ("/in?seq={seq}", deleted, Err(PathTemplateError::Same)),
            ("/in", told, Ok(())),
            ("/in", kept, Ok(())),
            ("/{id}/{attachment}", deleted, attachment("attachment")),
            ("/{id}/{attachment_name}", kept, attachment("attachment_name")),
            ("/{id}/{attachment}", PathPurpose::Attachments, Ok(())),
            ("/{type}/{doc_id}?name={attachment_name}", PathPurpose::Attachments, Ok(())),
            ("/{id}", PathPurpose::Attachments, Err(PathTemplateError::Attachments)),
            ("/{type}/{attachment}", PathPurpose::Attachments, Err(PathTemplateError::Attachments)),
        ] {
            assert_eq!(check(template, is_for), expected, "{template} {is_for:?}");
        }
        let members = ["/{id}", "/{doc_id}/{attachment}?{rev}&{seq}", "/{id}/{a.b}", "/x"].map(has_members);
        assert_eq!(members, [false, false, true, false]);
        for template in ["/{id", "/id}", "/{}", "/{a{id}}", "/{id}}", "/{a..b}/{id}", "/{.a}"] {
            assert_eq!(check(template, kept), Err(PathTemplateError::Brace), "{template}");
        }
        for template in
            ["/{id}\r\nX: y", "/{id} b", "/a\tb", "/{id}\0", "/{id}\u{7f}", "/a<b", "/#{id}", "{id}", "x/{id}", ""]
        {
            assert_eq!(check(template, kept), Err(PathTemplateError::Character), "{template}");
        }
        let odd = "/{a name}/{id}/%20~$!*'();:@&=+,[]?a=\u{e9}&b={id}";
        assert_eq!(check(odd, kept), Ok(()));
    }
}
