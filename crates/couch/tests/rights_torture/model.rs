//! Who may do what, decided by nothing but what was changed and when: the rules of CouchDB once more, in few lines.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::proof::Proof;
use flatbed_testkit::timeline::{Span, Timeline};

/// How old an answer may be.
pub const GRACE: Duration = Duration::from_secs(1);

/// Users, of whom the first have passwords that are tried; the very first are administrators of the server at times.
pub const USERS: usize = 50;
pub const WITH_PASSWORDS: usize = 10;
pub const ADMINS: usize = 3;

pub const DATABASES: usize = 20;
pub const ROLES: usize = 8;

/// Keys of tokens: the first are of HMACs, the others of ECDSA.
pub const KEYS: usize = 4;
pub const HMAC_KEYS: usize = 2;

/// Whether a write is refused from the moment on in which its administrator was removed, wherever it is made; else it is as old as
/// an answer may be.
const ADMINS_ARE_FENCED: bool = true;

pub fn user_name(user: usize) -> String {
    format!("u{user:02}")
}

pub fn database_name(database: usize) -> String {
    format!("t{database:02}")
}

/// A user document, as far as it says who somebody is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserDocument {
    pub password: String,
    pub salt: String,
    pub roles: Vec<usize>,
}

/// An administrator of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    pub password: String,
    pub salt: String,
}

/// `_security`: users and roles.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Security {
    pub admins: (BTreeSet<usize>, BTreeSet<usize>),
    pub members: (BTreeSet<usize>, BTreeSet<usize>),
    /// As of a new database: for the server's administrators alone.
    pub is_new: bool,
}

impl Security {
    pub fn new() -> Security {
        Security { is_new: true, ..Security::default() }
    }

    pub fn text(&self) -> String {
        let group = |(names, roles): &(BTreeSet<usize>, BTreeSet<usize>)| {
            let names: Vec<String> = names.iter().map(|user| user_name(*user)).collect();
            let mut roles: Vec<String> = roles.iter().map(|role| format!("r{role}")).collect();
            if self.is_new {
                roles.push("_admin".into());
            }
            json!({ "names": names, "roles": roles })
        };
        json!({ "admins": group(&self.admins), "members": group(&self.members) }).to_string()
    }
}

/// A database; another one of the same name has another number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    pub number: u64,
    pub security: Security,
}

/// Who a request comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    Refused,
    Nobody,
    Somebody { user: usize, roles: Vec<usize>, is_admin: bool },
}

/// What a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Member(usize),
    Admin(usize),
    Server,
    /// Nothing but that what is claimed is right.
    Nothing,
}

impl Needs {
    pub fn database(self) -> Option<usize> {
        match self {
            Needs::Member(database) | Needs::Admin(database) => Some(database),
            Needs::Server | Needs::Nothing => None,
        }
    }
}

/// What may come of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcomes {
    pub answered: bool,
    pub refused: bool,
    /// There is no such database.
    pub absent: bool,
}

impl Outcomes {
    /// Whether it is answered, and nothing else may come of it.
    pub fn is_answered(self) -> bool {
        self.answered && !self.refused && !self.absent
    }
}

/// The spans of which a request is judged.
#[derive(Debug, Clone, Copy)]
pub struct When {
    /// What is fenced where something is written: user documents and `_security`.
    pub records: Span,
    /// What is not.
    pub settings: Span,
    pub admins: Span,
}

impl When {
    /// A state of this span, and no older one.
    pub fn within(span: Span) -> When {
        When { records: span, settings: span, admins: span }
    }

    /// Of an answer that may be as old as an answer may be.
    pub fn answered(span: Span) -> When {
        When::within(span.since(GRACE))
    }

    /// Of a write that was acknowledged.
    pub fn written(span: Span) -> When {
        let old = span.since(GRACE);
        When { records: span, settings: old, admins: if ADMINS_ARE_FENCED { span } else { old } }
    }
}

/// All that rights rest on.
pub struct Model {
    pub users: Vec<Timeline<Option<UserDocument>>>,
    pub admins: Vec<Timeline<Option<Admin>>>,
    pub databases: Vec<Timeline<Option<Database>>>,
    /// By their numbers.
    pub keys: Vec<Timeline<usize>>,
    pub wants_names: Timeline<bool>,
    pub believes_proxies: Timeline<bool>,
}

impl Model {
    pub fn new() -> Model {
        Model {
            users: (0..USERS).map(|_| Timeline::new(None)).collect(),
            admins: (0..ADMINS).map(|_| Timeline::new(None)).collect(),
            databases: (0..DATABASES).map(|_| Timeline::new(None)).collect(),
            keys: (0..KEYS).map(|_| Timeline::new(0)).collect(),
            wants_names: Timeline::new(false),
            believes_proxies: Timeline::new(false),
        }
    }

