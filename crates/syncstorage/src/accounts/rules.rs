//! The effect of a sign-in on an account, and the reasons for its refusal.
//!
//! A server detects from three values of an account that a device is behind. The generation grows when the account's
//! password changes; `keys_changed_at` grows with the account's keys; the client state is a part of a hash of the keys.
//! None of them goes back, and the client state never returns to a former one. After a new client state the stored data
//! cannot be read with the new keys: the account gets a new user, and an empty storage.

/// The former client states that are kept; older ones are forgotten. A device with one of those has an old generation,
/// too.
pub(super) const OLD_STATES_MAX: usize = 64;

/// A device's signed statement about its account.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// The account's id, at most [`Claim::ACCOUNT_BYTES_MAX`] bytes.
    pub account: String,
    /// The account's generation, if stated.
    pub generation: Option<u64>,
    /// The time of the keys' last change, if stated.
    pub keys_changed_at: Option<u64>,
    /// The client state, which identifies the keys: at most [`Claim::STATE_BYTES_MAX`] bytes.
    pub client_state: Vec<u8>,
}

impl Claim {
    /// The longest id of an account, in bytes.
    pub const ACCOUNT_BYTES_MAX: usize = 255;

    /// The longest client state, in bytes.
    pub const STATE_BYTES_MAX: usize = 64;
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AccountState {
    /// The greatest generation of all claims.
    pub generation: u64,
    /// The greatest time of the keys in all claims, if any.
    pub keys_changed_at: Option<u64>,
    /// The newest client state.
    pub client_state: Vec<u8>,
    /// Former client states, oldest first.
    pub old_states: Vec<Vec<u8>>,
}

/// The reason why a sign-in is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The account's password has changed since the claim.
    #[error("the generation is lower than one seen before")]
    Generation,
    /// The account's keys have changed since the claim.
    #[error("keys_changed_at is lower than one seen before, or missing")]
    KeysChangedAt,
    /// The keys changed later than the account, which is impossible.
    #[error("keys_changed_at is greater than the generation")]
    KeysBeyondGeneration,
    /// The client state is another one, and the claim does not show that it is newer.
    #[error("{0}")]
    ClientState(StateRefusal),
    /// The account is not admitted, or the limit of users is reached.
    #[error("the account may not have a user here")]
    Closed,
}

/// The defect of a client state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StateRefusal {
    /// It is a former client state.
    #[error("the client state is an earlier one")]
    Stale,
    /// It is empty, and the account's is not.
    #[error("the client state is empty, and was not before")]
    Empty,
    /// It is new, but the generation is not.
    #[error("the client state is new, and the generation is not")]
    SameGeneration,
    /// It is new, but the keys' time is not.
    #[error("the client state is new, and keys_changed_at is not")]
    SameKeysChangedAt,
}

impl AccountState {
    pub(super) fn first(claim: &Claim) -> AccountState {
        AccountState {
            generation: claim.generation.or(claim.keys_changed_at).unwrap_or_default(),
            keys_changed_at: claim.keys_changed_at,
            client_state: claim.client_state.clone(),
            old_states: Vec::new(),
        }
    }

