//! Which addresses may be dialled.
//!
//! The tables below are the special-purpose registries of IANA, plus one address of a cloud's host agent. What
//! they leave over is public unicast. An operator adds ranges (`egress.allow`); nothing else widens the answer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ipnet::IpNet;

/// The addresses an installation may send to: public ones, and the ranges its operator allows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    allow: Vec<IpNet>,
    /// Where this process itself listens.
    own: Option<SocketAddr>,
}

impl Policy {
    /// Public addresses and these ranges. A range of IPv4 also admits the IPv4-mapped form of its addresses and no
    /// other embedding.
    pub fn new(allow: Vec<IpNet>) -> Self {
        Self { allow, own: None }
    }

    /// The same, but never this address, where the process itself listens: whoever could send there would speak to the
    /// API with the trust of this machine.
    pub fn except(self, own: SocketAddr) -> Self {
        Self { own: Some(own), ..self }
    }

    /// Whether somebody who dials this address reaches this very process. Listening at every address of a machine, and
    /// dialling none in particular, both include its loopback.
    pub fn is_own(&self, address: SocketAddr) -> bool {
        let Some(own) = self.own.filter(|own| own.port() == address.port()) else { return false };
        let (own, dialled) = (own.ip().to_canonical(), address.ip().to_canonical());
        own == dialled
            || (own.is_unspecified() && dialled.is_loopback())
            || (dialled.is_unspecified() && (own.is_loopback() || own.is_unspecified()))
    }

    /// Whether this port on this machine's own name reaches this very process.
    pub fn is_own_port(&self, port: u16) -> bool {
        let addresses = [IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
        addresses.into_iter().any(|address| self.is_own(SocketAddr::new(address, port)))
    }

    /// Public addresses only, and those by https only.
    pub fn public_only() -> Self {
        Self::default()
    }

    /// Whether this address may be dialled.
    pub fn allows(&self, address: IpAddr) -> bool {
        self.lists(address) || is_public(address)
    }

    /// Whether this address may be sent to without TLS: only what the operator listed.
    pub fn may_use_plain_http(&self, address: IpAddr) -> bool {
        self.lists(address)
    }

    /// Whether this machine itself may be dialled.
    pub fn allows_loopback(&self) -> bool {
        self.lists(Ipv4Addr::LOCALHOST.into()) || self.lists(Ipv6Addr::LOCALHOST.into())
    }

    /// Whether any range is listed, and with it any receiver that may be sent to without TLS.
    pub fn lists_any(&self) -> bool {
        !self.allow.is_empty()
    }

    fn lists(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.allow.iter().any(|range| range.contains(&address))
    }
}

fn is_public(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

/// Address and prefix length of every IPv4 range that is not public unicast.
const V4_REFUSED: [([u8; 4], u32); 17] = [
    ([0, 0, 0, 0], 8),          // "this network"; 0.0.0.0 reaches this machine
    ([10, 0, 0, 0], 8),         // private
    ([100, 64, 0, 0], 10),      // shared by carriers; some clouds' metadata
    ([127, 0, 0, 0], 8),        // loopback
    ([168, 63, 129, 16], 32),   // a cloud's host agent on a public-looking address
    ([169, 254, 0, 0], 16),     // link local; most clouds' metadata
    ([172, 16, 0, 0], 12),      // private
    ([192, 0, 0, 0], 24),       // protocol assignments
    ([192, 0, 2, 0], 24),       // documentation
    ([192, 88, 99, 0], 24),     // relays of 6to4
    ([192, 168, 0, 0], 16),     // private
    ([198, 18, 0, 0], 15),      // benchmarks
    ([198, 51, 100, 0], 24),    // documentation
    ([203, 0, 113, 0], 24),     // documentation
    ([224, 0, 0, 0], 4),        // multicast
    ([240, 0, 0, 0], 4),        // reserved
    ([255, 255, 255, 255], 32), // broadcast
];

fn is_public_v4(address: Ipv4Addr) -> bool {
    let bits = u32::from(address);
    !V4_REFUSED.iter().any(|(range, length)| (bits ^ u32::from_be_bytes(*range)) >> (32 - length) == 0)
}

/// First two segments and prefix length (at most 32) of every range inside 2000::/3 that is not public unicast.
const V6_REFUSED: [([u16; 2], u32); 3] = [
    ([0x2001, 0x0000], 23), // protocol assignments: Teredo, ORCHID, benchmarks, …
    ([0x2001, 0x0db8], 32), // documentation
    ([0x3fff, 0x0000], 20), // documentation
];

fn is_public_v6(address: Ipv6Addr) -> bool {
    let segments = address.segments();
    match segments {
        // NAT64: a translator turns it into the IPv4 address in its last 32 bits.
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => is_public_v4(embedded(high, low)),
        // 6to4: a relay turns it into the IPv4 address after the prefix.
        [0x2002, high, low, ..] => is_public_v4(embedded(high, low)),
        // Everything outside 2000::/3: loopback, IPv4-compatible, local NAT64, SIIT, unique local, link local, site
        // local, multicast, and what nobody has been given yet.
        [first, ..] if first >> 13 != 0b001 => false,
        [first, second, ..] => {
            let bits = u32::from(first) << 16 | u32::from(second);
            !V6_REFUSED.iter().any(|([first, second], length)| {
                (bits ^ (u32::from(*first) << 16 | u32::from(*second))) >> (32 - length) == 0
            })
        }
    }
}

fn embedded(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(high) << 16 | u32::from(low))
}