    /// What may come of a request that came and was answered then.
    pub fn outcomes(&self, proof: &Proof, needs: Needs, when: When) -> Outcomes {
        self.outcomes_in(proof, needs, when, |_| true)
    }

    /// The same, of what goes on in one of these databases alone, by their numbers.
    pub fn outcomes_in(&self, proof: &Proof, needs: Needs, when: When, is_one: impl Fn(u64) -> bool) -> Outcomes {
        let mut outcomes = Outcomes::default();
        let databases = needs.database().map(|database| self.databases[database].possible(when.records));
        let all = self.who(proof, when);
        // Who was somebody when it began, and is nobody now, is refused even what anybody may: they asked as that one.
        outcomes.refused |= all.len() > 1 && all.contains(&Who::Nobody);
        // So is who had their password set anew meanwhile, to the same one.
        outcomes.refused |= matches!(proof, Proof::Basic { user, password } if self.is_set_anew(*user, password, when));
        for who in all {
            match &who {
                Who::Refused => outcomes.refused = true,
                Who::Nobody => {
                    for wants in self.wants_names.possible(when.settings) {
                        if *wants {
                            outcomes.refused = true;
                        } else {
                            judge(&who, needs, databases.as_deref(), &is_one, &mut outcomes);
                        }
                    }
                }
                Who::Somebody { .. } => judge(&who, needs, databases.as_deref(), &is_one, &mut outcomes),
            }
        }
        outcomes
    }

    /// Whom a proof may have shown somebody to be.
    fn who(&self, proof: &Proof, when: When) -> Vec<Who> {
        match proof {
            Proof::Nothing => vec![Who::Nobody],
            Proof::Basic { user, password } => self
                .accounts(*user, when, |account| if account.password == password { None } else { Some(Who::Refused) }),
            Proof::Session { user, salt, .. } => {
                self.accounts(*user, when, |account| if account.salt == salt { None } else { Some(Who::Nobody) })
            }
            Proof::Token { user, roles, key, number, .. } => {
                let is_right = |now: &&usize| {
                    if *now == number {
                        Who::Somebody { user: *user, roles: roles.clone(), is_admin: false }
                    } else {
                        Who::Refused
                    }
                };
                self.keys[*key].possible(when.settings).iter().map(is_right).collect()
            }
            Proof::Proxy { user, roles, .. } => {
                let believed = |believes: &&bool| {
                    if **believes {
                        Who::Somebody { user: *user, roles: roles.clone(), is_admin: false }
                    } else {
                        Who::Nobody
                    }
                };
                self.believes_proxies.possible(when.settings).iter().map(believed).collect()
            }
        }
    }

