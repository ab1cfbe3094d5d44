//! Permissions, derived only from the changes and their times: a second, short implementation of CouchDB's rules.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::proof::Proof;
use flatbed_testkit::timeline::{Span, Timeline};

/// The largest age of a state that an answer may use.
pub const GRACE: Duration = Duration::from_secs(1);

/// The number of users. The first ones have passwords that are tried; the very first are server administrators at
/// times.
pub const USERS: usize = 50;
pub const WITH_PASSWORDS: usize = 10;
pub const ADMINS: usize = 3;

pub const DATABASES: usize = 20;
pub const ROLES: usize = 8;

/// The number of token keys: the first are HMAC keys, the others ECDSA keys.
pub const KEYS: usize = 4;
pub const HMAC_KEYS: usize = 2;

/// True if every server refuses writes of an administrator from the moment of removal; otherwise a write may use a
/// state as old as an answer's.
const ADMINS_ARE_FENCED: bool = true;

pub fn user_name(user: usize) -> String {
    format!("u{user:02}")
}

pub fn database_name(database: usize) -> String {
    format!("t{database:02}")
}

/// The parts of a user document that identify the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserDocument {
    pub password: String,
    pub salt: String,
    pub roles: Vec<usize>,
}

/// A server administrator.
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
    /// True for the default of a new database: server administrators only.
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

/// A database. A recreated one has another number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Database {
    pub number: u64,
    pub security: Security,
}

/// The principal of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Who {
    Refused,
    Nobody,
    Somebody { user: usize, roles: Vec<usize>, is_admin: bool },
}

/// The right that a request needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Needs {
    Member(usize),
    Admin(usize),
    Server,
    /// Valid credentials suffice.
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

/// The possible outcomes of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcomes {
    pub answered: bool,
    pub refused: bool,
    /// The database does not exist.
    pub absent: bool,
}

impl Outcomes {
    /// Returns whether an answer is the only possible outcome.
    pub fn is_answered(self) -> bool {
        self.answered && !self.refused && !self.absent
    }
}

/// The spans by whose states a request is judged.
#[derive(Debug, Clone, Copy)]
pub struct When {
    /// User documents and `_security`: writes are fenced against their changes.
    pub records: Span,
    /// Settings and keys: writes are not fenced against their changes.
    pub settings: Span,
    pub admins: Span,
}

impl When {
    /// Judges by the states of this span only.
    pub fn within(span: Span) -> When {
        When { records: span, settings: span, admins: span }
    }

    /// Judges an answer, which may use states of up to [`GRACE`] before.
    pub fn answered(span: Span) -> When {
        When::within(span.since(GRACE))
    }

    /// Judges an acknowledged write.
    pub fn written(span: Span) -> When {
        let old = span.since(GRACE);
        When { records: span, settings: old, admins: if ADMINS_ARE_FENCED { span } else { old } }
    }
}

/// All state on which rights depend.
pub struct Model {
    pub users: Vec<Timeline<Option<UserDocument>>>,
    pub admins: Vec<Timeline<Option<Admin>>>,
    pub databases: Vec<Timeline<Option<Database>>>,
    /// The current version of each key.
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

    /// Returns the possible outcomes of a request.
    pub fn outcomes(&self, proof: &Proof, needs: Needs, when: When) -> Outcomes {
        self.outcomes_in(proof, needs, when, |_| true)
    }

    /// Like [`Model::outcomes`], in the databases whose number satisfies `is_one`.
    pub fn outcomes_in(&self, proof: &Proof, needs: Needs, when: When, is_one: impl Fn(u64) -> bool) -> Outcomes {
        let mut outcomes = Outcomes::default();
        let databases = needs.database().map(|database| self.databases[database].possible(when.records));
        let all = self.who(proof, when);
        // Credentials that expired during the request are refused even where anonymous requests are allowed.
        outcomes.refused |= all.len() > 1 && all.contains(&Who::Nobody);
        // So is a password that was set anew meanwhile, to the same text.
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

    /// Returns the principals for which the credentials may have been taken.
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

    /// Returns the principals that an account may have given, unless `wrong` names another one.
    fn accounts(&self, user: usize, when: When, wrong: impl Fn(Account<'_>) -> Option<Who>) -> Vec<Who> {
        let documents = self.users[user].possible(when.records);
        let admins = self.admins.get(user).map_or_else(
            || vec![&None],
            |admins| {
                // A promotion to administrator is fenced by the user document alone, which is unchanged: while an old
                // state may be used, writes may still be made as the former user.
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

    /// Returns whether the credentials may have counted as anonymous, and whether they surely did.
    pub fn is_nobody(&self, proof: &Proof, when: When) -> (bool, bool) {
        let who = self.who(proof, when);
        (who.contains(&Who::Nobody), who == [Who::Nobody])
    }

    /// Returns whether the account may have had several salts with the same password.
    fn is_set_anew(&self, user: usize, password: &str, when: When) -> bool {
        let documents = self.users[user].possible(when.records).into_iter().flatten();
        let salts = documents.filter(|document| document.password == password).map(|document| &document.salt);
        salts.collect::<BTreeSet<_>>().len() > 1
    }

    /// Returns whether the credentials may have given this name with these roles; `_admin` is the role of server
    /// administrators.
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

    /// Returns the salts that an account with this password may have had.
    pub fn salts(&self, user: usize, password: &str, span: Span) -> BTreeSet<String> {
        let span = span.since(GRACE);
        let documents = self.users[user].possible(span).into_iter().flatten();
        let documents = documents.map(|document| (&document.password, &document.salt));
        let admins = self.admins.get(user).map(|admins| admins.possible(span)).unwrap_or_default();
        let admins = admins.into_iter().flatten().map(|admin| (&admin.password, &admin.salt));
        documents.chain(admins).filter(|(of, _)| *of == password).map(|(_, salt)| salt.clone()).collect()
    }

    /// Returns the current salt of an account.
    pub fn salt(&self, user: usize) -> Option<String> {
        let admin = self.admins.get(user).and_then(|admin| admin.newest().as_ref());
        let document = self.users[user].newest().as_ref();
        admin.map(|admin| admin.salt.clone()).or_else(|| document.map(|document| document.salt.clone()))
    }

    /// Returns a recent or current salt of an account.
    pub fn some_salt(&self, user: usize, span: Span) -> String {
        let documents = self.users[user].possible(span.since(5 * GRACE));
        let last = documents.into_iter().rev().flatten().next();
        last.map_or_else(|| "none".to_owned(), |document| document.salt.clone())
    }

    /// Returns the numbers of the databases that may have had a name, and whether it may have been free.
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

/// The password and the salt of an account.
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
            // Only administrators, and users whose database is deleted during the request, learn that a database is
            // missing.
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

/// Returns the span of the present moment.
pub fn moment() -> Span {
    let now = Instant::now();
    Span { from: now, to: now }
}

/// Parses a JSON text; null if it is invalid.
pub fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_default()
}
