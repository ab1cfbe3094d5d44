//! A resumable search of a regular expression in a long string.
//!
//! The search simulates the automaton as the engine does, without positions of groups. Between two bytes its only state
//! is the set of live automaton states.

use regex_automata::nfa::thompson::{NFA, State};
use regex_automata::util::primitives::StateID;

/// A search for a match that begins at the start of a string.
pub(crate) struct Search<'n> {
    nfa: &'n NFA,
    at: usize,
    is_match: bool,
    /// The states alive at this byte. Each of them consumes one byte.
    live: Vec<StateID>,
    next: Vec<StateID>,
    /// The round in which each state was last entered.
    entered: Vec<u32>,
    round: u32,
    stack: Vec<StateID>,
}

impl<'n> Search<'n> {
    pub(crate) fn begin(nfa: &'n NFA, text: &[u8]) -> Search<'n> {
        let mut search = Search::resume(nfa, 0, Vec::new());
        search.enter(nfa.start_unanchored(), text, 0);
        std::mem::swap(&mut search.live, &mut search.next);
        search
    }

    /// Resumes a search that paused at byte `at` with the states `live`.
    pub(crate) fn resume(nfa: &'n NFA, at: usize, live: Vec<StateID>) -> Search<'n> {
        let entered = vec![0; nfa.states().len()];
        Search { nfa, at, is_match: false, live, next: Vec::new(), entered, round: 1, stack: Vec::new() }
    }

    pub(crate) fn into_paused(self) -> (usize, Vec<StateID>) {
        (self.at, self.live)
    }

    /// Searches `bytes` bytes further. Returns whether the text matches, once that is decided.
    pub(crate) fn advance(&mut self, text: &[u8], bytes: usize) -> Option<bool> {
        for _ in 0..bytes {
            if self.is_match {
                return Some(true);
            }
            let Some(byte) = text.get(self.at).filter(|_| !self.live.is_empty()) else { return Some(false) };
            self.round += 1;
            let live = std::mem::take(&mut self.live);
            for id in &live {
                let next = match self.nfa.state(*id) {
                    State::ByteRange { trans } => trans.matches_byte(*byte).then_some(trans.next),
                    State::Sparse(transitions) => transitions.matches_byte(*byte),
                    State::Dense(transitions) => transitions.matches_byte(*byte),
                    // Only states that consume a byte are alive.
                    _ => None,
                };
                if let Some(next) = next {
                    self.enter(next, text, self.at + 1);
                }
            }
            self.at += 1;
            self.live = std::mem::replace(&mut self.next, live);
            self.next.clear();
        }
        // A pause does not keep a match.
        self.is_match.then_some(true)
    }

    /// Enters a state before the byte at `at`, and all states reachable from it without consuming a byte.
    fn enter(&mut self, state: StateID, text: &[u8], at: usize) {
        let nfa = self.nfa;
        self.stack.push(state);
        while let Some(id) = self.stack.pop() {
            match self.entered.get_mut(id.as_usize()) {
                Some(round) if *round != self.round => *round = self.round,
                _ => continue,
            }
            match nfa.state(id) {
                State::ByteRange { .. } | State::Sparse(_) | State::Dense(_) => self.next.push(id),
                State::Look { look, next } => {
                    if nfa.look_matcher().matches(*look, text, at) {
                        self.stack.push(*next);
                    }
                }
                State::Union { alternates } => self.stack.extend(alternates.iter()),
                State::BinaryUnion { alt1, alt2 } => self.stack.extend([*alt1, *alt2]),
                State::Capture { next, .. } => self.stack.push(*next),
                State::Match { .. } => self.is_match = true,
                State::Fail => {}
            }
        }
    }
}
