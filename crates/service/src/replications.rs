//! Owners of documents of `_replicator`.
//!
//! A replication runs with the rights of its document's owner, so no user may write another user's document, or one
//! that names another owner. As in CouchDB, the server writes the owner's name into the document. In CouchDB that
//! name grants nothing; here it does, which adds four rules. Administrators of the database, but not of the server,
//! may not write other users' names. An edit or a deletion must come from the owner of the replaced revision. A
//! client without an account on this server, such as the bearer of a token, may not write at all, since the
//! replication could not run as that client later. And because names are reused, the server also writes which account
//! of that name it is. On a server without administrators every client is one, so a document written there has no
//! owner.

use std::borrow::Cow;
use std::sync::Arc;

use flatbed_layer::json::{Value, parse};
use flatbed_layer::{
    Database, DocumentFilter, DocumentId, DocumentKind, Edit, Error, GetOptions, NotFound, Outcome, Refusal, Result,
    RevId, json,
};

use crate::accounts::Accounts;
use crate::replication_secrets;
use crate::standing::{RightsBasis, Standing};

/// The member with the owner's name.
const OWNER: &str = "owner";

/// The member that identifies the account among those that have had the name.
const OWNER_ACCOUNT: &str = "owner_account";

/// The value of that member for administrators.
const ADMIN: &str = "admin";

/// The refusals; the first one is CouchDB's.
const OTHERS: &str = "Can't update replication documents from other users.";
const NO_ACCOUNT: &str = "Only users with an account here may write replication documents.";
const NO_HISTORY: &str = "Only administrators may write replication documents with new_edits=false.";

/// The number of edits that are copied at a time, to add their owners.
const EDITS_AT_ONCE: usize = 32;

/// An account among those that have had, or will have, a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OwnerAccount {
    /// The account of a configured administrator.
    Admin,
    /// The user document with this first revision ([`Document::born`](flatbed_layer::Document::born)).
    User(RevId),
}

impl OwnerAccount {
    /// Returns the account of a request's principal; `None`: it has none on this server.
    pub fn of(standing: &Standing) -> Option<OwnerAccount> {
        match standing.basis() {
            RightsBasis::Admin { .. } if standing.principal().is_admin => Some(OwnerAccount::Admin),
            RightsBasis::Document { born, .. } => Some(OwnerAccount::User(born.clone())),
            _ => None,
        }
    }

    fn text(&self) -> String {
        match self {
            OwnerAccount::Admin => ADMIN.to_owned(),
            OwnerAccount::User(born) => born.to_string(),
        }
    }
}

/// The owner that a document of `_replicator` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamedOwner {
    /// No owner member: an old document, or one that an administrator replicated.
    Unsaid,
    /// No owner: written on a server without administrators.
    Nobody,
    /// The account of this name; `None`: an administrator has set the name, and any account that has it counts.
    Account(Arc<str>, Option<OwnerAccount>),
    /// Members that name no possible owner.
    Broken,
}

impl NamedOwner {
    /// Reads the owner from the members of a document.
    pub fn read<'m>(member: impl Fn(&str) -> Option<&'m Value<'m>>) -> NamedOwner {
        let account = match member(OWNER_ACCOUNT) {
            None | Some(Value::Null) => None,
            Some(Value::String(text)) if text == ADMIN => Some(OwnerAccount::Admin),
            Some(Value::String(text)) => match text.parse() {
                Ok(born) => Some(OwnerAccount::User(born)),
                Err(_) => return NamedOwner::Broken,
            },
            Some(_) => return NamedOwner::Broken,
        };
        match member(OWNER) {
            None => NamedOwner::Unsaid,
            Some(Value::Null) => NamedOwner::Nobody,
            Some(Value::String(name)) if !name.is_empty() => NamedOwner::Account(name.as_ref().into(), account),
            Some(_) => NamedOwner::Broken,
        }
    }

    /// Reads the owner from a body, its members without braces.
    fn of_body(body: &[u8]) -> NamedOwner {
        let text = [b"{", body, b"}"].concat();
        match parse(&text, &json::Limits::default()) {
            Ok(body) => NamedOwner::read(|name| body.get(name)),
            Err(_) => NamedOwner::Broken,
        }
    }

    fn is(&self, name: Option<&str>, account: Option<&OwnerAccount>) -> bool {
        match self {
            NamedOwner::Account(of, None) => name == Some(of),
            NamedOwner::Account(of, of_account) => name == Some(of) && account == of_account.as_ref(),
            NamedOwner::Unsaid | NamedOwner::Nobody | NamedOwner::Broken => false,
        }
    }
}

