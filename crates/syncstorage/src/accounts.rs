//! The token server's users: the user, and so the storage, of each Mozilla account.
//!
//! Below the root of the storage (`design/firefox.md`) lie an account's record by the account's id, and, for each number
//! that was ever a user's, the account that had it, so that no number is assigned twice. There is no count of all
//! accounts, so no key is written by all of them.

mod record;
mod rules;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use crate::error::{Error, Result};
use crate::keys::tuple::{TEXT, put_int, put_text, take_int, take_text};
use crate::keys::{ACCOUNTS, Due, KeyRange, RootKeys};
use crate::names::Uid;
use crate::store::Store;
use crate::timestamp::Timestamp;
use crate::transaction::Trx;

use record::Record;
use rules::AccountState;
pub use rules::{Claim, Refusal, StateRefusal};

/// The delay before the data of a replaced user is removed. A user is replaced when its account gets new keys.
pub const REPLACED_SECONDS: u32 = 7 * 24 * 3_600;

/// The greatest number of a user: ten digits.
const UID_MAX: u64 = 9_999_999_999;

/// The numbers tried for a new user. With a hundred million users each is taken with a probability of one in a hundred.
const CANDIDATES: usize = 8;

/// The accounts that counts and checks read at once.
const PAGE_ROWS: usize = 256;

const PROBLEMS_KEPT: usize = 1_000;

// Under {S}/4.
const BY_ACCOUNT: u64 = 1;
const BY_UID: u64 = 2;

/// The accounts that may have a user. By default none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    /// Accounts that may have a user.
    pub accounts: HashSet<String>,
    /// The first accounts that sign in may have one too, up to this many users including the listed accounts: at most
    /// [`Admission::FIRST_USERS_MAX`]. Such an account keeps its user while this is not 0.
    pub first_users: u32,
    /// True if all accounts may have a user.
    pub everyone: bool,
}

impl Admission {
    /// The limit of the first accounts, which are counted by reading them.
    pub const FIRST_USERS_MAX: u32 = 1_000;

    fn is_certain(&self, account: &str) -> bool {
        self.everyone || self.accounts.contains(account)
    }
}

/// A device that may sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceAccount {
    /// The user whose storage the device may open.
    pub uid: Uid,
    /// The account's generation.
    pub generation: u64,
    /// The time of the keys' last change, if any claim had one.
    pub keys_changed_at: Option<u64>,
}

/// The token server's users. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Accounts(Store);

impl Accounts {
    /// Returns the users of a storage.
    pub fn new(store: &Store) -> Accounts {
        Accounts(store.clone())
    }

    /// Signs an account in. A new account gets a user. An account with a new client state gets another user, and the
    /// data of its former one is removed after [`REPLACED_SECONDS`].
    ///
    /// If nothing is new, which is the usual case, this is one read of one key.
    ///
    /// # Errors
    /// [`Error`] if the storage fails, [`Error::OutOfBounds`] for a claim beyond its bounds. A [`Refusal`] is the
    /// account's own.
    pub async fn sign_in(&self, claim: &Claim, admission: &Admission) -> Result<Result<DeviceAccount, Refusal>> {
        let is_bounded = (1..=Claim::ACCOUNT_BYTES_MAX).contains(&claim.account.len())
            && claim.client_state.len() <= Claim::STATE_BYTES_MAX;
        if !is_bounded {
            return Err(Error::OutOfBounds("an account"));
        }
        let inner = &self.0.inner;
        let looked = inner.runner.read(|trx| step(trx, &inner.keys, claim, admission, true)).await?;
        if let Step::Done(done) = looked {
            return Ok(done);
        }
        let candidates = candidates()?;
        let (candidates, at) = (&candidates, self.0.now().after_seconds(REPLACED_SECONDS));
        inner
            .runner
            .write(|trx, _| async move {
                match step(trx.clone(), &inner.keys, claim, admission, false).await? {
                    Step::Done(done) => Ok(done),
                    Step::Update(record) => {
                        trx.set(&by_account(&inner.keys, &claim.account), &record.to_bytes());
                        Ok(Ok(record.signed_in()))
                    }
                    Step::NewUser { known, replaced } => {
                        let uid = free(&trx, &inner.keys, candidates).await?;
                        trx.set(&by_uid(&inner.keys, uid), claim.account.as_bytes());
                        if let Some(before) = replaced {
                            replace(&trx, &inner.keys, before, at);
                        }
                        let record = Record { uid, known };
                        trx.set(&by_account(&inner.keys, &claim.account), &record.to_bytes());
                        Ok(Ok(record.signed_in()))
                    }
                }
            })
            .await
    }
}

