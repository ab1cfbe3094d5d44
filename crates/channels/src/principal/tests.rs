use super::*;

fn parsed(body: &str) -> Result<PrincipalUpdate, InvalidPrincipal> {
    PrincipalUpdate::parse(body.as_bytes())
}

fn user(request: PrincipalRequest<'_>, body: &str, exists: bool) -> Result<User, InvalidPrincipal> {
    parsed(body)?.user(request, exists, true)
}

#[test]
fn an_address_has_a_form() {
    for (text, is) in [
        ("a@example.org", true),
        ("a.b+c-d_e@x-y.org", true),
        ("", false),
        ("a", false),
        ("a@", false),
        ("a@b", false),
        ("a@bc", true),
        ("@bc", false),
        ("a@-bc", false),
        ("a@.bc", false),
        ("a b@example.org", false),
        ("a@exa mple.org", false),
        ("a@b@c", false),
    ] {
        assert_eq!(is_email(text), is, "{text}");
    }
    assert!(is_email(&format!("{}@bc", "a".repeat(251))) && !is_email(&format!("{}@bc", "a".repeat(252))));
}

#[test]
fn an_account_of_the_server_needs_no_password() {
    let put = PrincipalRequest::Put("a");
    assert_eq!(user(put, "{}", false), Err(InvalidPrincipal::EmptyPassword));
    assert!(parsed("{}").unwrap().user(put, false, false).is_ok());
    assert_eq!(parsed(r#"{"password":""}"#).unwrap().user(put, false, false), Err(InvalidPrincipal::EmptyPassword));
    assert_eq!(user(put, r#"{"password":""}"#, true), Err(InvalidPrincipal::EmptyPassword));
    assert_eq!(user(put, r#"{"password":"äöü"}"#, false).unwrap().password.as_deref(), Some("äöü"));
}

#[test]
fn the_guest_is_there_and_has_no_password() {
    let guest = user(PrincipalRequest::Put(GUEST), r#"{"password":"pass","admin_channels":["A"]}"#, false).unwrap();
    assert_eq!((&*guest.name, guest.password, guest.admin_channels.len()), ("", None, 1));
    assert_eq!(
        user(PrincipalRequest::Post, r#"{"name":"GUEST","password":"pass"}"#, false),
        Err(InvalidPrincipal::Exists)
    );
    let role = parsed("{}").unwrap().role(PrincipalRequest::Put(GUEST), false).unwrap();
    assert_eq!(role.name, GUEST);
    assert_eq!(
        parsed("{}").unwrap().role(PrincipalRequest::Put(""), false),
        Err(InvalidPrincipal::Name(String::new()))
    );
}

#[test]
fn what_is_too_much_is_refused() {
    let list = |count: usize| format!("[{}]", vec!["\"a\""; count].join(","));
    let put = PrincipalRequest::Put("a");
    for (member, max) in [("admin_channels", ADMIN_CHANNELS_MAX), ("admin_roles", ADMIN_ROLES_MAX)] {
        let body = |count| format!(r#"{{"password":"pass","{member}":{}}}"#, list(count));
        assert!(user(put, &body(max), false).is_ok());
        assert_eq!(user(put, &body(max + 1), false), Err(InvalidPrincipal::TooMuch(member)));
    }
    let password = |bytes: usize| format!(r#"{{"password":"{}"}}"#, "p".repeat(bytes));
    assert!(user(put, &password(1_000), false).is_ok());
    assert_eq!(user(put, &password(1_001), false), Err(InvalidPrincipal::TooMuch("password")));
    assert_eq!(InvalidPrincipal::TooMuch("password").status(), 400);
    let long = "n".repeat(240);
    assert_eq!(
        user(PrincipalRequest::Put(&long), r#"{"password":"pass"}"#, false),
        Err(InvalidPrincipal::Name("n".repeat(100)))
    );
}

#[test]
fn what_is_null_is_not_there() {
    let body =
        r#"{"name":null,"password":"pass","email":null,"disabled":null,"admin_channels":null,"admin_roles":null}"#;
    let user = user(PrincipalRequest::Put("a"), body, false).unwrap();
    assert_eq!((&*user.name, &*user.email, user.disabled), ("a", "", false));
    assert!(user.admin_channels.is_empty() && user.admin_roles.is_empty());
    for body in [
        "[]",
        "5",
        r#"{"disabled":1}"#,
        r#"{"email":1}"#,
        r#"{"name":1}"#,
        r#"{"admin_roles":[null]}"#,
        r#"{"admin_roles":{}}"#,
    ] {
        assert!(matches!(parsed(body), Err(InvalidPrincipal::Json(_))), "{body}");
    }
}
