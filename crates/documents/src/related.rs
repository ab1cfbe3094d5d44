//! Documents as `multipart/related`: first their JSON, then each attachment's data as stored.

use flatbed_layer::Document;
use flatbed_layer::json::{Object, name};
use flatbed_service::json_out;

use crate::attached::{AttachmentOptions, Part, is_new, open};

/// A document and the attachments that are sent with it.
pub struct MultipartRelated {
    /// The parts in order. Only the JSON without boundaries if there is no data.
    pub parts: Vec<Part>,
    /// True if there is data, so that the answer is `multipart/related`.
    pub has_data: bool,
}

/// Builds CouchDB's form with a boundary. Attachments excluded by `show.since` are stubs in the JSON. Ignores
/// `show.data`.
pub fn related(
    document: &Document,
    show: &AttachmentOptions,
    with_revisions: bool,
    boundary: &str,
) -> MultipartRelated {
    let known_to = show.known_to(document);
    let goes = |attachment: &&flatbed_layer::Attachment| is_new(attachment, known_to);
    let has_data = document.attachments.iter().any(|attachment| goes(&attachment));
    let (mut out, mut parts) = (Vec::new(), Vec::new());
    if has_data {
        out.extend_from_slice(format!("--{boundary}\r\nContent-Type: application/json\r\n\r\n").as_bytes());
    }
    open(document, with_revisions, &mut parts, &mut out);
    let mut text = Object::reopen(&mut out);
    if !document.attachments.is_empty() {
        let mut attachments = text.object(name!("_attachments"));
        for attachment in &document.attachments {
            let place = if goes(&attachment) { "follows" } else { "stub" };
            json_out::attachment(attachment, place, true, &mut attachments);
        }
    }
    text.end();
    if has_data {
        out.extend_from_slice(format!("\r\n--{boundary}").as_bytes());
        for (at, attachment) in document.attachments.iter().enumerate().filter(|(_, attachment)| goes(attachment)) {
            let head = format!(
                "\r\nContent-Disposition: attachment; filename=\"{}\"\r\nContent-Type: {}\r\nContent-Length: {}{}\r\n\r\n",
                header_text(&attachment.name),
                header_text(&attachment.content_type),
                attachment.stored_length,
                if attachment.gzip { "\r\nContent-Encoding: gzip" } else { "" },
            );
            out.extend_from_slice(head.as_bytes());
            parts.push(Part::Text(std::mem::take(&mut out)));
            parts.push(Part::Stored(at));
            out.extend_from_slice(format!("\r\n--{boundary}").as_bytes());
        }
        out.extend_from_slice(b"--");
    }
    parts.push(Part::Text(out));
    MultipartRelated { parts, has_data }
}

/// Escapes a text for a header or a quoted parameter, as browsers escape file names in forms.
pub fn header_text(text: &str) -> String {
    text.chars()
        .map(|char| match char {
            '"' => "%22".to_owned(),
            char if char.is_ascii_control() => format!("%{:02X}", u32::from(char)),
            char => char.into(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_ends_its_header() {
        assert_eq!(header_text("a\"\r\nX: y\0/ü"), "a%22%0D%0AX: y%00/ü");
    }
}
