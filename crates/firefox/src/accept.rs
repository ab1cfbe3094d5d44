//! The form in which a list is written.

use crate::error::{Failure, Result};
use crate::object::Form;

/// Returns the first known form in `Accept`.
///
/// # Errors
/// 406.
pub(crate) fn form(accept: Option<&str>) -> Result<Form> {
    let Some(accept) = accept else { return Ok(Form::Json) };
    let mut best = None;
    for element in accept.split(',') {
        let mut parts = element.split(';').map(str::trim);
        let form = match &*parts.next().unwrap_or_default().to_ascii_lowercase() {
            "application/json" | "*/*" => Form::Json,
            "application/newlines" => Form::Newlines,
            _ => continue,
        };
        let quality = parts.find_map(|part| part.strip_prefix("q=")?.parse().ok()).unwrap_or(1.0_f32);
        if quality > best.map_or(0.0, |(_, quality)| quality) {
            best = Some((form, quality));
        }
    }
    best.map(|(form, _)| form).ok_or_else(Failure::not_acceptable)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms() {
        for (accept, expected) in [
            ("application/json", Some(Form::Json)),
            ("*/*", Some(Form::Json)),
            ("Application/Newlines", Some(Form::Newlines)),
            ("text/html,application/newlines", Some(Form::Newlines)),
            ("application/json;q=0.5,application/newlines", Some(Form::Newlines)),
            ("application/json;q=0.9,*/*;q=0.2", Some(Form::Json)),
            ("application/newlines, application/json", Some(Form::Newlines)),
            ("application/newlines;q=0", None),
            ("application/*", None),
            ("text/plain", None),
            ("", None),
        ] {
            assert_eq!(form(Some(accept)).ok(), expected, "{accept}");
        }
        assert_eq!(form(None).ok(), Some(Form::Json));
    }
}
