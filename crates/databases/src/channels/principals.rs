//! Users and roles of a database as administrators define them.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use flatbed_channels::{
    ADMIN_CHANNELS_MAX, ADMIN_ROLES_MAX, GrantedItem, HeldChannels, PrincipalKind, Stamp, check_channel, is_principal,
};
use flatbed_store::access::AccessNote;
use flatbed_store::error::{Error, Refusal, Result};
use flatbed_store::keys::{Keys, PrincipalPart};
use flatbed_store::once::Once;
use flatbed_store::proto;
use flatbed_store::seq::{STAMP_BYTES, VERSIONSTAMP_OFFSET, own_stamp};
use flatbed_store::transaction::{self, Attempt, Operation, Transaction};
use foundationdb::options::MutationType;
use prost::Message;

use crate::channels::grants::GrantChanges;
use crate::channels::holding::{held_by_role, held_by_user, stamp_of};
use crate::handles::{ReadHandle, WriteHandle};
use crate::instance::Instance;
use crate::server::Inner;

/// Total bytes of the names of channels and roles that an administrator gives one principal: they are in one record,
/// and all may change in one transaction.
pub const ADMIN_NAMES_BYTES_MAX: usize = 50_000;

/// Byte limit of an address, and of a password's hash.
const TEXT_BYTES_MAX: usize = 4_000;

/// Past periods of a deleted user that are removed with it.
const FORGOTTEN_MAX: usize = 2_000;

/// Name limit of a page of a list.
const PAGE_NAMES_MAX: usize = 1_000;

/// A user or role as an administrator defined it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The name without a prefix; the guest's is empty.
    pub name: String,
    /// An address; empty: none.
    pub email: String,
    /// True if the principal is locked out.
    pub is_disabled: bool,
    /// Channels that an administrator gave.
    pub admin_channels: BTreeSet<String>,
    /// Roles that an administrator gave.
    pub admin_roles: BTreeSet<String>,
    /// The way to sign in.
    pub signs_in: SignsIn,
    /// The generation of its sessions: those of another generation are invalid.
    pub generation: u64,
    /// The stamp of an administrator's last change.
    pub changed: Stamp,
}

/// The way in which a user signs in to a database.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum SignsIn {
    /// None: for a role or the guest.
    #[default]
    Not,
    /// By a password of this database. The text holds its hash, and the layer does not read it.
    Password(Vec<u8>),
    /// As the server's account of the same name, or with a token of this subject.
    Account,
}

/// An administrator's definition of a user or role. It replaces the earlier one, except for the way to sign in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrincipalWrite {
    /// User or role.
    pub kind: PrincipalKind,
    /// The name without a prefix; the guest's is empty.
    pub name: String,
    /// An address; empty: none.
    pub email: String,
    /// True if the principal is locked out.
    pub is_disabled: bool,
    /// Channels.
    pub admin_channels: BTreeSet<String>,
    /// Roles, of a user.
    pub admin_roles: BTreeSet<String>,
    /// The new way to sign in; `None`: unchanged.
    pub signs_in: Option<SignsIn>,
    /// True if the principal must be new.
    pub is_new: bool,
}

/// The outcome of a [`PrincipalWrite`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrincipalWriteOutcome {
    /// The principal is new.
    Created,
    /// The principal existed, and was written if it differed.
    Changed,
    /// Nothing was written: the principal exists.
    Exists,
    /// Nothing was written: a new user without a way to sign in.
    NoPassword,
}

/// A user or role, and its rights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrincipalWithRights {
    /// Its definition by an administrator.
    pub principal: Principal,
    /// Its rights in all ways: those of a user include roles, and ignore whether the user is disabled.
    pub held: HeldChannels,
}

impl Principal {
    /// Decodes a record; `None` for a deleted principal.
    pub fn decode(name: &str, bytes: &[u8]) -> Result<Option<Principal>> {
        let record = proto::Principal::decode(bytes)?;
        if !record.exists {
            return Ok(None);
        }
        let changed = stamp_of(Some(&record.changed))?.unwrap_or_default();
        let signs_in = match (record.account, record.password.is_empty()) {
            (true, _) => SignsIn::Account,
            (false, true) => SignsIn::Not,
            (false, false) => SignsIn::Password(record.password),
        };
        Ok(Some(Principal {
            name: name.to_owned(),
            email: record.email,
            is_disabled: record.disabled,
            admin_channels: record.admin_channels.into_iter().collect(),
            admin_roles: record.admin_roles.into_iter().collect(),
            signs_in,
            generation: record.generation,
            changed,
        }))
    }
}

