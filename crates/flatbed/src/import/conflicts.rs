//! Finds the user documents of the target that have conflicts: their users cannot sign in.
//!
//! A user who has tried the target, where the sign-in replaced a weak hash, or where the password was changed, has a
//! revision there. A password that is changed at the source meanwhile then makes a conflict.

use crate::dump_format::document_path;
use crate::import::server::{ImportError, Server};
use crate::import::state::{LINES_OF_ONE, UnmovedList};
use crate::import::walk::Walk;

const USER_PREFIX: &str = "org.couchdb.user:";

/// Adds a line for each user document of the target with conflicts. `database`: the path of `_users`.
pub(crate) async fn add_conflicting_users(
    to: &mut Server,
    database: &str,
    left: &mut UnmovedList,
) -> Result<(), ImportError> {
    let (mut walk, mut lines) = (Walk::new(database), 0);
    while let Some(page) = walk.page(to).await? {
        for (id, _) in page.leaves.iter().filter(|(_, leaves)| leaves.len() > 1) {
            let Some(name) = id.strip_prefix(USER_PREFIX) else { continue };
            let path = format!("{database}/{}?conflicts=true", document_path(id));
            let Some(document) = to.find(&path).await? else { continue };
            let Some(conflicts) = document["_conflicts"].as_array() else { continue };
            let others = conflicts.iter().filter_map(|rev| rev.as_str()).take(3).collect::<Vec<_>>().join(", ");
            let winner = document["_rev"].as_str().unwrap_or_default();
            lines += 1;
            if lines > LINES_OF_ONE {
                left.add_further(1);
                continue;
            }
            left.add(format!(
                "_users: the user {name:?} has changed on both sides, and cannot sign in before all but one of the \
                 revisions {winner}, {others} are deleted"
            ));
        }
    }
    Ok(())
}