    /// Returns the state after the claim, and whether the client state is new.
    ///
    /// # Errors
    /// [`Refusal`], checked in the order of Mozilla's server.
    pub(super) fn advance(&self, claim: &Claim) -> Result<(AccountState, bool), Refusal> {
        let state = |refusal| Err(Refusal::ClientState(refusal));
        let keys_are_newer = claim.keys_changed_at > self.keys_changed_at;
        if let (true, Some(keys), Some(generation)) =
            (self.keys_changed_at.is_some() && keys_are_newer, claim.keys_changed_at, claim.generation)
            && keys > generation
        {
            return Err(Refusal::KeysBeyondGeneration);
        }
        if claim.client_state.is_empty() && !self.client_state.is_empty() {
            return state(StateRefusal::Empty);
        }
        if self.old_states.contains(&claim.client_state) {
            return state(StateRefusal::Stale);
        }
        let is_new = claim.client_state != self.client_state;
        if is_new && claim.generation.is_some_and(|generation| generation <= self.generation) {
            return state(StateRefusal::SameGeneration);
        }
        if is_new && claim.keys_changed_at.is_some() && self.keys_changed_at.is_some() && !keys_are_newer {
            return state(StateRefusal::SameKeysChangedAt);
        }
        if claim.generation.is_some_and(|generation| generation < self.generation) {
            return Err(Refusal::Generation);
        }
        if claim.keys_changed_at < self.keys_changed_at {
            return Err(Refusal::KeysChangedAt);
        }
        let mut old_states = self.old_states.clone();
        if is_new {
            if old_states.len() >= OLD_STATES_MAX {
                old_states.remove(0);
            }
            old_states.push(self.client_state.clone());
        }
        let of_keys = claim.keys_changed_at.filter(|_| keys_are_newer).unwrap_or_default();
        Ok((
            AccountState {
                generation: claim.generation.unwrap_or_else(|| self.generation.max(of_keys)),
                keys_changed_at: claim.keys_changed_at.or(self.keys_changed_at),
                client_state: claim.client_state.clone(),
                old_states,
            },
            is_new,
        ))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn claim(generation: u64, keys_changed_at: u64, client_state: &str) -> Claim {
        let some = |number| Some(number).filter(|number| *number != 0);
        Claim {
            account: "a".into(),
            generation: some(generation),
            keys_changed_at: some(keys_changed_at),
            client_state: client_state.into(),
        }
    }

    /// Applies claims in order. Returns for each whether the client state is new, or the refusal.
    fn follow(claims: &[(u64, u64, &str)]) -> Vec<Result<bool, Refusal>> {
        let mut known: Option<AccountState> = None;
        claims
            .iter()
            .map(|(generation, keys_changed_at, state)| {
                let claim = claim(*generation, *keys_changed_at, state);
                let (next, is_new) = match &known {
                    None => (AccountState::first(&claim), true),
                    Some(known) => known.advance(&claim)?,
                };
                known = Some(next);
                Ok(is_new)
            })
            .collect()
    }

    #[test]
    fn nothing_goes_back() {
        let (new, old) = (Ok(true), Ok(false));
        let state = |refusal| Err(Refusal::ClientState(refusal));
        assert_eq!(follow(&[(5, 5, "a"), (4, 5, "a"), (5, 5, "a")]), [new, Err(Refusal::Generation), old]);
        assert_eq!(follow(&[(5, 5, "a"), (6, 4, "a")]), [new, Err(Refusal::KeysChangedAt)]);
        assert_eq!(follow(&[(5, 5, "a"), (5, 6, "a"), (6, 6, "a")]), [new, Err(Refusal::KeysBeyondGeneration), old]);
        assert_eq!(follow(&[(5, 6, "a")]), [new]);
        assert_eq!(
            follow(&[(5, 0, "a"), (6, 0, "a"), (7, 7, "a"), (8, 0, "a")]),
            [new, old, old, Err(Refusal::KeysChangedAt)]
        );
        assert_eq!(follow(&[(0, 5, "a"), (0, 6, "a"), (0, 5, "a")]), [new, old, Err(Refusal::KeysChangedAt)]);
        // A claim without a generation counts with the keys' time, at first and later.
        assert_eq!(follow(&[(0, 5, "a"), (4, 5, "a")]), [new, Err(Refusal::Generation)]);
        assert_eq!(follow(&[(0, 5, "a"), (0, 6, "a"), (5, 6, "a")]), [new, old, Err(Refusal::Generation)]);
        assert_eq!(
            follow(&[(5, 5, "a"), (6, 6, "b"), (7, 7, "a"), (7, 7, "c"), (6, 6, "b")]),
            [new, new, state(StateRefusal::Stale), new, state(StateRefusal::Stale)]
        );
        assert_eq!(
            follow(&[(5, 5, "a"), (5, 5, "b"), (6, 5, "b"), (5, 6, "b"), (6, 6, "b")]),
            [
                new,
                state(StateRefusal::SameGeneration),
                state(StateRefusal::SameKeysChangedAt),
                Err(Refusal::KeysBeyondGeneration),
                new
            ]
        );
        assert_eq!(follow(&[(5, 5, "a"), (6, 6, "")]), [new, state(StateRefusal::Empty)]);
        assert_eq!(follow(&[(5, 5, ""), (6, 6, "a"), (7, 7, "")]), [new, new, state(StateRefusal::Empty)]);
    }

    #[test]
    fn of_old_states_the_oldest_are_forgotten() {
        let mut known = AccountState::first(&claim(1, 1, "state 1"));
        for at in 2..=100 {
            known = known.advance(&claim(at, at, &format!("state {at}"))).unwrap().0;
        }
        assert_eq!(known.old_states.len(), OLD_STATES_MAX);
        let first = 100 - OLD_STATES_MAX as u64;
        assert_eq!(known.old_states.first().unwrap(), format!("state {first}").as_bytes());
        assert_eq!(known.old_states.last().unwrap(), b"state 99");
    }

    proptest! {
        #[test]
        fn what_is_known_only_grows(claims in prop::collection::vec((0_u64..9, 0_u64..9, "[a-c]?"), 1..40)) {
            let mut known: Option<AccountState> = None;
            for (generation, keys_changed_at, state) in claims {
                let claim = claim(generation, keys_changed_at, &state);
                let Some(before) = known.take() else { known = Some(AccountState::first(&claim)); continue };
                let Ok((after, is_new)) = before.advance(&claim) else { known = Some(before); continue };
                prop_assert!(after.generation >= before.generation && after.keys_changed_at >= before.keys_changed_at);
                prop_assert_eq!(is_new, after.client_state != before.client_state);
                prop_assert!(!before.old_states.contains(&after.client_state));
                prop_assert!(after.old_states.len() <= OLD_STATES_MAX && after.old_states.starts_with(&before.old_states));
                // Repeating the claim, as after a lost answer, changes nothing.
                prop_assert_eq!(after.advance(&claim), Ok((after.clone(), false)));
                known = Some(after);
            }
        }
    }
}