/// The result of a check of the accounts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckedAccounts {
    /// Accounts that have a user.
    pub accounts: u64,
    /// The number of problems.
    pub problems: u64,
    /// The texts of the first thousand problems.
    pub texts: Vec<String>,
}

impl CheckedAccounts {
    fn note(&mut self, text: String) {
        self.problems += 1;
        if self.texts.len() < PROBLEMS_KEPT {
            self.texts.push(text);
        }
    }
}

impl Accounts {
    /// Checks that each account's record can be read and has its number noted as its own, and that each number belongs
    /// to an account. An account that gets a user during the check may be reported.
    ///
    /// # Errors
    /// [`Error`] if the storage fails.
    pub async fn check(&self) -> Result<CheckedAccounts> {
        let inner = &self.0.inner;
        let mut checked = CheckedAccounts::default();
        for number in [BY_ACCOUNT, BY_UID] {
            let prefix = part(&inner.keys, number);
            let mut range = KeyRange { begin: prefix.clone(), end: part(&inner.keys, number + 1) };
            loop {
                let page = inner
                    .runner
                    .read(|trx| {
                        let (range, prefix) = (&range, &prefix);
                        async move {
                            let page = trx.page(range, PAGE_ROWS, false).await?;
                            let mut wrong = Vec::new();
                            for (key, value) in &page.rows {
                                let rest = key.strip_prefix(prefix.as_slice()).unwrap_or_default();
                                let reason = match number {
                                    BY_ACCOUNT => wrong_account(&trx, &inner.keys, rest, value).await?,
                                    _ => wrong_number(&trx, &inner.keys, rest, value).await?,
                                };
                                wrong.extend(reason);
                            }
                            Ok((page, wrong))
                        }
                    })
                    .await?;
                let (page, wrong) = page;
                wrong.into_iter().for_each(|text| checked.note(text));
                if number == BY_ACCOUNT {
                    checked.accounts += page.rows.len() as u64;
                }
                match page.rest {
                    Some(rest) => range = rest,
                    None => break,
                }
            }
        }
        Ok(checked)
    }
}

/// Returns the problem of an account's record, if any.
async fn wrong_account(trx: &Trx, keys: &RootKeys, key: &[u8], value: &[u8]) -> Result<Option<String>> {
    let Ok((account, [])) = take_text(key, TEXT) else { return Ok(Some("a key of an account is none".to_owned())) };
    let account = String::from_utf8_lossy(&account);
    let Ok(record) = Record::from_bytes(value) else {
        return Ok(Some(format!("the record of the account {account} is none")));
    };
    let owner = trx.get(&by_uid(keys, record.uid), true).await?;
    let is_its_own = owner.as_deref() == Some(account.as_bytes());
    Ok((!is_its_own).then(|| format!("the user {} of the account {account} is not noted as its own", record.uid)))
}

/// Returns the problem of a number, if any.
async fn wrong_number(trx: &Trx, keys: &RootKeys, key: &[u8], account: &[u8]) -> Result<Option<String>> {
    let Ok((uid, [])) = take_int(key) else { return Ok(Some("a key of a user's number is none".to_owned())) };
    let account = String::from_utf8_lossy(account);
    let record = trx.get(&by_account(keys, &account), true).await?;
    Ok(record.is_none().then(|| format!("the user {uid} is that of the account {account}, which is not there")))
}

