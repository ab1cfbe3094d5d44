//! JSON Lines, into a file or the standard output.
//!
//! A line is an object: `id`, `rev`, `seq`, and `doc` with what the document produces, or `deleted`. Who reads them takes the last
//! line of each document: a batch whose checkpoint was not written comes again.

use std::io::{self, Write};

use flatbed_flatten::json::Object;

use super::{Delivery, Refused, State, Target};
use crate::checkpoint::Checkpoint;
use crate::failure::Failure;
use crate::mapping::Table;
use crate::rows::{Product, rows_json};

/// Lines to something that is written to.
#[derive(Debug)]
pub struct Lines<W> {
    to: W,
    tables: Vec<Table>,
    /// What was written last is no whole line: a disk was full, or a process ended.
    is_torn: bool,
}

/// A delivery's line, with its end.
pub fn line(delivery: &Delivery, tables: &[Table]) -> Vec<u8> {
    let mut line = Object::text(|object| {
        object.string("id", &delivery.id).string("rev", &delivery.rev).string("seq", &delivery.seq);
        match &delivery.state {
            State::Is(Product::Json(text)) => {
                object.raw("doc", text.as_bytes());
            }
            State::Is(Product::Rows(rows)) => {
                object.raw("doc", rows_json(tables, rows).as_bytes());
            }
            // A target without claims cannot know whether it ever had it.
            State::Is(Product::Nothing) | State::Gone => {
                object.bool("deleted", true);
            }
        }
    });
    line.push(b'\n');
    line
}

impl<W: Write> Lines<W> {
    /// For a mapping with such tables.
    pub fn new(to: W, tables: Vec<Table>) -> Lines<W> {
        Lines { to, tables, is_torn: false }
    }

    /// Behind what is no whole line, if so it is.
    #[must_use]
    pub fn behind(self, is_torn: bool) -> Lines<W> {
        Lines { is_torn, ..self }
    }

    /// What was written to.
    pub fn into_inner(self) -> W {
        self.to
    }
}

impl<W: Write + Send> Target for Lines<W> {
    async fn begin(&mut self, _: u64) -> Result<Option<Checkpoint>, Refused> {
        Ok(None)
    }

    /// Writes a batch, and through to where it goes. It waits for the disk where it is called: a line takes microseconds.
    async fn deliver(&mut self, batch: Vec<Delivery>, _: Option<Checkpoint>) -> Result<(), Refused> {
        let refused = |error: io::Error| Refused::failed(Failure::Storage, error);
        for delivery in &batch {
            let mut line = line(delivery, &self.tables);
            if self.is_torn {
                // Or the two were one line, which nobody could read.
                line.insert(0, b'\n');
            }
            self.is_torn = true;
            self.to.write_all(&line).map_err(refused)?;
            self.is_torn = false;
        }
        self.to.flush().map_err(refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_line_a_document() {
        let of = |state| Delivery {
            id: "a\n".to_owned(),
            rev: "1-x".to_owned(),
            seq: "7-y".to_owned(),
            state,
            attachments: Vec::new(),
        };
        let mut lines = Lines::new(Vec::new(), Vec::new());
        let batch = [
            State::Is(Product::Json("{\"n\":1}".to_owned())),
            State::Gone,
            State::Is(Product::Nothing),
            State::Is(Product::Rows(Vec::new())),
        ];
        lines.deliver(batch.map(of).to_vec(), None).await.unwrap();
        let text = String::from_utf8(lines.into_inner()).unwrap();
        let head = r#"{"id":"a\n","rev":"1-x","seq":"7-y","#;
        let ends = [r#""doc":{"n":1}}"#, r#""deleted":true}"#, r#""deleted":true}"#, r#""doc":{}}"#];
        assert_eq!(text.lines().collect::<Vec<_>>(), ends.map(|end| format!("{head}{end}")));
    }

    /// Takes some bytes, then none for a while.
    struct Small(Vec<u8>, usize);
    impl Write for Small {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.1 == 0 {
                self.1 = usize::MAX;
                return Err(io::ErrorKind::StorageFull.into());
            }
            let taken = bytes.len().min(self.1);
            self.1 -= taken;
            self.0.extend_from_slice(&bytes[..taken]);
            Ok(taken)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_line_that_broke_off_spoils_no_other() {
        let gone = |id: &str| Delivery {
            id: id.to_owned(),
            rev: String::new(),
            seq: String::new(),
            state: State::Gone,
            attachments: Vec::new(),
        };
        let mut lines = Lines::new(Small(Vec::new(), 10), Vec::new());
        let batch = vec![gone("a"), gone("b")];
        assert!(lines.deliver(batch.clone(), None).await.is_err());
        lines.deliver(batch, None).await.unwrap();
        let text = String::from_utf8(lines.into_inner().0).unwrap();
        let whole = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        assert_eq!(whole.map(|line| line["id"].clone()).collect::<Vec<_>>(), ["a", "b"], "{text}");
    }

    #[tokio::test]
    async fn a_full_disk_is_the_targets_state() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let gone = Delivery {
            id: "a".to_owned(),
            rev: String::new(),
            seq: String::new(),
            state: State::Gone,
            attachments: Vec::new(),
        };
        let Err(Refused::Failed { failure, .. }) = Lines::new(Full, Vec::new()).deliver(vec![gone], None).await else {
            panic!()
        };
        assert_eq!(failure.class(), crate::failure::Class::Outage);
    }
}