#[derive(Clone)]
pub(crate) struct ReplicationWriter {
    pub(crate) standing: Standing,
    pub(crate) accounts: Arc<Accounts>,
}

/// Returns an edit with its owner set.
///
/// # Errors
/// [`Refusal::Forbidden`] for another user's document; the layer's errors.
pub(crate) async fn before_update<'e>(
    database: &Database,
    by: &ReplicationWriter,
    edit: &'e Edit<'e>,
) -> Result<Cow<'e, Edit<'e>>> {
    if DocumentId::of(&edit.id).kind() != DocumentKind::Ordinary {
        return Ok(Cow::Borrowed(edit));
    }
    let (principal, rests_on) = (by.standing.principal(), by.standing.basis());
    if *rests_on == RightsBasis::OpenServer && !edit.deleted {
        // The document must not name this client, or any later one, as its owner.
        return Ok(Cow::Owned(owned(edit, None, None)));
    }
    if principal.is_admin {
        return by_admin(by, edit).await;
    }
    let forbidden = |reason: &str| Error::Refused(Refusal::Forbidden(reason.to_owned()));
    let (Some(name), RightsBasis::Document { .. }) = (principal.name.as_deref(), rests_on) else {
        return Err(forbidden(NO_ACCOUNT));
    };
    let account = OwnerAccount::of(&by.standing);
    if edit.history.is_some() {
        return Err(forbidden(NO_HISTORY));
    }
    if !edit.deleted && edit.body.get(OWNER).is_some_and(|owner| owner.as_str() != Some(name)) {
        return Err(forbidden(OTHERS));
    }
    if let Some(parent) = &edit.parent {
        let options = GetOptions { rev: Some(parent.clone()), ..GetOptions::default() };
        match database.get(&edit.id, &options).await {
            Ok(old) if old.deleted || NamedOwner::of_body(&old.body).is(Some(name), account.as_ref()) => {}
            Ok(_) => return Err(forbidden(OTHERS)),
            // The edit replaces nothing, and becomes a conflict.
            Err(Error::Refused(Refusal::DocumentNotFound(_))) => {}
            Err(error) => return Err(error),
        }
    }
    if edit.deleted {
        return Ok(Cow::Borrowed(edit));
    }
    Ok(Cow::Owned(owned(edit, Some(name), account.as_ref())))
}

/// As [`before_update`] for an administrator, who owns the document unless it names another owner.
async fn by_admin<'e>(by: &ReplicationWriter, edit: &'e Edit<'e>) -> Result<Cow<'e, Edit<'e>>> {
    let own = by.standing.principal().name.as_deref();
    let named = match edit.body.get(OWNER) {
        _ if edit.deleted || edit.history.is_some() => return Ok(Cow::Borrowed(edit)),
        None | Some(Value::Null) => None,
        Some(named) if named.as_str() == own => None,
        Some(named) => Some(named),
    };
    let Some(named) = named else {
        // Also for a user's document that an administrator takes over.
        return Ok(Cow::Owned(owned(edit, own, own.map(|_| &OwnerAccount::Admin))));
    };
    let is_said = edit.body.get(OWNER_ACCOUNT).is_some_and(|account| *account != Value::Null);
    let Some(name) = named.as_str().filter(|_| !is_said) else { return Ok(Cow::Borrowed(edit)) };
    // The current account of the name owns the document; if there is none, the first one and all after it do.
    let account = by.accounts.named(name).await?.as_ref().and_then(OwnerAccount::of);
    Ok(match account {
        Some(account) => Cow::Owned(owned(edit, Some(name), Some(&account))),
        None => Cow::Borrowed(edit),
    })
}

