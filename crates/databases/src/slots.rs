//! State that each subsystem keeps of a server or of a database.
//!
//! The owner does not know its subsystems: each state is created at its first use, and is found by its type. States are
//! few and are never removed, so finding one takes no lock.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// A subsystem's state of an owner: a server ([`Inner`](crate::server::Inner)) or a version of a database's record
/// ([`Instance`](crate::instance::Instance)).
pub trait State<O>: Any + Send + Sync {
    /// Makes the state. Must not use the owner's states.
    fn new_of(owner: &O) -> Self
    where
        Self: Sized;

    /// Returns whether something uses the state, so that a cached database that has it must not be evicted.
    fn is_used(&self) -> bool {
        false
    }

    /// Notes that the root was restored or renewed: nothing that was known of it holds any more.
    fn enter_epoch(&self) {}
}

/// The states of an owner.
pub struct Slots<O>(OnceLock<Box<Slot<O>>>);

struct Slot<O> {
    state: Box<dyn State<O>>,
    next: Slots<O>,
}

impl<O: 'static> Slots<O> {
    /// Returns states that begin with this one.
    pub fn with(state: impl State<O>) -> Slots<O> {
        Slots(OnceLock::from(Box::new(Slot { state: Box::new(state), next: Slots::default() })))
    }

    /// Returns the state of this type. `owner` makes it if there is none.
    pub fn get<T: State<O>>(&self, owner: &O) -> &T {
        let mut slots = self;
        loop {
            let make = || Box::new(Slot { state: Box::new(T::new_of(owner)), next: Slots::default() });
            let slot = slots.0.get_or_init(make);
            if let Some(state) = slot.found() {
                return state;
            }
            slots = &slot.next;
        }
    }

    /// Returns the state of this type, if it was made.
    pub fn find<T: State<O>>(&self) -> Option<&T> {
        self.iter().find_map(Slot::found)
    }

    /// Returns whether any of the states is in use.
    pub fn is_any_used(&self) -> bool {
        self.iter().any(|slot| slot.state.is_used())
    }

    /// Calls [`State::enter_epoch`] for each.
    pub fn enter_epoch(&self) {
        self.iter().for_each(|slot| slot.state.enter_epoch());
    }

    fn iter(&self) -> impl Iterator<Item = &Slot<O>> {
        std::iter::successors(self.0.get(), |slot| slot.next.0.get()).map(|slot| &**slot)
    }
}

impl<O: 'static> Slot<O> {
    fn found<T: State<O>>(&self) -> Option<&T> {
        let state: &dyn Any = &*self.state;
        state.downcast_ref()
    }
}

/// Returns whether the states of a cached owner are used, or shared with another owner that is.
pub fn are_used<O: 'static>(shared: &Arc<Slots<O>>) -> bool {
    Arc::strong_count(shared) > 1 || shared.is_any_used()
}

impl<O> Default for Slots<O> {
    fn default() -> Self {
        Slots(OnceLock::new())
    }
}

impl<O: 'static> fmt::Debug for Slots<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("states", &self.iter().count()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Owner(AtomicUsize);

    struct One(usize);

    impl State<Owner> for One {
        fn new_of(owner: &Owner) -> One {
            One(owner.0.fetch_add(1, Ordering::Relaxed) + 1)
        }
    }

    struct Other(Arc<()>);

    impl State<Owner> for Other {
        fn new_of(_: &Owner) -> Other {
            Other(Arc::default())
        }

        fn is_used(&self) -> bool {
            Arc::strong_count(&self.0) > 1
        }
    }

    #[test]
    fn a_state_is_made_once_and_found_by_its_type() {
        let (owner, slots) = (Owner(AtomicUsize::new(0)), Slots::default());
        assert!(slots.find::<One>().is_none());
        let other: &Other = slots.get(&owner);
        assert_eq!((slots.get::<One>(&owner).0, slots.get::<One>(&owner).0), (1, 1));
        assert!(Arc::ptr_eq(&other.0, &slots.get::<Other>(&owner).0));
        assert_eq!(slots.find::<One>().map(|one| one.0), Some(1));
        let given = Slots::with(One(7));
        assert_eq!(given.get::<One>(&owner).0, 7);
    }

    #[test]
    fn states_are_used_with_what_they_share() {
        let (owner, slots) = (Owner(AtomicUsize::new(0)), Arc::new(Slots::default()));
        let other: Arc<()> = slots.get::<Other>(&owner).0.clone();
        assert!(are_used(&slots));
        drop(other);
        assert!(!are_used(&slots));
        let same = slots.clone();
        assert!(are_used(&slots));
        drop(same);
        assert!(!are_used(&slots));
    }
}
