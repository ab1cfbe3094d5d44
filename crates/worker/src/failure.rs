//! Classifies failures: poison, which the document alone causes, or an outage, which the target's state causes.
//!
//! Poison goes to the queue of failed documents and other documents proceed. During an outage the job retries and holds
//! its checkpoint; no document goes to the queue.

use crate::rows::Unmappable;

/// The cause of a failed delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// The mapping cannot convert the document.
    Unmappable(Box<Unmappable>),
    /// The status of an HTTP target that refuses the document.
    Http(u16),
    /// The status of an object store that is not about the object; 0: nothing was sent.
    Store(u16),
    /// An SQL target's error: its SQLSTATE.
    Sql([u8; 5]),
    /// No connection, or a broken one: refused, reset, unresolved name, TLS failure, timeout.
    Connection,
    /// The product is larger than the target's protocol or the worker accepts.
    TooLarge,
    /// A full disk, or a file that cannot be written.
    Storage,
}

/// The class of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The document.
    Poison,
    /// The target.
    Outage,
}

impl Class {
    /// Returns the word for a queue entry.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Poison => "poison",
            Class::Outage => "outage",
        }
    }
}

impl Failure {
    /// Maps SQLite's extended result code to the SQLSTATE of other databases.
    pub fn of_sqlite(code: i32) -> Failure {
        let state = match code & 0xff {
            // SQLITE_CONSTRAINT. A violation of a data type (SQLITE_CONSTRAINT_DATATYPE) is the value's fault.
            19 if code >> 8 == 12 => b"22000",
            // SQLITE_CONSTRAINT_UNIQUE, SQLITE_CONSTRAINT_PRIMARYKEY.
            19 if matches!(code >> 8, 6 | 8) => b"23505",
            // SQLITE_CONSTRAINT_FOREIGNKEY.
            19 if code >> 8 == 3 => b"23503",
            19 => b"23000",
            // SQLITE_TOOBIG, SQLITE_MISMATCH, SQLITE_RANGE.
            18 | 20 | 25 => b"22000",
            // SQLITE_PERM, SQLITE_READONLY, SQLITE_AUTH.
            3 | 8 | 23 => b"42501",
            // SQLITE_BUSY, SQLITE_LOCKED.
            5 | 6 => b"40001",
            // SQLITE_ERROR, SQLITE_SCHEMA: a missing table or column.
            1 | 17 => b"42000",
            // SQLITE_NOMEM, SQLITE_IOERR, SQLITE_CORRUPT, SQLITE_FULL, SQLITE_CANTOPEN and all others.
            _ => b"53000",
        };
        Failure::Sql(*state)
    }

    /// Maps an error of MySQL or MariaDB, by its number if the SQLSTATE is too general.
    pub fn of_mysql(number: u16, state: &str) -> Failure {
        let state: [u8; 5] = match number {
            // Unique keys.
            1062 | 1169 | 1586 => *b"23505",
            // Foreign keys.
            1216 | 1217 | 1451 | 1452 => *b"23503",
            // CHECK constraints of MySQL and of MariaDB.
            3819 | 4025 => *b"23514",
            // Values of a wrong type or too long for their column.
            1265 | 1366 | 1406 | 1292 | 1264 | 3140 | 3141 => *b"22000",
            // Larger than the server's packet limit or the row limit.
            1153 | 1301 | 1118 => return Failure::TooLarge,
            // Lock waits and deadlocks.
            1205 | 1213 => *b"40001",
            // Full disks and tables, and lack of memory.
            1021 | 1114 | 1037 | 1038 | 1041 => *b"53100",
            // Accounts and privileges.
            1044 | 1045 | 1698 => *b"28000",
            1142 | 1143 | 1227 | 1370 => *b"42501",
            // A required column without a value is the table's fault.
            1364 => *b"42000",
            _ => state.as_bytes().try_into().unwrap_or(*b"HY000"),
        };
        Failure::Sql(state)
    }

    /// Returns the class. Unknown failures count as outages, because waiting loses nothing.
    pub fn class(&self) -> Class {
        let is_poison = match self {
            Failure::Unmappable(_) | Failure::TooLarge => true,
            Failure::Http(status) => matches!(status, 400 | 409 | 413 | 415 | 422),
            Failure::Sql(state) => matches!(state.get(..2), Some(b"22" | b"23")),
            Failure::Connection | Failure::Storage | Failure::Store(_) => false,
        };
        if is_poison { Class::Poison } else { Class::Outage }
    }

