//! Documents of `_replicator`: the requested replication, and the outcome that is written into them.

use std::borrow::Cow;

use flatbed_layer::json::{self, Limits, Object, Value};
use flatbed_layer::{Database, Document, Edit, Error as LayerError, Refusal, RevId};
use flatbed_replicate::{Error, Outcome, Progress, Spec, SpecDefaults, time};
use flatbed_service::NamedOwner;

use crate::SPEC_BYTES_MAX;
use crate::owner::Owner;

/// The prefix of members that replicators write.
const OURS: &str = "_replication_";

/// A parsed document of `_replicator`. It is read again when needed, because its tree may be large.
#[derive(Debug)]
pub struct Description {
    /// The document's id.
    pub id: String,
    /// Its revision.
    pub rev: RevId,
    /// The members of its body. Empty for a document beyond the limit, which counts as failed.
    members: Vec<(Cow<'static, str>, Value<'static>)>,
    is_too_long: bool,
}

impl Description {
    /// Parses a document. `None`: it requests nothing, such as a design document.
    pub fn read(document: &Document) -> Option<Description> {
        if document.deleted || document.id.starts_with('_') {
            return None;
        }
        let (id, rev) = (document.id.clone(), document.rev.clone());
        if document.body.len() > SPEC_BYTES_MAX {
            return Some(Description { id, rev, members: Vec::new(), is_too_long: true });
        }
        let text = [b"{", document.body.as_slice(), b"}"].concat();
        let Ok(Value::Object(members)) = json::parse(&text, &Limits::default()).map(Value::into_owned) else {
            return None;
        };
        Some(Description { id, rev, members, is_too_long: false })
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.members.iter().find(|(found, _)| found == name).and_then(|(_, value)| value.as_str())
    }

    /// Returns `completed` or `failed` if the replication has ended.
    pub fn end(&self) -> Option<&str> {
        if self.is_too_long {
            return Some("failed");
        }
        self.text("_replication_state").filter(|state| matches!(*state, "completed" | "failed"))
    }

    /// Returns the requested replication.
    ///
    /// # Errors
    /// The request is invalid.
    pub fn spec(&mut self, defaults: SpecDefaults) -> Result<Spec, Error> {
        let members = Value::Object(std::mem::take(&mut self.members));
        let spec = Spec::parse_with(&members, defaults);
        if let Value::Object(members) = members {
            self.members = members;
        }
        spec
    }

    /// Returns the owner of the replication. A document without one belongs to the server: it was written before owners
    /// existed, or by an administrator with `new_edits=false`; no other user can write one.
    ///
    /// # Errors
    /// The named owner cannot exist.
    pub fn owner(&self) -> Result<Owner, Error> {
        let member = |name: &str| self.members.iter().find(|(found, _)| found == name).map(|(_, value)| value);
        match NamedOwner::read(member) {
            NamedOwner::Unsaid => Ok(Owner::Server),
            NamedOwner::Nobody => Ok(Owner::Anybody),
            NamedOwner::Account(name, account) => Ok(Owner::Named { name, account }),
            NamedOwner::Broken => Err(Error::InvalidSpec("`owner` must be the name of a user".to_owned())),
        }
    }

    /// Returns a recorded member: `_replication_id`, `..._state_time`, `..._state_reason`, or the statistics as JSON.
    pub fn recorded_member(&self, name: &str) -> Option<Vec<u8>> {
        if self.is_too_long {
            // All servers detect it by its length, so nothing has to be written into it.
            return (name == "state_reason").then(|| b"\"the document is longer than 1 MB\"".to_vec());
        }
        let (_, value) = self.members.iter().find(|(found, _)| *found == format!("{OURS}{name}"))?;
        Some(json::to_vec(value))
    }

    /// Records the end in the document. A document that changed meanwhile stays unchanged: it is a new request.
    pub(crate) async fn note(
        self,
        database: &Database,
        id: Option<&str>,
        started_at: u64,
        progress: &Progress,
        done: &Result<Outcome, Error>,
    ) -> Result<(), LayerError> {
        let mut members = self.members;
        members.retain(|(name, _)| !name.starts_with(OURS));
        let mut push = |name: &str, value: Value<'static>| members.push((format!("{OURS}{name}").into(), value));
        let text = |text: String| Value::String(text.into());
        push("state", text(if done.is_ok() { "completed" } else { "failed" }.to_owned()));
        push("state_time", text(time::iso(database.clock().unix_seconds())));
        if let Some(id) = id {
            push("id", text(id.to_owned()));
        }
        match done {
            Err(error) => push("state_reason", text(error.to_string())),
            Ok(_) => {
                let stats = Object::text(|stats| {
                    progress.write_info(stats);
                    stats.string("start_time", &time::iso(started_at));
                });
                if let Ok(stats) = json::parse(&stats, &Limits::default()) {
                    push("stats", stats.into_owned());
                }
            }
        }
        let edit = Edit {
            expiry: None,
            id: self.id.as_str().into(),
            parent: Some(self.rev.clone()),
            history: None,
            deleted: false,
            attachments: Vec::new(),
            body: Value::Object(members),
        };
        match database.update(&edit).await {
            Ok(_) | Err(LayerError::Refused(Refusal::Conflict)) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
