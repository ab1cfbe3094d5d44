//! Classifies addresses as public or internal. Pure.
//!
//! The list has the networks that must not be reached through this server. In IPv6 only 2000::/3 is allocated for
//! public use; everything else is refused.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flatbed_network::Block;

/// Networks of IPv4 that are not public, with prefix lengths. IANA lists most of them (IPv4 Special-Purpose Address
/// Registry).
const CLOSED_V4: &[Block] = &[
    v4([0, 0, 0, 0], 8),        // this network, unspecified: means this machine to most systems
    v4([10, 0, 0, 0], 8),       // private
    v4([100, 64, 0, 0], 10),    // carriers' NAT; 100.100.100.200 is a metadata service
    v4([127, 0, 0, 0], 8),      // loopback
    v4([168, 63, 129, 16], 32), // a cloud's metadata service, on an address that looks public
    v4([169, 254, 0, 0], 16),   // link-local, and metadata services
    v4([172, 16, 0, 0], 12),    // private
    v4([192, 0, 0, 0], 24),     // protocol assignments
    v4([192, 0, 2, 0], 24),     // documentation
    v4([192, 88, 99, 0], 24),   // relays of 6to4
    v4([192, 168, 0, 0], 16),   // private
    v4([198, 18, 0, 0], 15),    // benchmarks
    v4([198, 51, 100, 0], 24),  // documentation
    v4([203, 0, 113, 0], 24),   // documentation
    v4([224, 0, 0, 0], 4),      // multicast
    v4([240, 0, 0, 0], 4),      // reserved, broadcast
];

/// The public part of IPv6.
const UNICAST_V6: Block = v6(0x2000, 0, 3);

/// Networks in it that are not public.
const CLOSED_V6: &[Block] = &[
    v6(0x2001, 0, 23),     // protocol assignments: Teredo, benchmarks, ORCHID
    v6(0x2001, 0xdb8, 32), // documentation
    v6(0x2002, 0, 16),     // 6to4, whichever address it wraps
    v6(0x3fff, 0, 20),     // documentation
];

/// NAT64 (RFC 6052): an IPv4 address in the last 32 bits, for networks without IPv4.
const NAT64: Block = v6(0x64, 0xff9b, 96);

const fn v4([a, b, c, d]: [u8; 4], bits: u8) -> Block {
    Block::new(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), bits)
}

/// Builds a block from the first 32 bits of its address; the others are zero.
const fn v6(first: u16, second: u16, bits: u8) -> Block {
    Block::new(IpAddr::V6(Ipv6Addr::new(first, second, 0, 0, 0, 0, 0, 0)), bits)
}

/// Returns whether an address is public: not of this machine, not of an internal network, and not a wrapper of such an
/// address.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    !CLOSED_V4.iter().any(|block| block.contains(address.into()))
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    // The system connects to the wrapped address.
    if let Some(wrapped) = address.to_ipv4_mapped() {
        return is_public_v4(wrapped);
    }
    let [.., a, b, c, d] = address.octets();
    let last = Ipv4Addr::new(a, b, c, d);
    if NAT64.contains(address.into()) {
        return is_public_v4(last);
    }
    // ISATAP (RFC 5214): an internal router may unwrap the address.
    let [.., universal, isatap, _, _] = address.segments();
    if isatap == 0x5efe && universal & !0x0200 == 0 && !is_public_v4(last) {
        return false;
    }
    UNICAST_V6.contains(address.into()) && !CLOSED_V6.iter().any(|block| block.contains(address.into()))
}

/// The error for an invalid entry of a list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is neither an address, nor a network such as 10.0.0.0/8 without bits behind its length, nor a host's name"
)]
pub struct AllowedError(String);

/// An address block or host that may be reached although it is not public.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Entry {
    Block(Block),
    /// In lower case, without a trailing dot.
    Host(String),
}

/// The internal networks and hosts that every replication may reach.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AllowedAddresses(Vec<Entry>);

impl AllowedAddresses {
    /// Parses a comma-separated list of addresses, networks (`10.0.0.0/8`, `fd00::/8`) and host names. An address is
    /// compared with the addresses that a name resolves to; a name is compared with the name itself, whatever it
    /// resolves to. An empty text lists nothing.
    ///
    /// # Errors
    /// [`AllowedError`] names the first entry that cannot be read.
    pub fn parse(text: &str) -> Result<AllowedAddresses, AllowedError> {
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        entries
            .map(|text| entry(text).ok_or_else(|| AllowedError(text.to_owned())))
            .collect::<Result<_, _>>()
            .map(AllowedAddresses)
    }