    /// Who somebody may be by their account, if `wrong` finds nothing wrong with it.
    fn accounts(&self, user: usize, when: When, wrong: impl Fn(Account<'_>) -> Option<Who>) -> Vec<Who> {
        let documents = self.users[user].possible(when.records);
        let admins = self.admins.get(user).map_or_else(
            || vec![&None],
            |admins| {
                // Who becomes an administrator is fenced by their document alone, which stays as it is: for as long as an answer
                // may be old they may still write as the user that they were.
                let before = admins.possible(when.settings).into_iter().filter(|admin| admin.is_none());
                let now = admins.possible(when.admins);
                if now.iter().any(|admin| admin.is_none()) { now } else { before.chain(now).collect() }
            },
        );
        let mut found = Vec::new();
        for admin in &admins {
            for document in &documents {
                let account = match (admin, document) {
                    (Some(admin), _) => Account { password: &admin.password, salt: &admin.salt },
                    (None, Some(document)) => Account { password: &document.password, salt: &document.salt },
                    (None, None) => Account { password: "\0", salt: "\0" },
                };
                let who = wrong(account).unwrap_or_else(|| Who::Somebody {
                    user,
                    roles: document.as_ref().map(|document| document.roles.clone()).unwrap_or_default(),
                    is_admin: admin.is_some(),
                });
                if !found.contains(&who) {
                    found.push(who);
                }
            }
        }
        found
    }

    /// Whether somebody may have been taken for nobody, and surely was.
    pub fn is_nobody(&self, proof: &Proof, when: When) -> (bool, bool) {
        let who = self.who(proof, when);
        (who.contains(&Who::Nobody), who == [Who::Nobody])
    }

    /// Whether a password may have had more than one salt.
    fn is_set_anew(&self, user: usize, password: &str, when: When) -> bool {
        let documents = self.users[user].possible(when.records).into_iter().flatten();
        let salts = documents.filter(|document| document.password == password).map(|document| &document.salt);
        salts.collect::<BTreeSet<_>>().len() > 1
    }

    /// Whether somebody may have been shown to be this one, with these roles; `_admin` is that of the server's administrators.
    pub fn may_be(&self, proof: &Proof, when: When, name: Option<&str>, roles: &BTreeSet<String>) -> bool {
        self.who(proof, when).iter().any(|who| match who {
            Who::Refused => false,
            Who::Nobody => name.is_none() && roles.is_empty(),
            Who::Somebody { user, roles: of, is_admin } => {
                let mut of: BTreeSet<String> = of.iter().map(|role| format!("r{role}")).collect();
                if *is_admin {
                    of.insert("_admin".into());
                }
                name == Some(&user_name(*user)) && *roles == of
            }
        })
    }

    /// Salts that somebody may have had who has signed in with a password.
    pub fn salts(&self, user: usize, password: &str, span: Span) -> BTreeSet<String> {
        let span = span.since(GRACE);
        let documents = self.users[user].possible(span).into_iter().flatten();
        let documents = documents.map(|document| (&document.password, &document.salt));
        let admins = self.admins.get(user).map(|admins| admins.possible(span)).unwrap_or_default();
        let admins = admins.into_iter().flatten().map(|admin| (&admin.password, &admin.salt));
        documents.chain(admins).filter(|(of, _)| *of == password).map(|(_, salt)| salt.clone()).collect()
    }

    /// That which an account has now, as it was set last.
    pub fn salt(&self, user: usize) -> Option<String> {
        let admin = self.admins.get(user).and_then(|admin| admin.newest().as_ref());
        let document = self.users[user].newest().as_ref();
        admin.map(|admin| admin.salt.clone()).or_else(|| document.map(|document| document.salt.clone()))
    }

    /// A salt that somebody has had of late, or has.
    pub fn some_salt(&self, user: usize, span: Span) -> String {
        let documents = self.users[user].possible(span.since(5 * GRACE));
        let last = documents.into_iter().rev().flatten().next();
        last.map_or_else(|| "none".to_owned(), |document| document.salt.clone())
    }

    /// Which databases of a name there may have been, by their numbers, and whether there may have been none.
    pub fn databases(&self, database: usize, span: Span) -> (BTreeSet<u64>, bool) {
        let possible = self.databases[database].possible(span);
        let has_none = possible.iter().any(|database| database.is_none());
        (possible.into_iter().flatten().map(|database| database.number).collect(), has_none)
    }
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Model")
    }
}

/// What somebody signs in with.
struct Account<'a> {
    password: &'a str,
    salt: &'a str,
}

fn judge(
    who: &Who,
    needs: Needs,
    databases: Option<&[&Option<Database>]>,
    is_one: impl Fn(u64) -> bool,
    outcomes: &mut Outcomes,
) {
    let Some(databases) = databases else {
        let is_admin = matches!(who, Who::Somebody { is_admin: true, .. });
        *(if is_admin || needs == Needs::Nothing { &mut outcomes.answered } else { &mut outcomes.refused }) = true;
        return;
    };
    for database in databases {
        let outcome = match (database, who) {
            // Only administrators learn which databases there are, or users whose database goes while they do something with it.
            (None, Who::Nobody | Who::Somebody { is_admin: false, .. }) if databases.len() == 1 => {
                &mut outcomes.refused
            }
            (None, Who::Nobody | Who::Somebody { is_admin: false, .. }) => {
                outcomes.refused = true;
                &mut outcomes.absent
            }
            (None, _) => &mut outcomes.absent,
            (Some(database), _) if !is_one(database.number) => &mut outcomes.absent,
            (Some(database), who) if may(who, needs, &database.security) => &mut outcomes.answered,
            _ => &mut outcomes.refused,
        };
        *outcome = true;
    }
}

fn may(who: &Who, needs: Needs, security: &Security) -> bool {
    let (names, roles, is_admin) = match who {
        Who::Refused => return false,
        Who::Nobody => (None, &[][..], false),
        Who::Somebody { user, roles, is_admin } => (Some(user), roles.as_slice(), *is_admin),
    };
    let is_in = |(of_names, of_roles): &(BTreeSet<usize>, BTreeSet<usize>)| {
        names.is_some_and(|user| of_names.contains(user)) || roles.iter().any(|role| of_roles.contains(role))
    };
    let (members, is_open) = (&security.members, !security.is_new && security.members == Default::default());
    let administers = is_admin || is_in(&security.admins);
    match needs {
        Needs::Admin(_) => administers,
        _ => administers || is_open || is_in(members),
    }
}

/// A span that is a moment.
pub fn moment() -> Span {
    let now = Instant::now();
    Span { from: now, to: now }
}

/// What a JSON text says; null where it is no JSON.
pub fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}