    /// Returns the Python worker's word for `reason`.
    pub fn reason(&self) -> String {
        match self {
            Failure::Unmappable(of) => match **of {
                Unmappable::TwoOfOneKey(_) | Unmappable::Null(..) => "data_error:constraint".to_owned(),
                Unmappable::Mismatch { .. } => "data_error:data_type".to_owned(),
                Unmappable::Attachments(_) => "data_error:attachments".to_owned(),
                Unmappable::Function(_) => "data_error:function".to_owned(),
                Unmappable::TooMany | Unmappable::TooLarge => "data_error:too_large".to_owned(),
            },
            Failure::TooLarge => "data_error:too_large".to_owned(),
            Failure::Http(status @ 300..=399) | Failure::Store(status @ 300..=399) => format!("redirect:{status}"),
            Failure::Http(status @ 400..=499) | Failure::Store(status @ 400..=499) => format!("client_error:{status}"),
            Failure::Http(status) | Failure::Store(status) => format!("server_error:{status}"),
            Failure::Sql(state) => match state.get(..2) {
                Some(b"22") => "data_error:data_type".to_owned(),
                Some(b"23") => "data_error:constraint".to_owned(),
                Some(b"28") => "data_error:permission".to_owned(),
                _ if state == b"42501" => "data_error:permission".to_owned(),
                Some(b"08") => "connection_failure".to_owned(),
                _ => format!("server_error:{}", String::from_utf8_lossy(state)),
            },
            Failure::Connection => "connection_failure".to_owned(),
            Failure::Storage => "server_error:storage".to_owned(),
        }
    }

    /// Returns the HTTP status for an entry, or 0.
    pub fn status(&self) -> u16 {
        match self {
            Failure::Http(status) | Failure::Store(status) => *status,
            _ => 0,
        }
    }
}

/// The number of consecutive failures that halts a job, whatever their class.
pub const IN_A_ROW_MAX: u32 = 100;

/// The number of newest documents whose outcome the guard remembers.
pub const WINDOW: usize = 10_000;

/// The number of failures in the window that halts a job: a tenth.
pub const IN_WINDOW_MAX: usize = WINDOW / 10;

/// Halts a job whose documents fail too often, so that a wrong mapping or target does not fill the queue.
#[derive(Debug, Clone)]
pub struct Guard {
    /// One bit for each of the newest documents.
    failed: Vec<u64>,
    at: usize,
    count: usize,
    in_a_row: u32,
}

impl Default for Guard {
    fn default() -> Guard {
        Guard { failed: vec![0; WINDOW.div_ceil(64)], at: 0, count: 0, in_a_row: 0 }
    }
}

/// The reason for a halt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Halt {
    /// [`IN_A_ROW_MAX`] consecutive failures.
    #[error("100 documents in a row failed")]
    InARow,
    /// [`IN_WINDOW_MAX`] failures in the window.
    #[error("1,000 of the last 10,000 documents failed")]
    TooMany,
}