impl PrincipalWrite {
    /// Checks the sizes and names against the limits, since a client may be hostile.
    fn check(&self) -> std::result::Result<(), Refusal> {
        let refused = |reason: &str| Err(Refusal::InvalidSetting(reason.to_owned()));
        let is_role = self.kind == PrincipalKind::Role;
        let is_name = is_principal(&self.name) && !(is_role && self.name.is_empty());
        let are_roles = self.admin_roles.iter().all(|role| !role.is_empty() && is_principal(role));
        if !is_name || !are_roles || self.admin_channels.iter().any(|channel| check_channel(channel).is_err()) {
            return refused("a name of a user, role or channel is none");
        }
        if is_role && !(self.admin_roles.is_empty() && self.signs_in.is_none()) {
            return refused("roles have no roles and do not sign in");
        }
        let password = match &self.signs_in {
            Some(SignsIn::Password(hash)) => hash.len(),
            _ => 0,
        };
        let names: usize = self.admin_channels.iter().chain(&self.admin_roles).map(String::len).sum();
        let are_few = self.admin_channels.len() <= ADMIN_CHANNELS_MAX && self.admin_roles.len() <= ADMIN_ROLES_MAX;
        if !are_few || names > ADMIN_NAMES_BYTES_MAX || password > TEXT_BYTES_MAX || self.email.len() > TEXT_BYTES_MAX {
            return refused("too many channels or roles, or too long names");
        }
        Ok(())
    }

    fn things(&self) -> BTreeSet<GrantedItem> {
        things(self.kind, &self.name, &self.admin_channels, &self.admin_roles)
    }
}

/// Returns what an administrator gives a principal. A role is given itself, which makes it exist.
fn things<'a>(
    kind: PrincipalKind,
    name: &str,
    channels: impl IntoIterator<Item = &'a String>,
    roles: impl IntoIterator<Item = &'a String>,
) -> BTreeSet<GrantedItem> {
    let itself = (kind == PrincipalKind::Role).then(|| GrantedItem::Role(name.to_owned()));
    let channels = channels.into_iter().cloned().map(GrantedItem::Channel);
    channels.chain(roles.into_iter().cloned().map(GrantedItem::Role)).chain(itself).collect()
}

/// Returns what an administrator gave by a record.
fn things_of(kind: PrincipalKind, name: &str, record: &proto::Principal) -> BTreeSet<GrantedItem> {
    match record.exists {
        true => things(kind, name, &record.admin_channels, &record.admin_roles),
        false => BTreeSet::new(),
    }
}

impl WriteHandle {
    /// Performs `Database::put_principal` of the layer.
    #[boxed]
    pub async fn put_principal(&self, write: &PrincipalWrite) -> Result<PrincipalWriteOutcome> {
        write.check()?;
        let once = self.inner.once()?;
        let mut put = PutPrincipal { database: self, write, once, created: Vec::new() };
        transaction::write(&self.inner.db, &self.inner.metrics, &mut put).await
    }

    /// Performs `Database::delete_principal` of the layer.
    #[boxed]
    pub async fn delete_principal(&self, kind: PrincipalKind, name: &str) -> Result<bool> {
        let mut delete = DeletePrincipal { database: self, kind, name, once: self.inner.once()? };
        transaction::write(&self.inner.db, &self.inner.metrics, &mut delete).await
    }
}

impl ReadHandle {
    /// Performs `Reader::principal` of the layer.
    #[boxed]
    pub async fn principal(&self, kind: PrincipalKind, name: &str) -> Result<Option<PrincipalWithRights>> {
        self.read(&mut Find { inner: &self.inner, database: &self.name, kind, name }).await
    }

    /// Performs `Reader::principals` of the layer.
    #[boxed]
    pub async fn principals(&self, kind: PrincipalKind, behind: Option<&str>) -> Result<Vec<String>> {
        self.read(&mut List { inner: &self.inner, database: &self.name, kind, behind }).await
    }
}

/// Requires channels: programs that do not know channels would not maintain these keys.
pub(super) fn with_channels(instance: Arc<Instance>) -> Result<Arc<Instance>> {
    if instance.channels() == 0 {
        return Err(Refusal::InvalidSetting("the database has no channels".to_owned()).into());
    }
    Ok(instance)
}

