//! The memory of arriving bodies by address.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use hyper::StatusCode;

use crate::metrics::{Bound, Traffic};
use crate::rejection::{Rejection, Result};
use crate::turns::ClientNetwork;

#[derive(Debug, Default)]
pub(crate) struct Shares(Mutex<HashMap<ClientNetwork, usize>>);

#[derive(Debug, Clone)]
pub(crate) struct Sender {
    pub who: ClientNetwork,
    /// The percentage of the memory that its bodies may use.
    pub percent: usize,
    pub traffic: Arc<Traffic>,
}

#[derive(Debug)]
pub(crate) struct Share {
    of: Arc<Shares>,
    who: ClientNetwork,
    bytes: usize,
}

impl Shares {
    /// Takes more bytes of an address's share, whose limit is `most`.
    ///
    /// # Errors
    /// 429 if the limit is reached.
    pub(crate) fn grow(
        self: &Arc<Self>,
        held: &mut Option<Share>,
        sender: &Sender,
        bytes: usize,
        most: usize,
    ) -> Result<()> {
        let mut shares = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let all = shares.entry(sender.who).or_default();
        if *all + bytes > most {
            if *all == 0 {
                shares.remove(&sender.who);
            }
            sender.traffic.refused.of(Bound::MemoryByAddress).add(1);
            let reason = "The bodies of this address take too much memory.";
            return Err(Rejection::new(StatusCode::TOO_MANY_REQUESTS, "too_many_requests", reason));
        }
        *all += bytes;
        held.get_or_insert_with(|| Share { of: self.clone(), who: sender.who, bytes: 0 }).bytes += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut shares = self.of.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(all) = shares.get_mut(&self.who) {
            *all = all.saturating_sub(self.bytes);
            if *all == 0 {
                shares.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share() {
        let shares = Arc::new(Shares::default());
        let sender = |n: u8| {
            let who = Some(std::net::IpAddr::from([192, 0, 2, n]).into());
            Sender { who, percent: 50, traffic: Arc::default() }
        };
        let (mut one, mut two, mut other) = (None, None, None);
        assert!(
            shares.grow(&mut one, &sender(1), 60, 100).is_ok() && shares.grow(&mut one, &sender(1), 20, 100).is_ok()
        );
        assert_eq!(shares.grow(&mut two, &sender(1), 30, 100).unwrap_err().status.as_u16(), 429);
        assert!(two.is_none() && shares.grow(&mut other, &sender(2), 100, 100).is_ok());
        assert!(shares.grow(&mut two, &sender(1), 20, 100).is_ok());
        drop(one);
        assert!(shares.grow(&mut two, &sender(1), 80, 100).is_ok());
        assert!(shares.grow(&mut None, &sender(3), 101, 100).is_err());
        drop((two, other));
        assert!(shares.0.lock().unwrap().is_empty());
    }
}