/// As [`Database::bulk_update`], with owners set.
pub(crate) async fn bulk_update(
    database: &Database,
    by: &ReplicationWriter,
    edits: &[Edit<'_>],
) -> Result<Vec<Outcome>> {
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

/// A reader of `_replicator` who does not administer it, and must not see the credentials of others' replications.
#[derive(Debug)]
struct ReplicatorReader {
    name: Option<String>,
    account: Option<OwnerAccount>,
}

pub(crate) fn seen_by(standing: &Standing) -> Arc<dyn DocumentFilter> {
    Arc::new(ReplicatorReader { name: standing.principal().name.clone(), account: OwnerAccount::of(standing) })
}

impl DocumentFilter for ReplicatorReader {
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
        let member = |name: &str| members.iter().find(|(found, _)| found == name).map(|(_, value)| value);
        // The bearer of a token or a proxy's user has no account on this server.
        let has_account = self.account.is_some();
        if !has_account || !NamedOwner::read(member).is(self.name.as_deref(), self.account.as_ref()) {
            replication_secrets::hide(&mut members);
        }
        Ok(json::members_to_vec(&Value::Object(members)))
    }
}

fn owned<'e>(edit: &Edit<'e>, name: Option<&str>, account: Option<&OwnerAccount>) -> Edit<'e> {
    let mut edit = edit.clone();
    if let Value::Object(members) = &mut edit.body {
        members.retain(|(member, _)| member != OWNER && member != OWNER_ACCOUNT);
        members.push((OWNER.into(), name.map_or(Value::Null, |name| Value::String(name.to_owned().into()))));
        if let Some(account) = account {
            members.push((OWNER_ACCOUNT.into(), Value::String(account.text().into())));
        }
    }
    edit
}

#[cfg(test)]
mod tests {
    use flatbed_auth::{AuthMethod, Principal};
    use flatbed_layer::{CreateOptions, RevId, WrittenRevision};
    use flatbed_testkit::until;

    use super::*;
    use crate::accounts::tests::hash_members;
    use crate::database::Writer;
    use crate::feeds::tests::Store;
    use crate::rights::{Own, Write};

    /// The standing of one of several accounts of the same name.
    fn another(name: &str, which: u8) -> Standing {
        let born = RevId::new(1, [which; 16]);
        let rev = RevId::new(2, [which; 16]);
        let rests_on = RightsBasis::Document { name: name.to_owned(), salt: "s".to_owned(), rev, born };
        Standing::new(Principal::user(name, [], AuthMethod::Password), rests_on)
    }

    fn user(name: &str) -> Standing {
        another(name, 7)
    }

    fn edit<'e>(id: &'e str, body: &'e str, parent: Option<&WrittenRevision>) -> Edit<'e> {
        let body = parse(body.as_bytes(), &json::Limits::default()).unwrap();
        let parent = parent.map(|updated| updated.rev.clone());
        Edit { expiry: None, id: id.into(), parent, history: None, deleted: false, attachments: Vec::new(), body }
    }

    fn told<T>(result: Result<T>) -> String {
        match result {
            Ok(_) => "ok".to_owned(),
            Err(Error::Refused(Refusal::Forbidden(reason))) => reason,
            Err(error) => error.to_string(),
        }
    }

    async fn owner(writer: &Writer, id: &str) -> Option<String> {
        match NamedOwner::of_body(&writer.get(id, &GetOptions::default()).await.unwrap().body) {
            NamedOwner::Account(name, _) => Some(name.to_string()),
            NamedOwner::Nobody => None,
            other => panic!("{other:?}"),
        }
    }