/// Writes a record with the transaction's stamp, which is its last field. The transaction has noted the change of
/// access.
pub(super) fn set_record(trx: &Transaction, instance: &Instance, key: &[u8], record: proto::Principal, _: &AccessNote) {
    let changed = own_stamp(instance.epoch(), 0).to_vec();
    let mut operand = proto::Principal { changed, ..record }.encode_to_vec();
    let offset = operand.len().saturating_sub(STAMP_BYTES) as u32 + VERSIONSTAMP_OFFSET;
    operand.extend_from_slice(&offset.to_le_bytes());
    trx.atomic_op(key, &operand, MutationType::SetVersionstampedValue);
}

pub struct PutPrincipal<'a> {
    pub database: &'a WriteHandle,
    pub write: &'a PrincipalWrite,
    pub once: Once,
    /// The outcome of each attempt that reached its commit, by the number of its mark.
    pub created: Vec<PrincipalWriteOutcome>,
}

impl Operation for PutPrincipal<'_> {
    type Output = PrincipalWriteOutcome;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<PrincipalWriteOutcome> {
        // Other writers may have changed it since the earlier attempt.
        if let Some(number) = self.once.happened(trx, attempt).await? {
            let written = self.created.get(number as usize).copied();
            return written.ok_or_else(|| Error::Corrupt("a mark of no attempt".into()));
        }
        let (inner, write) = (&self.database.inner, self.write);
        let PrincipalWrite { kind, name, .. } = write;
        let (instance, writer) = inner.resolve_for(trx, &self.database.name, &self.database.actor).await?;
        writer.admitted(trx, &instance).await?;
        let (instance, kind) = (with_channels(instance)?, *kind);
        let key = instance.keys.principal(kind, name);
        let before = match trx.get(&key, false).await? {
            Some(bytes) => proto::Principal::decode(&*bytes)?,
            None => proto::Principal::default(),
        };
        if write.is_new && before.exists {
            return Ok(PrincipalWriteOutcome::Exists);
        }
        if !before.exists && kind == PrincipalKind::User && !name.is_empty() && write.signs_in.is_none() {
            return Ok(PrincipalWriteOutcome::NoPassword);
        }
        let (password, account) = match &write.signs_in {
            None => (before.password.clone(), before.account),
            // The guest does not sign in.
            Some(_) if name.is_empty() => (Vec::new(), false),
            Some(SignsIn::Not) => (Vec::new(), false),
            Some(SignsIn::Password(hash)) => (hash.clone(), false),
            Some(SignsIn::Account) => (Vec::new(), true),
        };
        let are_over = (&password, account) != (&before.password, before.account)
            || write.is_disabled && !before.disabled
            || !before.exists;
        let generation = before.generation + u64::from(are_over);
        // The server's account is another person than the user with a password here.
        let is_another = !before.exists || account != before.account;
        let after = proto::Principal {
            changed: before.changed.clone(),
            exists: true,
            email: write.email.clone(),
            disabled: write.is_disabled,
            password,
            account,
            generation,
            person: if is_another { generation } else { before.person },
            admin_channels: write.admin_channels.iter().cloned().collect(),
            admin_roles: write.admin_roles.iter().cloned().collect(),
        };
        let written = if before.exists { PrincipalWriteOutcome::Changed } else { PrincipalWriteOutcome::Created };
        if after == before {
            return Ok(written);
        }
        let (old, new) = (things_of(kind, name, &before), write.things());
        let mut shared = GrantChanges::default();
        for what in old.difference(&new) {
            shared.take(trx, &instance.keys, (kind, name.clone(), what.clone()), None);
        }
        for what in new.difference(&old) {
            shared.give(trx, &instance.keys, (kind, name.clone(), what.clone()), None);
        }
        let note = shared.finish_with(trx, &instance, (kind, name)).await?;
        set_record(trx, &instance, &key, after, &note);
        instance.touch(trx, 0)?;
        self.once.mark(trx);
        self.created.push(written);
        Ok(written)
    }
}

pub struct DeletePrincipal<'a> {
    pub database: &'a WriteHandle,
    pub kind: PrincipalKind,
    pub name: &'a str,
    pub once: Once,
}

