//! Documents of `_replicator`: whose they are.
//!
//! A replication runs with the rights of its document's owner, so nobody may write a document that is another's, or one that
//! names another. As in CouchDB the server writes the owner's name into it. There the name opens nothing; here it does, and so:
//! administrators of the database alone are not let write others' names, a document that replaces one, or deletes it, must
//! replace its own writer's, and whoever has no account here has none that a replication could run with later.

use std::borrow::Cow;
use std::sync::Arc;

use flatbed_auth::Principal;
use flatbed_layer::json::{Value, parse};
use flatbed_layer::{
    Database, DocumentId, DocumentKind, Edit, Error, GetOptions, NotFound, Outcome, Refusal, Result, Seen, json,
};

use crate::standing::{RestsOn, Standing};

/// The member that names the owner.
const OWNER: &str = "owner";

/// The member that says, of a document that a user wrote who was no administrator, that its owner was none: it is not an
/// administrator's who has that name later. The server writes it.
pub const OWNER_KIND: &str = "owner_kind";
const USER: &str = "user";

/// Where credentials may stand.
const ENDPOINTS: [&str; 2] = ["source", "target"];
const PROXIES: [&str; 3] = ["proxy", "source_proxy", "target_proxy"];

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
        // What they say to be their own is: of a user's document that they have taken over, too.
        let is_named = match given {
            None | Some(Value::Null) => false,
            Some(owner) => owner.as_str() != principal.name.as_deref() || edit.body.get(OWNER_KIND).is_none(),
        };
        let is_named = is_named || edit.deleted || edit.history.is_some();
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
    if edit.deleted {
        return Ok(Cow::Borrowed(edit));
    }
    let mut edit = if given.is_some() { edit.clone() } else { owned(edit, Some(name)) };
    if let Value::Object(members) = &mut edit.body {
        members.retain(|(member, _)| member != OWNER_KIND);
        members.push((OWNER_KIND.into(), Value::String(USER.into())));
    }
    Ok(Cow::Owned(edit))
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

/// Whoever reads `_replicator` and does not administer it. What others' replications sign in with is not theirs to see.
#[derive(Debug)]
struct SeenBy {
    name: Option<String>,
}

/// What somebody sees of it who does not administer it.
pub(crate) fn seen_by(principal: &Principal) -> Arc<dyn Seen> {
    Arc::new(SeenBy { name: principal.name.clone() })
}

impl Seen for SeenBy {
    fn asks(&self, _: &str) -> std::result::Result<(), Refusal> {
        Ok(())
    }

    fn is_whole(&self, id: &str) -> bool {
        DocumentId::of(id).is_design()
    }

    fn part(&self, _: &str, members: &[u8]) -> std::result::Result<Vec<u8>, Refusal> {
        let text = [b"{", members, b"}"].concat();
        let Ok(Value::Object(mut members)) = parse(&text, &json::Limits::default()) else {
            return Err(Refusal::DocumentNotFound(NotFound::Missing));
        };
        let owner = members.iter().find(|(name, _)| name == OWNER).and_then(|(_, owner)| owner.as_str());
        if self.name.is_none() || owner != self.name.as_deref() {
            members.retain(|(name, _)| !PROXIES.contains(&name.as_ref()));
            for (name, value) in &mut members {
                if ENDPOINTS.contains(&name.as_ref()) {
                    *value = without_credentials(std::mem::replace(value, Value::Null));
                }
            }
        }
        let mut text = Vec::new();
        json::write(&Value::Object(members), &mut text);
        Ok(text.strip_prefix(b"{").and_then(|text| text.strip_suffix(b"}")).unwrap_or_default().to_vec())
    }
}

/// An endpoint as others see it: where it is. What cannot be read is not shown.
fn without_credentials(endpoint: Value<'_>) -> Value<'_> {
    match endpoint {
        Value::String(address) => Value::String(without_userinfo(&address).into()),
        Value::Object(members) => {
            let url = members.into_iter().find(|(name, _)| name == "url");
            Value::Object(url.map(|(name, url)| (name, without_credentials(url))).into_iter().collect())
        }
        _ => Value::Null,
    }
}

/// An address without all that stands before the last `@` of what may be its authority, however crooked it is.
fn without_userinfo(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    // A password may hold a slash that nobody has encoded.
    let rest = rest.rsplit_once('@').map_or(rest, |(_, rest)| rest);
    if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
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
        members.retain(|(member, _)| member != OWNER && member != OWNER_KIND);
        members.push((OWNER.into(), name.map_or(Value::Null, |name| Value::String(name.to_owned().into()))));
    }
    edit
}

