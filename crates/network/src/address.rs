//! Identifies clients by their addresses.

use std::net::{IpAddr, Ipv4Addr};

/// A client's network: an IPv4 address, or the first 64 bits of an IPv6 address, since a client may use all addresses
/// of its /64. An IPv4-mapped IPv6 address equals the IPv4 address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Network {
    /// An address of IPv4.
    V4(Ipv4Addr),
    /// A /64 of IPv6.
    V6(u64),
}

impl Network {
    /// Returns the first 48 bits of an IPv6 address: the largest block that a provider gives to one customer.
    pub fn site(self) -> Option<u64> {
        match self {
            Network::V4(_) => None,
            Network::V6(bits) => Some(bits >> 16),
        }
    }
}

impl From<IpAddr> for Network {
    fn from(address: IpAddr) -> Network {
        match address.to_canonical() {
            IpAddr::V4(address) => Network::V4(address),
            IpAddr::V6(address) => Network::V6((address.to_bits() >> 64) as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_of_ipv6_has_64_bits() {
        let of = |text: &str| Network::from(text.parse::<IpAddr>().unwrap());
        assert_eq!(of("2001:db8:1:2::1"), of("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_eq!(of("2001:db8:1:2::1"), Network::V6(0x2001_0db8_0001_0002));
        assert_eq!(of("2001:db8:1:2::1").site(), of("2001:db8:1:3::1").site());
        assert_ne!(of("2001:db8:1:2::1").site(), of("2001:db8:2:2::1").site());
        assert_eq!(of("10.0.0.1").site(), None);
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
        assert_ne!(of("::1"), of("::ffff:0.0.0.1"));
    }
}