    /// Returns whether an address is listed. An IPv4 address equals its IPv6 form (`::ffff:10.0.0.1`).
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.0.iter().any(|entry| matches!(entry, Entry::Block(block) if block.contains(address)))
    }

    /// Returns whether a host is listed by name.
    pub fn has_host(&self, host: &str) -> bool {
        let host = plain(host);
        self.0.iter().any(|entry| matches!(entry, Entry::Host(name) if *name == host))
    }
}

fn plain(host: &str) -> String {
    host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase()
}

fn entry(text: &str) -> Option<Entry> {
    if let Ok(block) = text.parse::<Block>() {
        return block.is_network().then_some(Entry::Block(block));
    }
    let name = plain(text);
    let is_label = |label: &str| {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(is_of_name)
    };
    // A name that ends in a number, such as 127.1 or 0x7f.1, is an address to the system's resolver.
    let is_name = name.len() <= 253
        && name.split('.').all(is_label)
        && name.rsplit('.').next().is_some_and(|last| !last.starts_with(|first: char| first.is_ascii_digit()));
    is_name.then_some(Entry::Host(name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn closed_addresses_and_their_neighbours() {
        for text in [
            "0.0.0.0",
            "0.255.255.255",
            "10.0.0.0",
            "10.255.255.255",
            "100.64.0.0",
            "100.100.100.200",
            "100.127.255.255",
            "127.0.0.1",
            "127.255.255.255",
            "168.63.129.16",
            "169.254.0.0",
            "169.254.169.254",
            "169.254.170.2",
            "172.16.0.0",
            "172.31.255.255",
            "192.0.0.1",
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.0.1",
            "198.18.0.1",
            "198.19.255.255",
            "198.51.100.7",
            "203.0.113.7",
            "224.0.0.1",
            "239.255.255.255",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::8.8.8.8",
            "::ffff:127.0.0.1",
            "::ffff:10.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:127.0.0.1",
            "::ffff:0:8.8.8.8",
            "64:ff9b::127.0.0.1",
            "64:ff9b::10.1.2.3",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::8.8.8.8",
            "64:ff9b:0:1::8.8.8.8",
            "100::1",
            "2001::1",
            "2001:0:4136:e378:8000:63bf:3fff:fdd2",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "2001:1ff:ffff::1",
            "2001:db8::1",
            "2002:7f00:1::1",
            "2002:808:808::1",
            "3fff::1",
            "3fff:fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fe80::1",
            "fe80::a9fe:a9fe",
            "fec0::1",
            "ff02::1",
            "ff0e::1",
            "2a00::5efe:10.0.0.1",
            "2a00::200:5efe:192.168.1.1",
            "4000::1",
        ] {
            assert!(!is_public(address(text)), "{text}");
        }
        for text in [
            "1.0.0.0",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "168.63.129.15",
            "168.63.129.17",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "191.255.255.255",
            "192.0.1.0",
            "192.0.3.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2001:200::1",
            "2001:db7::1",
            "2001:db9::1",
            "2003::1",
            "2606:4700::1111",
            "2a00::5efe:8.8.8.8",
            "3ffe::1",
            "3fff:1000::1",
            "2a00::1",
        ] {
            assert!(is_public(address(text)), "{text}");
        }
    }

    #[test]
    fn lists() {
        let allowed = AllowedAddresses::parse(" 10.0.0.0/8, fd00::/8 ,127.0.0.1,::1, Couch.Internal.,a-b_c, ").unwrap();
        for text in ["10.0.0.0", "10.255.255.255", "::ffff:10.1.1.1", "127.0.0.1", "::1", "fd12::1", "::ffff:127.0.0.1"]
        {
            assert!(allowed.has_address(address(text)), "{text}");
        }
        for text in ["11.0.0.0", "9.255.255.255", "127.0.0.2", "::2", "fc00::1", "::10.0.0.1", "64:ff9b::10.0.0.1"] {
            assert!(!allowed.has_address(address(text)), "{text}");
        }
        for host in ["couch.internal", "COUCH.internal.", "a-b_c"] {
            assert!(allowed.has_host(host), "{host}");
        }
        for host in ["internal", "x.couch.internal", "couch.internal..", "couch.internal.example", ""] {
            assert!(!allowed.has_host(host), "{host}");
        }
        // IPv4 in its IPv6 form is IPv4.
        assert_eq!(
            AllowedAddresses::parse("::ffff:10.0.0.0/104,::ffff:10.0.0.1"),
            AllowedAddresses::parse("10.0.0.0/8,10.0.0.1")
        );
        assert_eq!(AllowedAddresses::parse(""), Ok(AllowedAddresses::default()));
        assert!(!AllowedAddresses::default().has_address(address("8.8.8.8")));
        let everything = AllowedAddresses::parse("0.0.0.0/0,::/0").unwrap();
        assert!(everything.has_address(address("127.0.0.1")) && everything.has_address(address("::1")));
    }

    #[test]
    fn what_is_no_entry() {
        for text in [
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/-1",
            "/8",
            "fd00::1/8",
            "::/129",
            "[::1]",
            "::ffff:10.0.0.1/104",
            "127.1",
            "0x7f.1",
            "2130706433",
            "a..b",
            ".",
            "*",
            "*.a",
            "a b",
            "http://a",
            "a:80",
            "a/8",
            "1a",
            "::1%lo",
        ] {
            assert_eq!(AllowedAddresses::parse(&format!("a,{text}")), Err(AllowedError(text.to_owned())), "{text}");
        }
        assert!(
            AllowedAddresses::parse(&"a".repeat(64)).is_err()
                && AllowedAddresses::parse(&["a"; 128].join(".")).is_err()
        );
    }

    /// Returns the standard library's classification of an address.
    fn is_closed_by_name(address: Ipv4Addr) -> bool {
        address.is_private()
            || address.is_loopback()
            || address.is_link_local()
            || address.is_multicast()
            || address.is_broadcast()
            || address.is_documentation()
            || address.is_unspecified()
    }

    proptest! {
        #[test]
        fn what_has_a_name_is_closed_in_every_form(bits in any::<u32>()) {
            let v4 = Ipv4Addr::from_bits(bits);
            let is_open = is_public(v4.into());
            prop_assert!(!(is_closed_by_name(v4) && is_open));
            prop_assert_eq!(is_public(v4.to_ipv6_mapped().into()), is_open);
            let wrapped = |first: u128, shift: u32| IpAddr::V6(Ipv6Addr::from_bits(first << 96 | u128::from(bits) << shift));
            prop_assert_eq!(is_public(wrapped(0x0064_ff9b, 0)), is_open);
            prop_assert!(!is_public(wrapped(0, 0)));
            prop_assert!(!is_public(wrapped(0x2002_0000, 80)));
        }

        #[test]
        fn what_has_a_name_is_closed_in_ipv6(bits in any::<u128>(), first in prop::sample::select(&[0xfc_u128, 0xfd, 0xfe, 0xff, 0, 0x20, 0x2a][..])) {
            let v6 = Ipv6Addr::from_bits(bits >> 8 | first << 120);
            let is_closed = v6.is_unique_local() || v6.is_unicast_link_local() || v6.is_multicast() || v6.is_loopback();
            prop_assert!(!(is_closed && is_public(v6.into())));
            prop_assert!(!is_public(v6.into()) || v6.segments()[0] >> 13 == 1);
        }

        #[test]
        fn networks_are_what_their_bits_say(bits in any::<u32>(), other in any::<u32>(), length in 0_u8..=32) {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            let allowed = AllowedAddresses::parse(&format!("{}/{length}", Ipv4Addr::from_bits(bits & mask))).unwrap();
            prop_assert_eq!(allowed.has_address(Ipv4Addr::from_bits(other).into()), other & mask == bits & mask);
            let last = bits & mask | other & !mask;
            prop_assert!(allowed.has_address(Ipv4Addr::from_bits(last).into()));
        }

        #[test]
        fn networks_of_ipv6_are_what_their_bits_say(bits in any::<u128>(), other in any::<u128>(), length in 0_u8..=128) {
            // Excludes the mapped form, which is IPv4.
            let bits = bits | 1 << 127;
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            let allowed = AllowedAddresses::parse(&format!("{}/{length}", Ipv6Addr::from_bits(bits & mask))).unwrap();
            let other = other | 1 << 126;
            prop_assert_eq!(allowed.has_address(Ipv6Addr::from_bits(other).into()), other & mask == bits & mask);
            prop_assert!(allowed.has_address(Ipv6Addr::from_bits(bits & mask | other & !mask).into()));
        }

        #[test]
        fn any_text_is_read_to_its_end(text in "[0-9a-fx:./%,\\[\\] -]{0,40}") {
            let _ = AllowedAddresses::parse(&text);
        }
    }
}