/// The outcome of a sign-in.
enum Step {
    /// Nothing is written.
    Done(Result<DeviceAccount, Refusal>),
    /// The account's record changes.
    Update(Record),
    /// The account gets a user, which replaces `replaced`.
    NewUser { known: AccountState, replaced: Option<Uid> },
}

async fn step(trx: Trx, keys: &RootKeys, claim: &Claim, admission: &Admission, is_snapshot: bool) -> Result<Step> {
    let found = trx.get(&by_account(keys, &claim.account), is_snapshot).await?;
    let found = found.as_deref().map(Record::from_bytes).transpose()?;
    let is_admitted = match &found {
        _ if admission.is_certain(&claim.account) => true,
        Some(_) => admission.first_users > 0,
        None => has_room(&trx, keys, admission, is_snapshot).await?,
    };
    if !is_admitted {
        return Ok(Step::Done(Err(Refusal::Closed)));
    }
    let Some(Record { uid, known }) = found else {
        return Ok(Step::NewUser { known: AccountState::first(claim), replaced: None });
    };
    Ok(match known.advance(claim) {
        Err(refusal) => Step::Done(Err(refusal)),
        Ok((known, true)) => Step::NewUser { known, replaced: Some(uid) },
        Ok((next, false)) if next == known => Step::Done(Ok(Record { uid, known }.signed_in())),
        Ok((known, false)) => Step::Update(Record { uid, known }),
    })
}

/// Returns whether fewer accounts exist than the limit of first accounts. Without a snapshot, a concurrent new account
/// makes the transaction fail.
async fn has_room(trx: &Trx, keys: &RootKeys, admission: &Admission, is_snapshot: bool) -> Result<bool> {
    let max = admission.first_users.min(Admission::FIRST_USERS_MAX) as usize;
    let mut range = KeyRange { begin: part(keys, BY_ACCOUNT), end: part(keys, BY_ACCOUNT + 1) };
    let mut count = 0;
    while count < max {
        let page = trx.page_with(&range, PAGE_ROWS.min(max - count), false, is_snapshot).await?;
        count += page.rows.len();
        match page.rest {
            Some(rest) => range = rest,
            None => break,
        }
    }
    Ok(count < max)
}

/// Returns the first number that no account ever had.
async fn free(trx: &Trx, keys: &RootKeys, candidates: &[Uid]) -> Result<Uid> {
    for uid in candidates {
        if trx.get(&by_uid(keys, *uid), false).await?.is_none() {
            return Ok(*uid);
        }
    }
    Err(Error::TooMany("users"))
}

/// Schedules the removal of a user's data at a time.
fn replace(trx: &Trx, keys: &RootKeys, uid: Uid, at: Timestamp) {
    trx.set(&keys.user(uid).due(at, &Due::Purge), b"");
}

/// Drawn before the transaction, so that each attempt tries the same numbers.
fn candidates() -> Result<Vec<Uid>> {
    let mut random = [0; 8 * CANDIDATES];
    getrandom::fill(&mut random).map_err(|_| Error::NoRandomness)?;
    let numbers =
        random.chunks_exact(8).map(|bytes| bytes.iter().fold(0_u64, |number, byte| number << 8 | u64::from(*byte)));
    Ok(numbers.map(|number| Uid(1 + number % UID_MAX)).collect())
}

fn part(keys: &RootKeys, number: u64) -> Vec<u8> {
    let mut key = keys.part(ACCOUNTS);
    put_int(&mut key, number);
    key
}

fn by_account(keys: &RootKeys, account: &str) -> Vec<u8> {
    let mut key = part(keys, BY_ACCOUNT);
    put_text(&mut key, TEXT, account.as_bytes());
    key
}

fn by_uid(keys: &RootKeys, uid: Uid) -> Vec<u8> {
    let mut key = part(keys, BY_UID);
    put_int(&mut key, uid.0);
    key
}