impl Guard {
    /// Records the outcome of a document.
    ///
    /// # Errors
    /// [`Halt`] if the job must halt. A restarted job has a new guard.
    pub fn note(&mut self, is_failure: bool) -> Result<(), Halt> {
        let (word, bit) = (self.at / 64, 1_u64 << (self.at % 64));
        if let Some(word) = self.failed.get_mut(word) {
            self.count -= usize::from(*word & bit != 0);
            self.count += usize::from(is_failure);
            *word = if is_failure { *word | bit } else { *word & !bit };
        }
        self.at = (self.at + 1) % WINDOW;
        self.in_a_row = if is_failure { self.in_a_row + 1 } else { 0 };
        if self.in_a_row >= IN_A_ROW_MAX {
            Err(Halt::InARow)
        } else if self.count >= IN_WINDOW_MAX {
            Err(Halt::TooMany)
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn poison_and_outages() {
        for (failure, class, reason) in [
            (Failure::Http(400), Class::Poison, "client_error:400"),
            (Failure::Http(401), Class::Outage, "client_error:401"),
            (Failure::Http(403), Class::Outage, "client_error:403"),
            (Failure::Http(404), Class::Outage, "client_error:404"),
            (Failure::Http(409), Class::Poison, "client_error:409"),
            (Failure::Http(413), Class::Poison, "client_error:413"),
            (Failure::Http(415), Class::Poison, "client_error:415"),
            (Failure::Http(422), Class::Poison, "client_error:422"),
            (Failure::Http(429), Class::Outage, "client_error:429"),
            (Failure::Http(301), Class::Outage, "redirect:301"),
            (Failure::Http(500), Class::Outage, "server_error:500"),
            (Failure::Store(400), Class::Outage, "client_error:400"),
            (Failure::Store(503), Class::Outage, "server_error:503"),
            (Failure::Sql(*b"22003"), Class::Poison, "data_error:data_type"),
            (Failure::Sql(*b"23505"), Class::Poison, "data_error:constraint"),
            (Failure::Sql(*b"08006"), Class::Outage, "connection_failure"),
            (Failure::Sql(*b"28P01"), Class::Outage, "data_error:permission"),
            (Failure::Sql(*b"40001"), Class::Outage, "server_error:40001"),
            (Failure::Sql(*b"42P01"), Class::Outage, "server_error:42P01"),
            (Failure::Sql(*b"42501"), Class::Outage, "data_error:permission"),
            (Failure::Sql(*b"53100"), Class::Outage, "server_error:53100"),
            (Failure::Sql(*b"57P01"), Class::Outage, "server_error:57P01"),
            (Failure::Sql(*b"XX000"), Class::Outage, "server_error:XX000"),
            (Failure::Connection, Class::Outage, "connection_failure"),
            (Failure::Storage, Class::Outage, "server_error:storage"),
            (Failure::TooLarge, Class::Poison, "data_error:too_large"),
            (Failure::Unmappable(Box::new(Unmappable::TooMany)), Class::Poison, "data_error:too_large"),
            (
                Failure::Unmappable(Box::new(Unmappable::TwoOfOneKey("t".into()))),
                Class::Poison,
                "data_error:constraint",
            ),
        ] {
            assert_eq!((failure.class(), failure.reason().as_str()), (class, reason), "{failure:?}");
        }
        assert_eq!([Failure::Http(422).status(), Failure::Connection.status()], [422, 0]);
    }

    #[test]
    fn sqlites_codes() {
        // SQLITE_CONSTRAINT_UNIQUE, SQLITE_CONSTRAINT_FOREIGNKEY, SQLITE_CONSTRAINT_DATATYPE, SQLITE_TOOBIG,
        // SQLITE_BUSY, SQLITE_FULL, SQLITE_ERROR, SQLITE_READONLY.
        for (code, state) in [
            (2067, b"23505"),
            (787, b"23503"),
            (3091, b"22000"),
            (18, b"22000"),
            (5, b"40001"),
            (13, b"53000"),
            (1, b"42000"),
            (8, b"42501"),
        ] {
            assert_eq!(Failure::of_sqlite(code), Failure::Sql(*state), "{code}");
        }
    }

    #[test]
    fn mysqls_numbers() {
        for (number, state, class) in [
            (1062, "23000", Class::Poison),
            (1048, "23000", Class::Poison),
            (1366, "HY000", Class::Poison),
            (1406, "22001", Class::Poison),
            (3819, "HY000", Class::Poison),
            (1118, "42000", Class::Poison),
            (1205, "HY000", Class::Outage),
            (1114, "HY000", Class::Outage),
            (1142, "42000", Class::Outage),
            (1146, "42S02", Class::Outage),
            (1364, "HY000", Class::Outage),
            (1644, "HY000", Class::Outage),
            (9999, "?", Class::Outage),
        ] {
            assert_eq!(Failure::of_mysql(number, state).class(), class, "{number}");
        }
        assert_eq!(Failure::of_mysql(1062, "23000"), Failure::Sql(*b"23505"));
        assert_eq!(Failure::of_mysql(1451, "23000"), Failure::Sql(*b"23503"));
    }

    #[test]
    fn guards_halt() {
        let mut guard = Guard::default();
        for _ in 1..IN_A_ROW_MAX {
            assert_eq!(guard.note(true), Ok(()));
        }
        assert_eq!(guard.note(true), Err(Halt::InARow));
        let mut guard = Guard::default();
        for at in 0..IN_WINDOW_MAX * 2 - 2 {
            assert_eq!(guard.note(at % 2 == 0), Ok(()), "{at}");
        }
        assert_eq!(guard.note(true), Err(Halt::TooMany));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn guards_count_what_they_remember(runs in proptest::collection::vec((any::<bool>(), 1_usize..300), 0..120)) {
            let mut guard = Guard::default();
            let mut window: VecDeque<bool> = VecDeque::new();
            for (is_failure, length) in runs {
                for _ in 0..length {
                    let halt = guard.note(is_failure);
                    window.push_back(is_failure);
                    if window.len() > WINDOW {
                        window.pop_front();
                    }
                    let in_a_row = window.iter().rev().take_while(|failed| **failed).count();
                    if in_a_row >= 100 {
                        prop_assert_eq!(halt, Err(Halt::InARow));
                        return Ok(());
                    }
                    prop_assert_eq!(halt.is_err(), guard.count >= IN_WINDOW_MAX);
                }
                prop_assert_eq!(guard.count, window.iter().filter(|failed| **failed).count());
            }
        }
    }
}