    async fn ends(writer: &Writer, id: &str) -> String {
        let body = writer.get(id, &GetOptions::default()).await.unwrap().body;
        let text = String::from_utf8(body).unwrap();
        text.split_once(r#""owner":"#).unwrap().1.to_owned()
    }

    #[tokio::test]
    async fn others_see_no_credentials() {
        let body = r#""source":"http://anna:s3c/ret@p@h/db?token=s3cret","target":{"url":"https://x:s3cret@h/db","headers":{"a":"s3cret"},"auth":{"basic":"s3cret"}},"proxy":"http://x:s3cret@h","headers":{"a":"s3cret"},"owner":"anna","n":1e3"#;
        let seen = |who: &Standing, body: &str| {
            let text = seen_by(who).part("id", body.as_bytes()).unwrap();
            String::from_utf8(text).unwrap()
        };
        assert_eq!(seen(&user("anna"), body), body);
        // A token is no account.
        let token = crate::test_store::token(None).await;
        let token = Standing::new(Principal::user("anna", [], AuthMethod::Jwt), token);
        for other in [Standing::anonymous(), user("bob"), token] {
            let shown = seen(&other, body);
            assert_eq!(shown, r#""source":"http://h/db","target":{"url":"https://h/db"},"owner":"anna","n":1e3"#);
        }
        // Earlier and later accounts of the name are other users.
        let hers = format!(r#"{body},"owner_account":"1-{}""#, "07".repeat(16));
        assert_eq!(seen(&user("anna"), &hers), hers);
        for account in [r#""admin""#, r#""1-09090909090909090909090909090909""#, r#""x""#, "5", "{}"] {
            let others = format!(r#"{body},"owner_account":{account}"#);
            assert!(!seen(&user("anna"), &others).contains("s3c"), "{account}");
        }
        assert!(!seen(&another("anna", 8), &hers).contains("s3c"));
        // A document without an owner shows its credentials to no reader.
        let nobodys = br#""source":"http://a:s3cret@h/db","target":["s3cret"],"owner":null"#;
        let text = seen_by(&Standing::anonymous()).part("id", nobodys).unwrap();
        assert_eq!(text, br#""source":"http://h/db","target":null,"owner":null"#);
        let seen = seen_by(&Standing::anonymous());
        assert!(seen.is_whole("_design/d") && !seen.is_whole("_local/l") && !seen.is_whole("id"));
    }

    #[tokio::test]
    async fn nobody_writes_what_is_anothers_or_names_another() {
        let store = Store::new().await;
        store.context.database("_replicator", Own).await.unwrap().create(&CreateOptions::default()).await.unwrap();
        let server = store.context.database("_replicator", Write).await.unwrap();
        let [anna, bob] = ["anna", "bob"].map(|name| server.of(&user(name)));
        let root = RightsBasis::Admin { name: "root".to_owned(), salt: "s".to_owned(), rev: None };
        let root = server.of(&Standing::new(Principal::admin("root", AuthMethod::Password), root));

        // A document without an owner gets its writer as the owner.
        let first = anna.update(&edit("a", r#"{"source":"x"}"#, None)).await.unwrap();
        assert_eq!(owner(&server, "a").await.as_deref(), Some("anna"));
        assert_eq!(told(anna.update(&edit("b", r#"{"owner":"anna"}"#, None)).await), "ok");
        // It belongs to this account, regardless of the document's members and of later accounts of the name.
        let said = edit("k", r#"{"owner":"anna","owner_account":"admin"}"#, None);
        let kept = anna.update(&said).await.unwrap();
        let hers = format!(r#""anna","owner_account":"1-{}""#, "07".repeat(16));
        assert_eq!(ends(&server, "k").await, hers);
        let later = server.of(&another("anna", 8));
        assert_eq!(told(later.update(&edit("k", r#"{"owner":"anna"}"#, Some(&kept))).await), OTHERS);
        assert_eq!(told(later.update(&Edit { deleted: true, ..edit("k", "{}", Some(&kept)) }).await), OTHERS);
        for body in [r#"{"owner":"bob"}"#, r#"{"owner":"root"}"#, r#"{"owner":null}"#, r#"{"owner":["anna"]}"#] {
            assert_eq!(told(anna.update(&edit("c", body, None)).await), OTHERS, "{body}");
        }
        // Another user's document cannot be replaced, deleted or replicated over.
        let deletion = |parent| Edit { deleted: true, ..edit("a", "{}", Some(parent)) };
        assert_eq!(told(bob.update(&edit("a", "{}", Some(&first))).await), OTHERS);
        assert_eq!(told(bob.update(&deletion(&first)).await), OTHERS);
        for history in [vec![first.rev.clone()], vec![RevId::new(2, [7; 16])]] {
            let replicated = Edit { history: Some(history), ..edit("a", r#"{"owner":"bob"}"#, None) };
            assert_eq!(told(bob.update(&replicated).await), NO_HISTORY);
        }
        // Nor can a document without an owner.
        let nobodys = server.update(&edit("n", "{}", None)).await.unwrap();
        assert_eq!(owner(&server, "n").await, None);
        assert_eq!(told(anna.update(&edit("n", "{}", Some(&nobodys))).await), OTHERS);
        // The owner may edit, and a deleted document is free.
        let second = anna.update(&edit("a", r#"{"source":"y"}"#, Some(&first))).await.unwrap();
        assert_eq!(owner(&server, "a").await.as_deref(), Some("anna"));
        let gone = anna.update(&deletion(&second)).await.unwrap();
        assert_eq!(told(bob.update(&edit("a", "{}", Some(&gone))).await), "ok");
        assert_eq!(owner(&server, "a").await.as_deref(), Some("bob"));
        // In a batch each edit is judged by itself.
        let edits = [edit("d", "{}", None), edit("e", r#"{"owner":"bob"}"#, None), edit("f", "{}", None)];
        let outcomes = anna.bulk_update(&edits).await.unwrap();
        let outcomes: Vec<bool> = outcomes.iter().map(std::result::Result::is_ok).collect();
        assert_eq!(outcomes, [true, false, true]);
        let many: Vec<Edit<'_>> = (0..70).map(|_| edit("g", "{}", None)).collect();
        let done = anna.bulk_update(&many).await.unwrap();
        assert_eq!((done.len(), done.iter().filter(|outcome| outcome.is_ok()).count()), (70, 1));

        // An administrator's edit keeps the owner, unless it names the administrator.
        let other = format!(r#"{{"owner":{hers},"x":1}}"#);
        let kept = root.update(&edit("k", &other, Some(&kept))).await.unwrap();
        assert_eq!(ends(&server, "k").await, format!(r#"{hers},"x":1"#));
        let taken = format!(r#"{{"owner":"root","owner_account":"1-{}"}}"#, "07".repeat(16));
        let taken = root.update(&edit("k", &taken, Some(&kept))).await.unwrap();
        assert_eq!(ends(&server, "k").await, r#""root","owner_account":"admin""#);
        let same = server.of(&user("root"));
        assert_eq!(told(same.update(&edit("k", "{}", Some(&taken))).await), OTHERS);

        // Administrators write for others.
        assert_eq!(told(root.update(&edit("r", "{}", None)).await), "ok");
        assert_eq!(owner(&server, "r").await.as_deref(), Some("root"));
        assert_eq!(told(root.update(&edit("s", r#"{"owner":"anna"}"#, None)).await), "ok");
        assert_eq!(owner(&server, "s").await.as_deref(), Some("anna"));
        assert_eq!(told(root.update(&edit("t", r#"{"owner":null}"#, None)).await), "ok");
        assert_eq!(owner(&server, "t").await.as_deref(), Some("root"));
        // The current account of the name is meant and later ones are not; without a current account, any later one
        // is.
        assert_eq!(ends(&server, "s").await, r#""anna""#);
        store.context.database("_users", Own).await.unwrap().create(&CreateOptions::default()).await.unwrap();
        let carl = format!(r#"{{{},"name":"carl","type":"user","roles":[]}}"#, hash_members("p", "s", 1));
        let users = store.context.database("_users", Write).await.unwrap();
        let born = users.update(&edit("org.couchdb.user:carl", &carl, None)).await.unwrap().rev;
        let accounts = store.service.accounts();
        until("an account is found", async || accounts.named("carl").await.unwrap().is_some()).await;
        assert_eq!(told(root.update(&edit("v", r#"{"owner":"carl"}"#, None)).await), "ok");
        assert_eq!(ends(&server, "v").await, format!(r#""carl","owner_account":"{born}""#));

        // On a server without administrators documents have no owner, whatever they say, replicated or not.
        let open = server.of(&Standing::of_open_server(None));
        for (id, history) in [("w", None), ("x", Some(vec![RevId::new(3, [9; 16])]))] {
            for body in [r#"{"owner":"root","owner_account":"admin"}"#, "{}"] {
                let id = format!("{id}{}", body.len());
                open.update(&Edit { history: history.clone(), ..edit(&id, body, None) }).await.unwrap();
                assert_eq!(ends(&server, &id).await, "null");
            }
        }

        // The name in a token or from a proxy is no account.
        for rests_on in [RightsBasis::Nothing, RightsBasis::Proxy, crate::test_store::token(None).await] {
            let shown = server.of(&Standing::new(Principal::user("root", [], AuthMethod::Jwt), rests_on));
            assert_eq!(told(shown.update(&edit("u", "{}", None)).await), NO_ACCOUNT);
        }
        assert_eq!(told(server.of(&Standing::anonymous()).update(&edit("u", "{}", None)).await), NO_ACCOUNT);
    }
}
