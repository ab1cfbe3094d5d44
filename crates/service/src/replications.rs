//! Documents of `_replicator`: whose they are.
//!
//! A replication runs with the rights of its document's owner, so nobody may write a document that is another's, or one that
//! names another. As in CouchDB the server writes the owner's name into it. There the name opens nothing; here it does, and so:
//! administrators of the database alone are not let write others' names, a document that replaces one, or deletes it, must
//! replace its own writer's, and whoever has no account here has none that a replication could run with later.

use std::borrow::Cow;

use flatbed_layer::json::{Value, parse};
use flatbed_layer::{Database, DocumentId, DocumentKind, Edit, Error, GetOptions, Outcome, Refusal, Result, json};

use crate::standing::{RestsOn, Standing};

/// The member that names the owner.
const OWNER: &str = "owner";

/// As CouchDB says it.
const OTHERS: &str = "Can't update replication documents from other users.";
const NO_ACCOUNT: &str = "Only users with an account here may write replication documents.";
const NO_HISTORY: &str = "Only administrators may write replication documents with new_edits=false.";

/// Edits that are copied at a time, with their owners in them.
const EDITS_AT_ONCE: usize = 32;

/// An edit as it is written on somebody's behalf.
///
/// # Errors
/// [`Refusal::Forbidden`]: it is another's; and those of the layer.
pub(crate) async fn before_update<'e>(
    database: &Database,
    by: &Standing,
    edit: &'e Edit<'e>,
) -> Result<Cow<'e, Edit<'e>>> {
    if DocumentId::of(&edit.id).kind() != DocumentKind::Ordinary {
        return Ok(Cow::Borrowed(edit));
    }
    let principal = by.principal();
    let given = edit.body.get(OWNER);
    if principal.is_admin {
        let is_named = edit.deleted || edit.history.is_some() || given.is_some_and(|owner| *owner != Value::Null);
        return Ok(if is_named { Cow::Borrowed(edit) } else { Cow::Owned(owned(edit, principal.name.as_deref())) });
    }
    let forbidden = |reason: &str| Error::Refused(Refusal::Forbidden(reason.to_owned()));
    let (Some(name), RestsOn::Document { .. }) = (principal.name.as_deref(), by.rests_on()) else {
        return Err(forbidden(NO_ACCOUNT));
    };
    if edit.history.is_some() {
        return Err(forbidden(NO_HISTORY));
    }
    if !edit.deleted && given.is_some_and(|owner| owner.as_str() != Some(name)) {
        return Err(forbidden(OTHERS));
    }
    if let Some(parent) = &edit.parent {
        let options = GetOptions { rev: Some(parent.clone()), ..GetOptions::default() };
        match database.get(&edit.id, &options).await {
            Ok(old) if old.deleted || owner_of(&old.body).as_deref() == Some(name) => {}
            Ok(_) => return Err(forbidden(OTHERS)),
            // Then it replaces nothing, and is a conflict.
            Err(Error::Refused(Refusal::DocumentNotFound(_))) => {}
            Err(error) => return Err(error),
        }
    }
    let is_written = edit.deleted || given.is_some();
    Ok(if is_written { Cow::Borrowed(edit) } else { Cow::Owned(owned(edit, Some(name))) })
}

/// As [`Database::bulk_update`], of edits that are each looked at before.
///
/// # Errors
/// As there.
pub(crate) async fn bulk_update(database: &Database, by: &Standing, edits: &[Edit<'_>]) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::with_capacity(edits.len());
    for edits in edits.chunks(EDITS_AT_ONCE) {
        let mut refused = Vec::with_capacity(edits.len());
        let mut taken = Vec::with_capacity(edits.len());
        for edit in edits {
            refused.push(match before_update(database, by, edit).await {
                Ok(edit) => {
                    taken.push(edit.into_owned());
                    None
                }
                Err(Error::Refused(refusal)) => Some(refusal),
                Err(error) => return Err(error),
            });
        }
        let mut done = database.bulk_update(&taken).await?.into_iter();
        outcomes.extend(refused.into_iter().filter_map(|refusal| refusal.map(Err).or_else(|| done.next())));
    }
    Ok(outcomes)
}

/// The owner of a document with such a body, its members without braces. Of one that names none, or nobody, `None`.
pub(crate) fn owner_of(body: &[u8]) -> Option<String> {
    let text = [b"{", body, b"}"].concat();
    let body = parse(&text, &json::Limits::default()).ok()?;
    body.get(OWNER).and_then(Value::as_str).map(str::to_owned)
}

fn owned<'e>(edit: &Edit<'e>, name: Option<&str>) -> Edit<'e> {
    let mut edit = edit.clone();
    if let Value::Object(members) = &mut edit.body {
        members.retain(|(member, _)| member != OWNER);
        members.push((OWNER.into(), name.map_or(Value::Null, |name| Value::String(name.to_owned().into()))));
    }
    edit
}

#[cfg(test)]
mod tests {
    use flatbed_auth::{Principal, SignedIn};
    use flatbed_layer::{CreateOptions, RevId, Updated};

    use super::*;
    use crate::database::Writer;
    use crate::feeds::tests::Store;
    use crate::rights::{Own, Write};

    fn user(name: &str) -> Standing {
        let rev = RevId::new(1, [7; 16]);
        let rests_on = RestsOn::Document { name: name.to_owned(), salt: "s".to_owned(), rev };
        Standing::new(Principal::user(name, [], SignedIn::Password), rests_on)
    }

