//! Users and roles as recorded with a Sync Gateway.

use std::collections::{BTreeMap, BTreeSet};

use flatbed_channels::{
    DirectGrant, GrantedItem, HeldChannels, InvalidPrincipal, Periods, PrincipalKind, PrincipalOutput,
    PrincipalRequest, PrincipalUpdate, RoleRows, Stamp, UserOutput,
};
use flatbed_flatten::json::{Limits, Value, parse};

#[derive(Default, Clone)]
struct StoredPrincipal {
    admin_channels: BTreeSet<String>,
    admin_roles: BTreeSet<String>,
    email: String,
    disabled: bool,
}

#[derive(Default)]
struct Principals {
    users: BTreeMap<String, StoredPrincipal>,
    roles: BTreeMap<String, StoredPrincipal>,
}

fn rows<'a>(stored: &'a StoredPrincipal) -> impl Iterator<Item = DirectGrant> + 'a {
    let row = |what| DirectGrant { what, periods: Periods::since(Stamp::of(1)) };
    let channels = stored.admin_channels.iter().cloned().map(GrantedItem::Channel);
    channels.chain(stored.admin_roles.iter().cloned().map(GrantedItem::Role)).map(row)
}

impl Principals {
    fn put(&mut self, kind: PrincipalKind, request: PrincipalRequest<'_>, body: &str) -> Result<u16, InvalidPrincipal> {
        let update = PrincipalUpdate::parse(body.as_bytes())?;
        let name = update.name(request, kind)?;
        let all = if kind == PrincipalKind::User { &mut self.users } else { &mut self.roles };
        let exists = all.contains_key(&name);
        let stored = match kind {
            PrincipalKind::User => {
                let user = update.user(request, exists, true)?;
                assert_eq!(user.name, name);
                let (admin_channels, admin_roles) = (user.admin_channels, user.admin_roles);
                StoredPrincipal { admin_channels, admin_roles, email: user.email, disabled: user.disabled }
            }
            PrincipalKind::Role => StoredPrincipal {
                admin_channels: update.role(request, exists)?.admin_channels,
                ..StoredPrincipal::default()
            },
        };
        let exists = all.insert(name.clone(), stored).is_some() || name.is_empty();
        Ok(if exists { 200 } else { 201 })
    }

    fn text(&self, kind: PrincipalKind, name: &str) -> Option<Vec<u8>> {
        let all = if kind == PrincipalKind::User { &self.users } else { &self.roles };
        let stored = all.get(name)?;
        let role = |name: &str| {
            let channels = self.roles.get(name)?.admin_channels.iter();
            let channels = channels.map(|channel| (channel.clone(), Periods::since(Stamp::of(1)))).collect();
            Some(RoleRows { exists: Periods::since(Stamp::of(1)), channels })
        };
        let held = HeldChannels::of(rows(stored), role);
        let user = UserOutput { email: &stored.email, disabled: stored.disabled, admin_roles: &stored.admin_roles };
        let user = (kind == PrincipalKind::User).then_some(user);
        Some(PrincipalOutput { name, admin_channels: &stored.admin_channels, held: &held, user }.text())
    }
}

fn value(text: &[u8]) -> Value<'_> {
    parse(text, &Limits::default()).unwrap()
}

fn items<'a>(of: &'a Value<'a>) -> &'a [Value<'a>] {
    match of {
        Value::Array(items) => items,
        _ => panic!("a list"),
    }
}

#[test]
fn users_and_roles_are_as_recorded() {
    let mut count = 0;
    for line in include_str!("../../../../tests/sync-gateway/principals.jsonl").lines() {
        let scenario = value(line.as_bytes());
        let name = scenario.get("name").and_then(Value::as_str).unwrap();
        let mut principals = Principals::default();
        for step in items(scenario.get("steps").unwrap()) {
            let [Value::String(method), Value::String(path), body, Value::Number(status), answer] = items(step) else {
                panic!("a step")
            };
            let body = body.as_str().unwrap_or_default();
            let said = format!("{name}: {method} {path} {body}");
            let (kind, of) = match path.strip_prefix("/_user/") {
                Some(of) => (PrincipalKind::User, of),
                None => (PrincipalKind::Role, path.strip_prefix("/_role/").unwrap()),
            };
            let of = of.replace("%20", " ");
            let inside = if of == "GUEST" { "" } else { &of };
            count += 1;
            match &**method {
                "GET" if inside.is_empty() => {
                    // Here the guest has the public channel from the beginning, once it exists.
                    assert_eq!(&**status, "200", "{said}");
                }
                "GET" => match principals.text(kind, inside) {
                    Some(text) => assert_eq!((&**status, &value(&text)), ("200", answer), "{said}"),
                    None => assert_eq!(&**status, "404", "{said}"),
                },
                "DELETE" => {
                    let all = if kind == PrincipalKind::User { &mut principals.users } else { &mut principals.roles };
                    let expected = if inside.is_empty() {
                        "405"
                    } else if all.remove(inside).is_some() {
                        "200"
                    } else {
                        "404"
                    };
                    assert_eq!(&**status, expected, "{said}");
                }
                method => {
                    let request = if method == "POST" { PrincipalRequest::Post } else { PrincipalRequest::Put(&of) };
                    match principals.put(kind, request, body) {
                        Ok(done) => assert_eq!(**status, done.to_string(), "{said}"),
                        Err(refused) => {
                            assert_eq!(**status, refused.status().to_string(), "{said}: {refused}");
                            let reason = answer.get("reason").and_then(Value::as_str).unwrap();
                            // The rest is the parser's message.
                            let reason = reason.trim_end_matches('~');
                            assert!(refused.to_string().starts_with(reason), "{said}: {refused}");
                            assert!(
                                reason.starts_with("Invalid JSON") || refused.to_string() == reason,
                                "{said}: {refused}"
                            );
                        }
                    }
                }
            }
        }
    }
    assert_eq!(count, COUNT);
}

const COUNT: usize = 80;