#[cfg(test)]
mod tests {
    use flatbed_auth::SignedIn;
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

    #[test]
    fn others_see_no_credentials() {
        let body = r#""source":"http://anna:s3c/ret@p@h/db","target":{"url":"https://x:s3cret@h/db","headers":{"a":"s3cret"},"auth":{"basic":"s3cret"}},"proxy":"http://x:s3cret@h","owner":"anna","n":1e3"#;
        let seen = |who: &Principal| {
            let text = seen_by(who).part("id", body.as_bytes()).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(seen(user("anna").principal()), body);
        for other in [Principal::anonymous(), user("bob").principal().clone()] {
            let shown = seen(&other);
            assert_eq!(shown, r#""source":"http://h/db","target":{"url":"https://h/db"},"owner":"anna","n":1e3"#);
        }
        // What is nobody's is not nobody's to see.
        let nobodys = br#""source":"http://a:s3cret@h/db","target":["s3cret"],"owner":null"#;
        let text = seen_by(&Principal::anonymous()).part("id", nobodys).unwrap();
        assert_eq!(text, br#""source":"http://h/db","target":null,"owner":null"#);
        let seen = seen_by(&Principal::anonymous());
        assert!(seen.is_whole("_design/d") && !seen.is_whole("_local/l") && !seen.is_whole("id"));
        for (address, shown) in [
            ("db", "db"),
            ("anna:s3cret@h/db", "h/db"),
            ("http://h/a%40b", "http://h/a%40b"),
            ("HTTP://a:b:c@[::1]:1/db/", "HTTP://[::1]:1/db/"),
            ("http://s3cret@", "http://"),
            ("", ""),
        ] {
            assert_eq!(without_userinfo(address), shown);
        }
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
        // It is a user's, whatever they say of it, and whoever has the name later.
        let said = edit("k", r#"{"owner":"anna","owner_kind":null}"#, None);
        let kept = anna.update(&said).await.unwrap();
        let kind = async || {
            let body = server.get("k", &GetOptions::default()).await.unwrap().body;
            String::from_utf8(body).unwrap()
        };
        assert!(kind().await.ends_with(r#""owner_kind":"user""#), "{}", kind().await);
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

        // It stays a user's where an administrator edits it, and is theirs where they take it over.
        let other = edit("k", r#"{"owner":"anna","owner_kind":"user","x":1}"#, Some(&kept));
        let kept = root.update(&other).await.unwrap();
        assert!(kind().await.contains(r#""owner_kind":"user""#), "{}", kind().await);
        root.update(&edit("k", r#"{"owner":"root","owner_kind":"user"}"#, Some(&kept))).await.unwrap();
        assert_eq!(kind().await, r#""owner":"root""#);

        // Administrators write for others.
        assert_eq!(told(root.update(&edit("r", "{}", None)).await), "ok");
        assert_eq!(owner(&server, "r").await.as_deref(), Some("root"));
        assert_eq!(told(root.update(&edit("s", r#"{"owner":"anna"}"#, None)).await), "ok");
        assert_eq!(owner(&server, "s").await.as_deref(), Some("anna"));
        assert_eq!(told(root.update(&edit("t", r#"{"owner":null}"#, None)).await), "ok");
        assert_eq!(owner(&server, "t").await.as_deref(), Some("root"));

        // A name that a token or a proxy says is no account, whatever it is.
        for rests_on in [RestsOn::Nothing, RestsOn::Proxy, crate::test_store::token(None).await] {
            let shown = server.of(&Standing::new(Principal::user("root", [], SignedIn::Jwt), rests_on));
            assert_eq!(told(shown.update(&edit("u", "{}", None)).await), NO_ACCOUNT);
        }
        assert_eq!(told(server.of(&Standing::anonymous()).update(&edit("u", "{}", None)).await), NO_ACCOUNT);
    }
}
