use flatbed_flatten::json::{Limits, parse};
use proptest::prelude::*;

use super::*;

const ROOT: Actor<'static> = Actor { name: Some("root"), is_server_admin: true, is_admin: true };
const CHIEF: Actor<'static> = Actor { name: Some("chief"), is_server_admin: false, is_admin: true };
const ANNA: Actor<'static> = Actor { name: Some("anna"), is_server_admin: false, is_admin: false };
const NOBODY: Actor<'static> = Actor { name: None, is_server_admin: false, is_admin: false };

fn judge(id: &str, is_deleted: bool, body: &str, old: Option<&str>, actor: &Actor<'_>) -> Result<(), String> {
    let read = |text: &str| parse(text.as_bytes(), &Limits::default()).unwrap().into_owned();
    let (body, old) = (read(body), old.map(read));
    let write = Write { id, is_deleted, body: &body, old: old.as_ref() };
    validate(&write, actor).map_err(|refused| {
        assert_eq!(refused.kind.status(), 403);
        refused.reason.into_owned()
    })
}

fn by_root(id: &str, body: &str) -> Result<(), String> {
    judge(&format!("org.couchdb.user:{id}"), false, body, None, &ROOT)
}

/// Documents that a CouchDB refused when recorded, and others that its function refuses.
#[test]
fn documents_that_are_refused() {
    for (id, body, reason) in [
        ("a", r#"{"name":"a","roles":[]}"#, "doc.type must be user"),
        ("a", r#"{"name":"a","roles":[],"type":"person"}"#, "doc.type must be user"),
        ("a", r#"{"name":"a","type":"user"}"#, "doc.roles must exist"),
        ("a", r#"{"name":"a","type":"user","roles":""}"#, "doc.roles must exist"),
        ("a", r#"{"name":"a","type":"user","roles":-0.0}"#, "doc.roles must exist"),
        ("a", r#"{"roles":[],"type":"user"}"#, "doc.name is required"),
        ("", r#"{"name":"","roles":[],"type":"user"}"#, "doc.name is required"),
        ("0", r#"{"name":0,"roles":[],"type":"user"}"#, "doc.name is required"),
        ("a", r#"{"name":"b","roles":[],"type":"user"}"#, "Doc ID must be of the form org.couchdb.user:name"),
        ("a", r#"{"name":5,"roles":[],"type":"user"}"#, "Doc ID must be of the form org.couchdb.user:name"),
        // CouchDB's function throws.
        ("5", r#"{"name":5,"roles":[],"type":"user"}"#, "Doc ID must be of the form org.couchdb.user:name"),
        ("a", r#"{"name":"a","roles":"x","type":"user"}"#, "doc.roles must be an array"),
        ("a", r#"{"name":"a","roles":{},"type":"user"}"#, "doc.roles must be an array"),
        ("a", r#"{"name":"a","roles":["r",1],"type":"user"}"#, "doc.roles can only contain strings"),
        (
            "a",
            r#"{"name":"a","roles":["_admin"],"type":"user"}"#,
            "No system roles (starting with underscore) in users db.",
        ),
        (
            "a",
            r#"{"name":"a","roles":["r","_x"],"type":"user"}"#,
            "No system roles (starting with underscore) in users db.",
        ),
        ("_a", r#"{"name":"_a","roles":[],"type":"user"}"#, "Username may not start with underscore."),
        ("a:x", r#"{"name":"a:x","roles":[],"type":"user"}"#, "Character `:` is not allowed in usernames."),
        (
            "a",
            r#"{"name":"a","roles":[],"type":"user","password_sha":"x"}"#,
            "Users with password_sha must have a salt.See /_utils/script/couch.js for example code.",
        ),
        (
            "a",
            r#"{"name":"a","roles":[],"type":"user","password_sha":"x","salt":""}"#,
            "Users with password_sha must have a salt.See /_utils/script/couch.js for example code.",
        ),
        (
            "a",
            r#"{"name":"a","roles":[],"type":"user","password_scheme":"md5"}"#,
            "Password scheme `md5` not supported.",
        ),
        ("a", r#"{"name":"a","roles":[],"type":"user","password_scheme":5}"#, "Password scheme `5` not supported."),
        (
            "a",
            r#"{"name":"a","roles":[],"type":"user","password_scheme":{}}"#,
            "Password scheme `[object Object]` not supported.",
        ),
        ("a", r#"{"name":"a","roles":[],"type":"user","password_scheme":[]}"#, "Password scheme `` not supported."),
        ("a", r#"{"name":"a","roles":[],"type":"user","password_scheme":[1]}"#, "Password scheme `...` not supported."),
        (
            "a",
            r#"{"name":"a","roles":[],"type":"user","password_scheme":true}"#,
            "Password scheme `true` not supported.",
        ),
        (
            "a",
            r#"{"name":"a","roles":[],"type":"user","password_scheme":"pbkdf2","derived_key":"00","salt":"00"}"#,
            "iterations must be a number.",
        ),
        (
            "a",
            r#"{"name":"a","roles":[],"type":"user","password_scheme":"pbkdf2","iterations":"1"}"#,
            "iterations must be a number.",
        ),
        (
            "a",
            r#"{"name":"a","roles":[],"type":"user","password_scheme":"pbkdf2","iterations":1,"derived_key":1}"#,
            "derived_key must be a string.",
        ),
    ] {
        assert_eq!(by_root(id, body), Err(reason.to_owned()), "{id} {body}");
    }
    let found = judge("a", false, r#"{"name":"a","roles":[],"type":"user"}"#, None, &ROOT);
    assert_eq!(found, Err("Doc ID must be of the form org.couchdb.user:name".to_owned()));
}

#[test]
fn documents_that_are_taken() {
    for (id, body) in [
        ("a", r#"{"name":"a","roles":[],"type":"user"}"#),
        ("a", r#"{"name":"a","roles":["r","_metrics"],"type":"user","password":null}"#),
        ("a", r#"{"name":"a","roles":[],"type":"user","password_sha":"x","salt":"y"}"#),
        ("a", r#"{"name":"a","roles":[],"type":"user","password_sha":"","password_scheme":""}"#),
        ("a", r#"{"name":"a","roles":[],"type":"user","password_scheme":null}"#),
        ("a", r#"{"name":"a","roles":[],"type":"user","password_scheme":"simple"}"#),
        ("a", r#"{"name":"a","roles":[],"type":"user","password_scheme":"simple+pbkdf2"}"#),
        ("a", r#"{"name":"a","roles":[],"type":"user","password_scheme":"pbkdf2","iterations":1.5,"derived_key":""}"#),
        ("é s", r#"{"name":"é s","roles":["é"],"type":"user"}"#),
    ] {
        assert_eq!(by_root(id, body), Ok(()), "{body}");
    }
}

/// As recorded for anonymous clients and users, where `_users` is open to them.
#[test]
fn those_who_are_no_administrators() {
    let id = "org.couchdb.user:anna";
    let anna = |roles: &str| format!(r#"{{"name":"anna","roles":{roles},"type":"user"}}"#);
    let write = |old: Option<&str>, roles: &str, actor: &Actor<'_>| judge(id, false, &anna(roles), old, actor);
    let refused = |reason: &str| Err(reason.to_owned());
    assert_eq!(write(None, "[]", &NOBODY), Ok(()));
    assert_eq!(write(None, r#"["x"]"#, &NOBODY), refused("Only _admin may set roles"));
    assert_eq!(write(None, r#"["x"]"#, &CHIEF), Ok(()));
    let (two, none) = (anna(r#"["r1","r2"]"#), anna("[]"));
    let other = "You may only update your own user document.";
    for actor in [Actor { name: Some("bob"), ..NOBODY }, NOBODY] {
        assert_eq!(write(Some(&none), "[]", &actor), refused(other));
    }
    assert_eq!(write(Some(&two), r#"["r2","r1"]"#, &ANNA), Ok(()));
    for roles in [r#"["r1"]"#, "[]", r#"["r1","r2","r3"]"#, r#"["r1","r3"]"#, r#"["r1","r1"]"#] {
        assert_eq!(write(Some(&two), roles, &ANNA), refused("Only _admin may edit roles"), "{roles}");
        assert_eq!(write(Some(&two), roles, &CHIEF), Ok(()));
    }
    // Roles that are no list of names.
    for (old, is_allowed) in [("null", true), ("\"\"", true), ("\"x\"", false), ("[1]", false), ("{}", false)] {
        assert_eq!(write(Some(&anna(old)), "[]", &ANNA).is_ok(), is_allowed, "{old}");
    }
    let bob = r#"{"name":"bob","roles":[],"type":"user"}"#;
    for actor in [ROOT, ANNA] {
        assert_eq!(write(Some(bob), "[]", &actor), refused("Usernames can not be changed."));
    }
    assert_eq!(write(Some("{}"), "[]", &ROOT), refused("Usernames can not be changed."));
}

#[test]
fn who_deletes() {
    let delete = |old: Option<&str>, actor: &Actor<'_>| judge("org.couchdb.user:anna", true, "{}", old, actor);
    let anna = r#"{"name":"anna"}"#;
    assert_eq!(delete(Some(anna), &ROOT), Ok(()));
    assert_eq!(delete(None, &ROOT), Ok(()));
    assert_eq!(delete(Some(anna), &ANNA), Ok(()));
    // Administrators of the database may not, as in CouchDB's function.
    let bob = Actor { name: Some("bob"), ..ANNA };
    for (old, actor) in [(Some(anna), &CHIEF), (Some(anna), &bob), (Some("{}"), &NOBODY), (None, &NOBODY)] {
        assert_eq!(delete(old, actor), Err("Only admins may delete other user docs.".to_owned()), "{actor:?}");
    }
}

#[test]
fn long_schemes_are_cut() {
    let body = format!(r#"{{"name":"a","roles":[],"type":"user","password_scheme":"{}"}}"#, "x".repeat(101));
    let reason = format!("Password scheme `{}...` not supported.", "x".repeat(100));
    assert_eq!(by_root("a", &body), Err(reason));
}

proptest! {
    #[test]
    fn nobody_gives_themselves_roles(
        before in prop::collection::vec("[a-c]", 0..4),
        after in prop::collection::vec("[a-c_]", 0..4),
    ) {
        let body = |roles: &[String]| format!(r#"{{"name":"anna","roles":{roles:?},"type":"user"}}"#);
        let found = judge("org.couchdb.user:anna", false, &body(&after), Some(&body(&before)), &ANNA);
        let sorted = |mut roles: Vec<String>| { roles.sort(); roles };
        prop_assert_eq!(found.is_ok(), sorted(before) == sorted(after));
    }
}
