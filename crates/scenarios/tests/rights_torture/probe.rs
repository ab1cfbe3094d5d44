//! Requests for the rights that a change revokes or grants, sent at once and again when all servers must know of it.

use std::time::Duration;

use flatbed_testkit::pass;
use tokio::time::Instant;

use super::ask::{Asked, one};
use super::model::{DATABASES, GRACE, Needs, Outcomes, ROLES, USERS, When, moment};
use super::proof::Proof;
use super::{About, Client, Phase, lock};

/// The number of probed losses, and of probed gains.
const PROBED: usize = 3;

/// After this time all servers know of a change.
const KNOWN_WITHIN: Duration = GRACE.saturating_add(Duration::from_millis(2));

/// The outcomes of a request before a change.
pub struct Probe {
    proof: Proof,
    needs: Needs,
    before: Outcomes,
}

impl Probe {
    fn now(&self, client: &Client) -> Outcomes {
        lock(&client.world.model).outcomes(&self.proof, self.needs, When::within(moment()))
    }
}

/// Collects the rights that a change will affect. Each server has read them by then.
pub async fn before(client: &mut Client, about: About) -> Vec<Probe> {
    let world = client.world.clone();
    let pairs: Vec<(usize, usize)> = match about {
        About::User(user) => (0..DATABASES).map(|database| (user, database)).collect(),
        About::Database(database) => (0..USERS).map(|user| (user, database)).collect(),
    };
    let mut probes = Vec::new();
    {
        let model = lock(&world.model);
        for (user, database) in pairs {
            let Some(salt) = model.salt(user) else { continue };
            let proof = Proof::session(&world.secret, user, &salt);
            for needs in [Needs::Member(database), Needs::Admin(database)] {
                let before = model.outcomes(&proof, needs, When::within(moment()));
                probes.push(Probe { proof: proof.clone(), needs, before });
            }
        }
    }
    let may = probes.iter().find(|probe| probe.before.is_answered()).or(probes.first());
    if let Some(Probe { proof, needs, .. }) = may {
        let servers = lock(&world.servers).clone();
        for server in servers {
            let database = needs.database().expect("one of a database");
            one(client, server, proof, Asked::read(database), &mut Vec::new()).await;
        }
    }
    probes
}

/// Writes with revoked rights, and reads a second later.
pub async fn after(client: &mut Client, probes: Vec<Probe>) {
    let changed = Instant::now();
    let (mut lost, mut won) = (Vec::new(), Vec::new());
    for probe in probes {
        let now = probe.now(client);
        if probe.before.is_answered() && !now.answered {
            lost.push(probe);
        } else if !probe.before.answered && now.is_answered() {
            won.push(probe);
        }
    }
    for probes in [&mut lost, &mut won] {
        while probes.len() > PROBED {
            let at = client.random.index(probes.len());
            probes.swap_remove(at);
        }
    }
    let is_calm = client.world.phase() == Phase::Calm;
    if !is_calm {
        probe(client, &lost, true).await;
    }
    if client.random.percent(if is_calm { 80 } else { 40 }) && !(lost.is_empty() && won.is_empty()) {
        pass((changed + KNOWN_WITHIN).saturating_duration_since(Instant::now())).await;
        lost.append(&mut won);
        probe(client, &lost, false).await;
    }
}

async fn probe(client: &mut Client, probes: &[Probe], writes: bool) {
    let servers = lock(&client.world.servers).clone();
    for Probe { proof, needs, .. } in probes {
        for server in servers.iter().copied() {
            if client.world.is_over() {
                return;
            }
            let asked = match needs {
                Needs::Member(database) if writes => Asked::write(*database, client.world.number()),
                Needs::Admin(database) if client.world.phase() != Phase::Calm => {
                    Asked::design(*database, client.world.number())
                }
                _ => Asked::read(needs.database().expect("one of a database")),
            };
            client.world.count("probes");
            one(client, server, proof, asked, &mut Vec::new()).await;
        }
    }
}

/// Returns tokens of a key that will be replaced. All servers have accepted them by then.
pub async fn tokens(client: &mut Client, key: usize) -> Vec<Proof> {
    let world = client.world.clone();
    let number = *lock(&world.model).keys[key].newest();
    let users: Vec<usize> = (0..PROBED).map(|_| client.random.index(USERS)).collect();
    let proofs: Vec<Proof> = users.into_iter().map(|user| world.token(key, number, user, vec![user % ROLES])).collect();
    who_they_are(client, &proofs).await;
    proofs
}

/// Checks the tokens after the replacement of their key.
pub async fn tokens_after(client: &mut Client, proofs: Vec<Proof>) {
    pass(KNOWN_WITHIN).await;
    who_they_are(client, &proofs).await;
}

async fn who_they_are(client: &mut Client, proofs: &[Proof]) {
    let servers = lock(&client.world.servers).clone();
    for proof in proofs {
        for server in servers.iter().copied() {
            if !client.world.is_over() {
                one(client, server, proof, Asked::session(), &mut Vec::new()).await;
            }
        }
    }
}
