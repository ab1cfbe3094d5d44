//! The check of a large data file beside the server, from where the check at the start ended.
//!
//! It reads a few pages of the newest state at a time, so no state stays open for it, and pauses between. A page that
//! is damaged ends all commits, as a failed write does.

use std::fs::File;
use std::time::Duration;

use crate::base::error::Result;
use crate::disk::data_file::{self, BadFile};
use crate::disk::format::DATA_FILE;
use crate::disk::scan;
use crate::shared::core::Core;

const PAGES_A_STEP: u64 = 256;
/// Between two steps; with pages of 4 kB at most 100 MB are read in a second.
const PAUSE: Duration = Duration::from_millis(10);
/// A page is damaged if it looks so in this many steps. A commit that replaces the meta pages while they are read may
/// make a sound one look so once.
const LOOKS: u32 = 4;

/// Checks the data file from an LMDB key on, until its end or the engine's.
pub(crate) fn run(core: &Core, mut from: Vec<u8>) {
    let Ok(file) = File::open(core.dir.join(DATA_FILE)) else { return };
    let mut looks = 0;
    while !core.queue.is_closed() && !core.queue.is_failed() {
        match step(core, &file, &from) {
            Ok(Step::Done) => return,
            Ok(Step::Next(next)) => (from, looks) = (next, 0),
            Ok(Step::Damaged(error)) => {
                looks += 1;
                if looks >= LOOKS {
                    return core.queue.failure.note_damage(&error.to_string());
                }
            }
            // The state was closed or superseded meanwhile, or cannot be opened now.
            Ok(Step::Again) | Err(_) => {}
        }
        std::thread::sleep(PAUSE);
    }
}

enum Step {
    Done,
    Next(Vec<u8>),
    Again,
    Damaged(BadFile),
}

fn step(core: &Core, file: &File, from: &[u8]) -> Result<Step> {
    let point = core.versions.acquire(false)?;
    let transaction = point.snapshot.with(|stored| Ok(stored.txn.id()))?;
    let checked = match data_file::of_transaction(file, transaction as u64) {
        Ok(Some(meta)) => scan::some(file, meta, from, PAGES_A_STEP),
        Ok(None) => return Ok(Step::Again),
        Err(error) => Err(error),
    };
    // LMDB reuses the pages of a state that was closed meanwhile.
    point.snapshot.with(|_| Ok(()))?;
    Ok(match checked {
        Ok(None) => Step::Done,
        Ok(Some(next)) => Step::Next(next),
        Err(error) => Step::Damaged(error),
    })
}
