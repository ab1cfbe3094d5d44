//! Documents of `_users`, without any surface.

use flatbed_layer::{
    AllDocsQuery, Conflicts, CreateOptions, GetOptions, LocalDocument, LocalEdit, OpenRevs, RevId, USERS,
};

use super::*;
use crate::configuration::Values;
use crate::context::Context;
use crate::feeds::tests::Store;
use crate::rights::{Administer, Own, Read, Write};
use crate::standing::{RightsBasis, Standing};

fn edit<'a>(id: &'a str, parent: Option<&RevId>, body: &'a str) -> Edit<'a> {
    let body = json::parse(body.as_bytes(), &Limits::default()).unwrap();
    Edit {
        expiry: None,
        id: id.into(),
        parent: parent.cloned(),
        history: None,
        deleted: false,
        attachments: Vec::new(),
        body,
    }
}

const ANNA: &str = "org.couchdb.user:anna";
const BOB: &str = "org.couchdb.user:bob";
const OF_ANNA: &str = r#"{"name":"anna","password":"secret","roles":[],"type":"user"}"#;
const OF_BOB: &str = r#"{"name":"bob","password":"pw","roles":["r"],"type":"user","email":"b@x"}"#;

/// A server whose `_users` is open to everyone.
async fn open() -> Store {
    let store = Store::new().await;
    store.context.database(USERS, Own).await.unwrap().create(&CreateOptions::default()).await.unwrap();
    let users = store.context.database(USERS, Administer).await.unwrap();
    users.set_security(br#"{"admins":{"names":["boss"]},"members":{}}"#).await.unwrap();
    store.context.database(USERS, Read).await.unwrap().exists().await.unwrap();
    store
}

fn as_user(store: &Store, name: &str) -> Context {
    store
        .service
        .context(Standing::new(Principal::user(name, ["r".to_owned()], AuthMethod::Password), RightsBasis::Nothing))
}

fn nobody(store: &Store) -> Context {
    store.service.context(Standing::anonymous())
}

async fn write(context: &Context, edit: &Edit<'_>) -> Result<RevId> {
    context.database(USERS, Write).await.unwrap().update(edit).await.map(|updated| updated.rev)
}

async fn get(context: &Context, id: &str) -> Result<String> {
    let found = context.database(USERS, Read).await.unwrap().get(id, &GetOptions::default()).await?;
    Ok(String::from_utf8(found.body).unwrap())
}

fn refused<T: std::fmt::Debug>(done: Result<T>) -> Refusal {
    match done {
        Err(Error::Refused(refusal)) => refusal,
        done => panic!("{done:?}"),
    }
}

fn forbidden(reason: &str) -> Refusal {
    Refusal::Forbidden(reason.to_owned())
}

fn missing() -> Refusal {
    refusal(AuthError::not_found())
}

#[tokio::test]
async fn as_the_server_comes_it_is_closed() {
    let store = Store::new().await;
    store.context.database(USERS, Own).await.unwrap().create(&CreateOptions::default()).await.unwrap();
    write(&store.context, &edit(ANNA, None, OF_ANNA)).await.unwrap();
    for context in [nobody(&store), as_user(&store, "anna")] {
        assert!(context.database(USERS, Read).await.is_err() && context.database(USERS, Write).await.is_err());
    }
    assert!(get(&store.context, ANNA).await.unwrap().contains("derived_key"));
}

#[tokio::test]
async fn a_password_is_hashed_and_the_document_shown_to_whose_it_is() {
    let store = open().await;
    let (nobody, anna, bob, boss) =
        (nobody(&store), as_user(&store, "anna"), as_user(&store, "bob"), as_user(&store, "boss"));
    let rev = write(&nobody, &edit(ANNA, None, OF_ANNA)).await.unwrap();
    write(&store.context, &edit(BOB, None, OF_BOB)).await.unwrap();
    let shown = get(&anna, ANNA).await.unwrap();
    assert!(shown.starts_with(r#""password_scheme":"pbkdf2","pbkdf2_prf":"sha256","salt":""#), "{shown}");
    assert!(!shown.contains("secret") && shown.ends_with(r#""name":"anna","roles":[],"type":"user""#), "{shown}");
    assert_eq!((get(&boss, ANNA).await.unwrap(), get(&store.context, ANNA).await.unwrap()), (shown.clone(), shown));
    for context in [&nobody, &bob] {
        assert_eq!(refused(get(context, ANNA).await), missing());
        let reason = "Only administrators can view design docs in the users database.";
        assert_eq!(refused(get(context, "_design/x").await), forbidden(reason));
    }
    // The owner may change some members, but not others.
    let roles = r#"{"name":"anna","roles":["admin"],"type":"user"}"#;
    assert_eq!(refused(write(&anna, &edit(ANNA, Some(&rev), roles)).await), forbidden("Only _admin may edit roles"));
    let new = edit(ANNA, Some(&rev), r#"{"name":"anna","password":"other","roles":[],"type":"user","nick":"A"}"#);
    assert_eq!(refused(write(&bob, &new).await), missing());
    assert_eq!(refused(write(&nobody, &new).await), forbidden("You may only update your own user document."));
    let rev = write(&anna, &new).await.unwrap();
    assert!(get(&anna, ANNA).await.unwrap().contains(r#""nick":"A""#));
    // The form also binds administrators of the server.
    assert_eq!(refused(write(&store.context, &edit("x", None, "{}")).await), forbidden("doc.type must be user"));
    write(&store.context, &edit("_design/x", None, "{}")).await.unwrap();
    let deletion = Edit { deleted: true, ..edit(ANNA, Some(&rev), "{}") };
    assert_eq!(refused(write(&nobody, &deletion).await), forbidden("Only admins may delete other user docs."));
    write(&anna, &deletion).await.unwrap();
}

#[tokio::test]
async fn nobody_else_has_another_way_to_it() {
    let store = open().await;
    let rev = write(&store.context, &edit(BOB, None, OF_BOB)).await.unwrap();
    let local = LocalDocument { id: "l".into(), revision: 1, body: Vec::new() };
    store.context.database(USERS, Write).await.unwrap().put_local(&local).await.unwrap();
    for context in [nobody(&store), as_user(&store, "anna"), as_user(&store, "bob")] {
        let writer = context.database(USERS, Write).await.unwrap();
        for reader in [context.database(USERS, Read).await.unwrap(), (*writer).clone()] {
            let options = GetOptions::default();
            let denied = forbidden("Only administrators may read this.");
            assert_eq!(refused(reader.get_many(&[(BOB.to_owned(), options.clone())]).await), denied);
            assert_eq!(refused(reader.open_revs(BOB, &OpenRevs::All, 0, false, &options).await), denied);
            assert_eq!(refused(reader.all_docs_keys(&[BOB.to_owned()], true, Conflicts::No).await), denied);
            assert_eq!(refused(reader.all_docs(AllDocsQuery::default()).next_page().await), denied);
            assert_eq!(refused(reader.get_local("l").await), denied);
            assert_eq!(refused(reader.list_local(None, false).await), denied);
            assert!(reader.info().await.is_ok() && reader.security().await.is_ok());
        }
        assert_eq!(refused(writer.put_local(&local).await), missing());
        assert_eq!(refused(writer.delete_local("l").await), missing());
        assert_eq!(refused(writer.edit_locals(&[LocalEdit::Delete("l".into())]).await), missing());
        let history = Edit { history: Some(vec![rev.clone()]), ..edit(BOB, None, OF_BOB) };
        assert!(matches!(refused(writer.update(&history).await), Refusal::Forbidden(_)));
    }
    let anna = as_user(&store, "anna").database(USERS, Write).await.unwrap();
    let eve = "org.couchdb.user:eve";
    let both = [edit(ANNA, None, OF_ANNA), edit(eve, None, r#"{"name":"eve","roles":[],"type":"user"}"#)];
    // The whole request fails, before any of its writes.
    assert_eq!(refused(anna.bulk_update(&both).await), missing());
    assert_eq!(anna.enter([ANNA, eve]), Err(missing()));
    assert_eq!((anna.enter([ANNA]), anna.enter(["_local/x"])), (Ok(()), Err(missing())));
    assert!(get(&store.context, ANNA).await.is_err());
    let nobody = nobody(&store).database(USERS, Write).await.unwrap();
    let ids: Vec<String> = (0..=PASSWORDS_MAX).map(|number| format!("org.couchdb.user:n{number}")).collect();
    let many: Vec<Edit<'_>> = ids.iter().map(|id| edit(id, None, OF_ANNA)).collect();
    assert!(matches!(refused(nobody.bulk_update(&many).await), Refusal::Forbidden(_)));
}

#[test]
fn what_is_public_is_shown() {
    let mut values = Values::default();
    let (section, key) = ("chttpd_auth", "public_fields");
    values.insert(section, key, "email, nick", crate::configuration::Source::File).unwrap();
    let seen = UsersReader { name: Some("anna".into()), configuration: Configuration::new(values) };
    assert!(seen.is_whole(ANNA) && !seen.is_whole(BOB) && !seen.is_whole("anna"));
    assert_eq!(seen.part(BOB, br#""name":"bob","email":"b@x""#), Ok(br#""email":"b@x""#.to_vec()));
    assert_eq!(seen.part(BOB, br#""name":"bob""#), Err(missing()));
    assert_eq!(seen.part(BOB, b"broken"), Err(missing()));
    let closed = UsersReader { name: None, configuration: Configuration::default() };
    assert!(!closed.is_whole("org.couchdb.user:"));
    assert_eq!(closed.part(BOB, br#""email":"b@x""#), Err(missing()));
}

/// Registrations and edits of other users change no statistics, and the revisions of their documents count as
/// missing.
#[tokio::test]
async fn figures_count_no_documents_of_others() {
    let store = open().await;
    let shown = async |context: &Context| {
        let reader = context.database(USERS, Read).await.unwrap();
        let info = reader.info().await.unwrap();
        assert_eq!((info.doc_count, info.doc_del_count, info.purge_seq), (0, 0, 0));
        assert_eq!((info.active_size_bytes, info.external_size_bytes, info.file_size_bytes), (0, 0, 0));
        info
    };
    let contexts = [nobody(&store), as_user(&store, "anna")];
    let mut before = Vec::new();
    for context in &contexts {
        before.push(shown(context).await);
    }
    let anna = write(&store.context, &edit(ANNA, None, OF_ANNA)).await.unwrap();
    let bob = write(&store.context, &edit(BOB, None, OF_BOB)).await.unwrap();
    for (context, before) in contexts.iter().zip(&before) {
        assert_eq!(shown(context).await, *before);
    }
    let later: RevId = "9-aa".parse().unwrap();
    let wanted =
        [(BOB.to_owned(), vec![bob.clone(), later.clone()]), (ANNA.to_owned(), vec![anna.clone(), later.clone()])];
    let look =
        async |context: &Context| context.database(USERS, Read).await.unwrap().missing_revs(&wanted).await.unwrap();
    let hidden = |rev: &RevId| (vec![rev.clone(), later.clone()], Vec::<RevId>::new());
    let known = |rev: &RevId| (vec![later.clone()], vec![rev.clone()]);
    assert_eq!(look(&contexts[0]).await, [hidden(&bob), hidden(&anna)]);
    assert_eq!(look(&contexts[1]).await, [hidden(&bob), known(&anna)]);
    assert_eq!(look(&store.context).await, [known(&bob), known(&anna)]);
    let whole = store.context.database(USERS, Read).await.unwrap().info().await.unwrap();
    assert_eq!(whole.doc_count, 2);
}
