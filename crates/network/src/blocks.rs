//! Address blocks in settings.

use std::net::IpAddr;
use std::str::FromStr;

/// The name for clients of a Unix socket, which have no address.
const UNIX: &str = "unix";

/// The error for a text that is not an address block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an address, nor a block of addresses such as 10.0.0.0/8, nor unix")]
pub struct InvalidBlock(pub String);

/// Addresses with a common prefix (CIDR): one address or a network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    address: IpAddr,
    bits: u8,
}

impl Block {
    /// Creates the block of addresses that share `bits` with an address; `bits` is capped to the address length.
    pub const fn new(address: IpAddr, bits: u8) -> Block {
        Block { address, bits }
    }

    /// Returns whether the block contains an address. An IPv4-mapped IPv6 address equals the IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (address.to_canonical(), self.address) {
            (IpAddr::V4(address), IpAddr::V4(block)) => {
                let differ = address.to_bits() ^ block.to_bits();
                differ.leading_zeros() >= u32::from(self.bits).min(32)
            }
            (IpAddr::V6(address), IpAddr::V6(block)) => {
                let differ = address.to_bits() ^ block.to_bits();
                differ.leading_zeros() >= u32::from(self.bits).min(128)
            }
            _ => false,
        }
    }

    /// Returns whether all bits after the prefix are zero, as networks are written.
    pub fn is_network(&self) -> bool {
        let bits = self.bits.into();
        match self.address {
            IpAddr::V4(address) => address.to_bits() & u32::MAX.checked_shr(bits).unwrap_or(0) == 0,
            IpAddr::V6(address) => address.to_bits() & u128::MAX.checked_shr(bits).unwrap_or(0) == 0,
        }
    }
}

impl FromStr for Block {
    type Err = InvalidBlock;

    /// Parses an address, or one with a prefix length after a slash. An IPv4-mapped IPv6 block becomes an IPv4 block.
    fn from_str(text: &str) -> Result<Block, InvalidBlock> {
        let invalid = || InvalidBlock(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => most,
            // Rust would parse `+8` as a number.
            Some(bits) if bits.bytes().all(|byte| byte.is_ascii_digit()) => bits.parse().map_err(|_| invalid())?,
            Some(_) => return Err(invalid()),
        };
        if bits > most {
            return Err(invalid());
        }
        Ok(match (address, address.to_canonical()) {
            (IpAddr::V6(_), canonical @ IpAddr::V4(_)) if bits >= 96 => Block::new(canonical, bits - 96),
            _ => Block::new(address, bits),
        })
    }
}

/// A list of addresses and blocks; `unix` stands for clients without an address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Blocks {
    blocks: Vec<Block>,
    has_unix: bool,
}

impl Blocks {
    /// Returns whether the list is empty.
    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty() && !self.has_unix
    }

    /// Returns whether the list contains an address; `None`: a client without one.
    pub fn contains(&self, address: Option<IpAddr>) -> bool {
        match address {
            None => self.has_unix,
            Some(address) => self.blocks.iter().any(|block| block.contains(address)),
        }
    }
}

impl FromStr for Blocks {
    type Err = InvalidBlock;

    /// Parses a comma-separated list.
    fn from_str(text: &str) -> Result<Blocks, InvalidBlock> {
        let mut blocks = Blocks::default();
        for block in text.split(',').map(str::trim).filter(|block| !block.is_empty()) {
            match block {
                UNIX => blocks.has_unix = true,
                block => blocks.blocks.push(block.parse()?),
            }
        }
        Ok(blocks)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn contains(blocks: &str, address: &str) -> bool {
        blocks.parse::<Blocks>().unwrap().contains(Some(address.parse().unwrap()))
    }

    #[test]
    fn blocks_of_addresses() {
        let blocks = "10.0.0.0/8, 192.0.2.7,2001:db8::/32,::1";
        for address in ["10.255.1.2", "192.0.2.7", "2001:db8:ffff::1", "::1", "::ffff:10.1.1.1"] {
            assert!(contains(blocks, address), "{address}");
        }
        for address in ["11.0.0.0", "192.0.2.6", "2001:db9::", "::2", "::ffff:11.0.0.1", "::a00:1"] {
            assert!(!contains(blocks, address), "{address}");
        }
        assert!(contains("0.0.0.0/0", "255.1.1.1") && !contains("0.0.0.0/0", "::1") && contains("::/0", "::1"));
        assert!(contains("::ffff:10.0.0.0/104", "10.1.1.1") && !contains("::ffff:10.0.0.0/104", "11.1.1.1"));
        assert!(contains("::ffff:10.0.0.1", "10.0.0.1"));
    }

    #[test]
    fn networks_have_nothing_behind_their_bits() {
        let is_network = |text: &str| text.parse::<Block>().unwrap().is_network();
        for text in ["10.0.0.0/8", "10.0.0.1", "0.0.0.0/0", "::/0", "fd00::/8", "::1", "::ffff:10.0.0.0/104"] {
            assert!(is_network(text), "{text}");
        }
        for text in ["10.0.0.1/8", "0.0.0.1/0", "fd00::1/8", "::1/127", "::ffff:10.0.0.1/104"] {
            assert!(!is_network(text), "{text}");
        }
        assert!("unix".parse::<Block>().is_err());
    }

    #[test]
    fn clients_without_an_address() {
        let blocks: Blocks = "unix,127.0.0.1".parse().unwrap();
        assert!(blocks.contains(None) && !blocks.is_empty());
        assert!(!"127.0.0.1".parse::<Blocks>().unwrap().contains(None));
        let none: Blocks = " , ".parse().unwrap();
        assert!(none.is_empty() && !none.contains(None) && !none.contains(Some("::1".parse().unwrap())));
        assert!(!"unix".parse::<Blocks>().unwrap().is_empty());
    }

    #[test]
    fn what_names_nothing_is_refused() {
        for text in ["10.0.0.0/33", "::/129", "10.0.0/8", "a", "10.0.0.1/", "10.0.0.1/+8", "/8", "10.0.0.1:80", "[::1]"]
        {
            assert_eq!(text.parse::<Blocks>(), Err(InvalidBlock(text.to_owned())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_block_has_what_begins_as_it_does(block: u32, address: u32, bits in 0..=32_u8) {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            let text = format!("{}/{bits}", std::net::Ipv4Addr::from_bits(block));
            let near = (block & mask) | (address & !mask);
            prop_assert!(contains(&text, &std::net::Ipv4Addr::from_bits(near).to_string()));
            let is_in = (block ^ address) & mask == 0;
            prop_assert_eq!(contains(&text, &std::net::Ipv4Addr::from_bits(address).to_string()), is_in);
        }

        #[test]
        fn any_text_is_taken_or_refused(text in "[0-9a-f:./, unix]{0,40}") {
            let _ = text.parse::<Blocks>();
        }
    }
}
