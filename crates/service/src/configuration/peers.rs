//! Addresses of peers that are believed.

use std::net::IpAddr;

/// Addresses, each alone or with all that share its first bits: `10.0.0.0/8`, `::1`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Peers(Vec<(IpAddr, u32)>);

impl Peers {
    /// Reads addresses with commas between them; `None`: one of them cannot be read.
    pub fn parse(text: &str) -> Option<Peers> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(one).collect::<Option<Vec<_>>>().map(Peers)
    }

    /// Whether an address is among them. An IPv4 address within IPv6 is the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|(network, bits)| match (network, address) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let other = u32::from(*network) ^ u32::from(address);
                other.checked_shr(32 - bits).unwrap_or(0) == 0
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let other = u128::from(*network) ^ u128::from(address);
                other.checked_shr(128 - bits).unwrap_or(0) == 0
            }
            _ => false,
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn one(text: &str) -> Option<(IpAddr, u32)> {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().ok()?;
    let all = if address.is_ipv4() { 32 } else { 128 };
    match bits {
        None => Some((address.to_canonical(), if address.to_canonical().is_ipv4() { 32 } else { 128 })),
        Some(bits) => bits.parse().ok().filter(|bits| *bits <= all).map(|bits| (address, bits)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks() {
        let peers = Peers::parse("10.0.0.0/8, ::1, 192.168.1.7,2001:db8::/32").unwrap();
        for (address, is_in) in [
            ("10.255.0.1", true),
            ("11.0.0.1", false),
            ("::1", true),
            ("::2", false),
            ("192.168.1.7", true),
            ("192.168.1.8", false),
            ("::ffff:192.168.1.7", true),
            ("2001:db8:1::", true),
            ("2001:db9::", false),
        ] {
            assert_eq!(peers.contains(address.parse().unwrap()), is_in, "{address}");
        }
        assert!(Peers::parse("0.0.0.0/0").unwrap().contains("1.2.3.4".parse().unwrap()));
        assert!(Peers::parse("").unwrap().is_empty());
        for wrong in ["x", "10.0.0.0/33", "::/129", "10.0.0.0/", "1.2.3"] {
            assert_eq!(Peers::parse(wrong), None, "{wrong}");
        }
    }
}