    fn edit<'e>(id: &'e str, body: &'e str, parent: Option<&Updated>) -> Edit<'e> {
        let body = parse(body.as_bytes(), &json::Limits::default()).unwrap();
        let parent = parent.map(|updated| updated.rev.clone());
        Edit { id: id.into(), parent, history: None, deleted: false, attachments: Vec::new(), body }
    }

    fn told<T>(result: Result<T>) -> String {
        match result {
            Ok(_) => "ok".to_owned(),
            Err(Error::Refused(Refusal::Forbidden(reason))) => reason,
            Err(error) => error.to_string(),
        }
    }

    async fn owner(writer: &Writer, id: &str) -> Option<String> {
        owner_of(&writer.get(id, &GetOptions::default()).await.unwrap().body)
    }

    #[tokio::test]
    async fn nobody_writes_what_is_anothers_or_names_another() {
        let store = Store::new().await;
        store.context.database("_replicator", Own).await.unwrap().create(&CreateOptions::default()).await.unwrap();
        let server = store.context.database("_replicator", Write).await.unwrap();
        let [anna, bob] = ["anna", "bob"].map(|name| server.of(&user(name)));
        let root = RestsOn::Admin { name: "root".to_owned(), salt: "s".to_owned(), rev: None };
        let root = server.of(&Standing::new(Principal::admin("root", SignedIn::Password), root));

        // What names nobody names who writes it.
        let first = anna.update(&edit("a", r#"{"source":"x"}"#, None)).await.unwrap();
        assert_eq!(owner(&server, "a").await.as_deref(), Some("anna"));
        assert_eq!(told(anna.update(&edit("b", r#"{"owner":"anna"}"#, None)).await), "ok");
        for body in [r#"{"owner":"bob"}"#, r#"{"owner":"root"}"#, r#"{"owner":null}"#, r#"{"owner":["anna"]}"#] {
            assert_eq!(told(anna.update(&edit("c", body, None)).await), OTHERS, "{body}");
        }
        // What is another's is neither replaced nor deleted, nor replicated over.
        let deletion = |parent| Edit { deleted: true, ..edit("a", "{}", Some(parent)) };
        assert_eq!(told(bob.update(&edit("a", "{}", Some(&first))).await), OTHERS);
        assert_eq!(told(bob.update(&deletion(&first)).await), OTHERS);
        for history in [vec![first.rev.clone()], vec![RevId::new(2, [7; 16])]] {
            let replicated = Edit { history: Some(history), ..edit("a", r#"{"owner":"bob"}"#, None) };
            assert_eq!(told(bob.update(&replicated).await), NO_HISTORY);
        }
        // Nor is what the server has of nobody.
        let nobodys = server.update(&edit("n", "{}", None)).await.unwrap();
        assert_eq!(owner(&server, "n").await, None);
        assert_eq!(told(anna.update(&edit("n", "{}", Some(&nobodys))).await), OTHERS);
        // One's own is, and what is gone is free.
        let second = anna.update(&edit("a", r#"{"source":"y"}"#, Some(&first))).await.unwrap();
        assert_eq!(owner(&server, "a").await.as_deref(), Some("anna"));
        let gone = anna.update(&deletion(&second)).await.unwrap();
        assert_eq!(told(bob.update(&edit("a", "{}", Some(&gone))).await), "ok");
        assert_eq!(owner(&server, "a").await.as_deref(), Some("bob"));
        // Together each stands for itself.
        let edits = [edit("d", "{}", None), edit("e", r#"{"owner":"bob"}"#, None), edit("f", "{}", None)];
        let outcomes = anna.bulk_update(&edits).await.unwrap();
        let outcomes: Vec<bool> = outcomes.iter().map(std::result::Result::is_ok).collect();
        assert_eq!(outcomes, [true, false, true]);
        let many: Vec<Edit<'_>> = (0..70).map(|_| edit("g", "{}", None)).collect();
        let done = anna.bulk_update(&many).await.unwrap();
        assert_eq!((done.len(), done.iter().filter(|outcome| outcome.is_ok()).count()), (70, 1));

        // Administrators write for others.
        assert_eq!(told(root.update(&edit("r", "{}", None)).await), "ok");
        assert_eq!(owner(&server, "r").await.as_deref(), Some("root"));
        assert_eq!(told(root.update(&edit("s", r#"{"owner":"anna"}"#, None)).await), "ok");
        assert_eq!(owner(&server, "s").await.as_deref(), Some("anna"));
        assert_eq!(told(root.update(&edit("t", r#"{"owner":null}"#, None)).await), "ok");
        assert_eq!(owner(&server, "t").await.as_deref(), Some("root"));

        // A name that a token or a proxy says is no account, whatever it is.
        for rests_on in [RestsOn::Nothing, RestsOn::Proxy, RestsOn::Token { ends: None, generation: 0 }] {
            let shown = server.of(&Standing::new(Principal::user("root", [], SignedIn::Jwt), rests_on));
            assert_eq!(told(shown.update(&edit("u", "{}", None)).await), NO_ACCOUNT);
        }
        assert_eq!(told(server.of(&Standing::anonymous()).update(&edit("u", "{}", None)).await), NO_ACCOUNT);
    }
}