impl Operation for DeletePrincipal<'_> {
    type Output = bool;

    async fn attempt(&mut self, trx: &Transaction, attempt: Attempt) -> Result<bool> {
        // Another principal of the name may exist since the earlier attempt.
        if self.once.happened(trx, attempt).await?.is_some() {
            return Ok(true);
        }
        let (inner, kind, name) = (&self.database.inner, self.kind, self.name);
        let (instance, writer) = inner.resolve_for(trx, &self.database.name, &self.database.actor).await?;
        writer.admitted(trx, &instance).await?;
        let instance = with_channels(instance)?;
        let key = instance.keys.principal(kind, name);
        let before = trx.get(&key, false).await?.map(|bytes| proto::Principal::decode(&*bytes)).transpose()?;
        let Some(before) = before.filter(|before| before.exists) else { return Ok(false) };
        // A later user of the name must not inherit past periods; those of a role belong to its users.
        let mut shared = match kind {
            PrincipalKind::User => GrantChanges::forgetting(),
            PrincipalKind::Role => GrantChanges::default(),
        };
        if kind == PrincipalKind::User {
            forget(trx, &instance.keys, name).await?;
            // The user as an account has local documents, too.
            for whose in [name, &format!(":{name}")] {
                let locals = instance.keys.principal_locals(whose);
                trx.clear_range(&locals.begin, &locals.end);
                trx.clear(&instance.keys.local_bytes(Some(whose)));
            }
        }
        for what in things_of(kind, name, &before) {
            shared.take(trx, &instance.keys, (kind, name.to_owned(), what), None);
        }
        let note = shared.finish_with(trx, &instance, (kind, name)).await?;
        let generation = before.generation + 1;
        set_record(trx, &instance, &key, proto::Principal { generation, ..proto::Principal::default() }, &note);
        instance.touch(trx, 0)?;
        self.once.mark(trx);
        Ok(true)
    }
}

/// Removes a user's past periods up to a limit.
async fn forget(trx: &Transaction, keys: &Keys, name: &str) -> Result<()> {
    let range = keys.periods_of(PrincipalKind::User, name);
    let rows = trx.range(&range, false).first(FORGOTTEN_MAX).await?;
    for row in rows.iter() {
        if crate::channels::holding::periods_of(row.value())?.open().is_none() {
            trx.clear(row.key());
        }
    }
    Ok(())
}

struct Find<'a> {
    inner: &'a Inner,
    database: &'a str,
    kind: PrincipalKind,
    name: &'a str,
}

impl Operation for Find<'_> {
    type Output = Option<PrincipalWithRights>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Option<PrincipalWithRights>> {
        let Find { inner, database, kind, name } = *self;
        let instance = inner.resolve(trx, database).await?;
        let Some(bytes) = trx.get(&instance.keys.principal(kind, name), true).await? else { return Ok(None) };
        let Some(principal) = Principal::decode(name, &bytes)? else { return Ok(None) };
        let held = match kind {
            PrincipalKind::User => held_by_user(trx, &instance.keys, name).await?,
            PrincipalKind::Role => held_by_role(trx, &instance.keys, name).await?,
        };
        Ok(Some(PrincipalWithRights { principal, held }))
    }
}

struct List<'a> {
    inner: &'a Inner,
    database: &'a str,
    kind: PrincipalKind,
    behind: Option<&'a str>,
}

impl Operation for List<'_> {
    type Output = Vec<String>;

    async fn attempt(&mut self, trx: &Transaction, _: Attempt) -> Result<Vec<String>> {
        let List { inner, database, kind, behind } = *self;
        let instance = inner.resolve(trx, database).await?;
        let mut range = instance.keys.principals(kind);
        if let Some(behind) = behind {
            range.begin = [&instance.keys.principal(kind, behind)[..], &[0]].concat();
        }
        let mut names = Vec::new();
        // Deleted principals are skipped, so that an empty page means the end.
        loop {
            let page = trx.range(&range, true).page(PAGE_NAMES_MAX).await?;
            for row in &page {
                if let PrincipalPart::Record { name, .. } = instance.keys.split_principals(row.key())?
                    && proto::Principal::decode(row.value())?.exists
                {
                    names.push(name);
                }
            }
            match page.rest {
                Some(rest) if names.is_empty() => range = rest,
                _ => return Ok(names),
            }
        }
    }
}
