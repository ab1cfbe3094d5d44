//! The text log: one line for each event, whatever its fields contain.

use std::io::{self, Write};

use tracing_subscriber::fmt::MakeWriter;

/// Writes events to `W` with control characters escaped as in Rust, so that texts from clients neither begin a line nor
/// move a terminal's cursor. One call of `write` is one event with its line end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OneLine<W>(pub(crate) W);

impl<'w, W: MakeWriter<'w>> MakeWriter<'w> for OneLine<W> {
    type Writer = OneLine<W::Writer>;

    fn make_writer(&'w self) -> OneLine<W::Writer> {
        OneLine(self.0.make_writer())
    }

    fn make_writer_for(&'w self, metadata: &tracing::Metadata<'_>) -> OneLine<W::Writer> {
        OneLine(self.0.make_writer_for(metadata))
    }
}

impl<W: Write> Write for OneLine<W> {
    /// Writes all of `bytes`, or fails.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        let (line, end) = text.strip_suffix('\n').map_or((&*text, ""), |line| (line, "\n"));
        if line.chars().any(is_escaped) {
            self.0.write_all((escaped(line) + end).as_bytes())?;
        } else {
            self.0.write_all(text.as_bytes())?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Returns whether a character is a control character, another line end, or a change of text direction.
fn is_escaped(character: char) -> bool {
    character.is_control() || matches!(character, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn escaped(line: &str) -> String {
    let mut out = String::with_capacity(line.len() + 16);
    for character in line.chars() {
        match character {
            character if !is_escaped(character) => out.push(character),
            '\n' | '\r' | '\t' => out.extend(character.escape_default()),
            character => out.extend(character.escape_unicode()),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line() {
        let written = |text: &str| {
            let mut out = OneLine(Vec::<u8>::new());
            out.write_all(text.as_bytes()).unwrap();
            String::from_utf8(out.0).unwrap()
        };
        for (text, line) in [
            ("plain: \"a\\nb\" \u{e9}\u{1f600}\n", "plain: \"a\\nb\" \u{e9}\u{1f600}\n"),
            ("a\n2000-01-01T00:00:00Z  INFO audit: forged\n", "a\\n2000-01-01T00:00:00Z  INFO audit: forged\n"),
            ("a\r\nb\tc\n\n", "a\\r\\nb\\tc\\n\n"),
            ("\u{1b}[2J\u{9b}2J\u{85}\u{7f}\u{8}\0\n", "\\u{1b}[2J\\u{9b}2J\\u{85}\\u{7f}\\u{8}\\u{0}\n"),
            ("\u{2028}\u{202e}\u{2066}", "\\u{2028}\\u{202e}\\u{2066}"),
            ("", ""),
        ] {
            assert_eq!(written(text), line, "{text:?}");
        }
    }
}
