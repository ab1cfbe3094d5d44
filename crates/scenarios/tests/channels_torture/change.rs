//! Changes by administrators: users, roles, and the function.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use flatbed_layer::channels::{PrincipalKind, PrincipalWrite, SignsIn};
use flatbed_testkit::{Random, WaitLoop};
use tokio::time::Instant;

use super::model::{CHANNELS, Mask, ROLES, USERS, User, bits, channel_name, role_name, user_name};
use super::write::function;
use super::{About, World, lock};

/// The shortest time between two functions.
const FUNCTION_FOR: Duration = Duration::from_millis(2_500);

/// The number of checks per second for the end of a function's routing.
const LOOKS_A_SECOND: u64 = 30;

fn names(mask: Mask) -> BTreeSet<String> {
    bits(mask).map(channel_name).collect()
}

/// Makes or changes a user, as an administrator.
pub async fn put_user(world: &World, user: usize, value: User, is_new: bool) {
    let mut admin_channels = names(value.channels);
    if value.has_all {
        admin_channels.insert("*".into());
    }
    let write = PrincipalWrite {
        kind: PrincipalKind::User,
        name: user_name(user),
        email: String::new(),
        is_disabled: value.is_disabled,
        admin_channels,
        admin_roles: bits(value.roles).map(|role| role_name(role as usize)).collect(),
        signs_in: is_new.then_some(SignsIn::Account),
        is_new: false,
    };
    let (version, began) = {
        let mut model = lock(&world.model);
        (model.users[user].begin(value), Instant::now())
    };
    until_made(|| world.database.put_principal(&write)).await;
    let mut model = lock(&world.model);
    model.users[user].acknowledge(version);
    if !is_new {
        model.lost[user].get_or_insert(began);
    }
}

/// Makes, changes or deletes a role.
pub async fn put_role(world: &World, role: usize, value: Option<Mask>, is_new: bool) {
    let (version, began) = {
        let mut model = lock(&world.model);
        (model.roles[role].begin(value), Instant::now())
    };
    match value {
        Some(channels) => {
            let write = PrincipalWrite {
                kind: PrincipalKind::Role,
                name: role_name(role),
                email: String::new(),
                is_disabled: false,
                admin_channels: names(channels),
                admin_roles: BTreeSet::new(),
                signs_in: None,
                is_new: false,
            };
            until_made(|| world.database.put_principal(&write)).await;
        }
        None => {
            let name = role_name(role);
            until_made(|| world.database.delete_principal(PrincipalKind::Role, &name)).await;
        }
    }
    let mut model = lock(&world.model);
    model.roles[role].acknowledge(version);
    if !is_new {
        for lost in &mut model.lost {
            lost.get_or_insert(began);
        }
    }
}

/// Repeats an attempt until it succeeds. All attempts are equal.
async fn until_made<T, F: Future<Output = flatbed_layer::Result<T>>>(make: impl Fn() -> F) {
    let mut waiting = WaitLoop::begin();
    while let Err(error) = make().await {
        waiting.pause(&error.to_string()).await;
    }
}

fn some_channels(random: &mut Random, count: u64) -> Mask {
    (0..random.below(count + 1)).map(|_| 1 << random.below(u64::from(CHANNELS))).fold(0, |all, one: Mask| all | one)
}

/// Makes the first users and roles.
pub async fn prepare(world: &World) {
    let mut random = Random(world.seed ^ 0x9e9);
    for role in 0..ROLES {
        if role > 0 {
            let channels = some_channels(&mut random, 5);
            put_role(world, role, Some(channels), true).await;
        }
    }
    for user in 0..USERS {
        let roles = if random.percent(60) { 1 << random.index(ROLES) } else { 0 };
        let channels = some_channels(&mut random, 6);
        put_user(world, user, User { channels, roles, has_all: user == 0, is_disabled: false }, true).await;
    }
}

pub async fn change(world: Arc<World>, number: u64) {
    let mut random = Random(world.seed ^ (0x2000 + number));
    while world.torture.pass(Duration::from_millis(random.below(150))).await {
        if random.percent(75) {
            let user = random.index(USERS);
            let _turn = world.principals[user].lock().await;
            let mut value = lock(&world.model).users[user].newest().clone();
            match random.below(100) {
                _ if value.is_disabled => value.is_disabled = false,
                0..45 => value.channels ^= 1 << random.below(u64::from(CHANNELS)),
                45..65 => {
                    let has: Vec<u32> = bits(value.channels).collect();
                    match has.get(random.index(has.len().max(1))) {
                        Some(channel) => value.channels &= !(1 << channel),
                        None => value.channels = some_channels(&mut random, 6),
                    }
                }
                65..85 => value.roles ^= 1 << random.index(ROLES),
                85..90 if user < 3 => value.has_all = !value.has_all,
                _ => value.is_disabled = true,
            }
            put_user(&world, user, value, false).await;
            world.note(About::User(user));
        } else {
            let role = random.index(ROLES);
            let _turn = world.principals[USERS + role].lock().await;
            let value = *lock(&world.model).roles[role].newest();
            let value = match value {
                Some(_) if random.percent(30) => None,
                Some(channels) => Some(channels ^ 1 << random.below(u64::from(CHANNELS))),
                None => Some(some_channels(&mut random, 5)),
            };
            put_role(&world, role, value, false).await;
        }
        world.count("changes of users and roles");
    }
}

/// Replaces the database's function repeatedly.
pub async fn functions(world: Arc<World>) {
    let mut random = Random(world.seed ^ 0x3000);
    while world.torture.pass(FUNCTION_FOR + Duration::from_millis(random.below(2_000))).await {
        let next = *lock(&world.model).functions.newest() + 1;
        let text = function(next);
        let version = {
            let mut model = lock(&world.model);
            let now = Instant::now();
            for lost in &mut model.lost {
                lost.get_or_insert(now);
            }
            model.functions.begin(next)
        };
        until_made(|| world.database.set_sync_function(Some(&text))).await;
        // The next function may come before the routing ends.
        for _ in 0..LOOKS_A_SECOND * (4 + random.below(20)) {
            if is_through(&world).await {
                lock(&world.model).functions.acknowledge(version);
                world.count("functions that came to all documents");
                break;
            }
            if !world.torture.pass(Duration::from_secs(1) / LOOKS_A_SECOND as u32).await {
                break;
            }
        }
        world.count("functions");
    }
}

/// Returns whether the newest function has routed all documents.
pub async fn is_through(world: &World) -> bool {
    matches!(world.database.resync_state().await, Ok(None))
}
