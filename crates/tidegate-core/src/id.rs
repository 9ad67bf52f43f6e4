//! Names of things.
//!
//! Events and deliveries are integers inside: one counter, in order of acceptance, so no random key ever meets
//! a large index. Outside, a delivery is `dlv_` and 26 characters: the integer and a keyed tag of it. The tag
//! makes ids unguessable, unique between installations, and checkable without a look-up.

use ring::hmac;

/// Acceptance order of an event, unique in an installation.
pub type Seq = i64;
/// A delivery inside an installation. Drawn from the same counter as [`Seq`].
pub type DeliveryNo = i64;
/// A window inside an installation. Drawn from the same counter as [`Seq`].
pub type WindowNo = i64;
/// A project inside an installation.
pub type ProjectNo = i64;
/// A subscriber inside an installation.
pub type SubscriberNo = i64;
/// A gate inside an installation; the same again if it is deleted and made anew.
pub type GateNo = i64;
/// A job inside an installation.
pub type JobNo = i64;
/// A counter, histogram, state or index inside an installation; another one when what it counts changes.
pub type MetricNo = i64;
/// A backfill of metrics inside an installation.
pub type BackfillNo = i64;
/// What keeps two series of a metric apart, numbered in order of first sight; 0 is `(other)`.
pub type KeyNo = u32;
/// A quarantined unit inside an installation, in order of arrival.
pub type QuarantineNo = i64;
/// One life of one process: leases name it.
pub type Incarnation = i64;
/// Counts changes of the configuration; each event carries the one it was routed by.
pub type Version = i64;
/// An order key, hashed. Two keys that collide share a lane: still ordered, only less parallel.
pub type Lane = i64;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ENCODED_LEN: usize = 26;

/// Mints and checks the public ids of one installation.
#[derive(Clone, Debug)]
pub struct Mint {
    key: hmac::Key,
}

impl Mint {
    /// `salt` is random, made once when the store is created, and never changes.
    pub fn new(salt: &[u8]) -> Self {
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, salt) }
    }

    /// The public id of a delivery.
    pub fn delivery(&self, no: DeliveryNo) -> String {
        prefixed("dlv_", self.value(no))
    }

    /// The delivery a public id names, if this installation minted it.
    pub fn parse_delivery(&self, id: &str) -> Option<DeliveryNo> {
        let value = decode(id.strip_prefix("dlv_")?)?;
        let no = i64::try_from(value >> 64).ok()?;
        (self.value(no) == value).then_some(no)
    }

    fn value(&self, no: i64) -> u128 {
        let tag = hmac::sign(&self.key, &no.to_be_bytes());
        let tag = u64::from_be_bytes(tag.as_ref()[..8].try_into().expect("an HMAC has more than 8 bytes"));
        (u128::from(no.unsigned_abs()) << 64) | u128::from(tag)
    }
}

/// `prefix` and 26 characters: a random id for things that are few (subscribers, keys, projects).
pub fn prefixed(prefix: &str, value: u128) -> String {
    let mut id = String::with_capacity(prefix.len() + ENCODED_LEN);
    id.push_str(prefix);
    for place in (0..ENCODED_LEN).rev() {
        id.push(char::from(ALPHABET[(value >> (place * 5)) as usize & 31]));
    }
    id
}

/// An id for an event that came without one: time first, so that such ids sort by arrival.
pub fn event_id(now: crate::time::Timestamp, chance: u128) -> String {
    let time = u128::from(now.as_ms().unsigned_abs()) << 80;
    prefixed("evt_", time | (chance & ((1 << 80) - 1)))
}

fn decode(text: &str) -> Option<u128> {
    if text.len() != ENCODED_LEN || text.as_bytes()[0] > b'7' {
        return None;
    }
    text.bytes().try_fold(0u128, |value, byte| {
        let digit = ALPHABET.iter().position(|c| *c == byte)?;
        Some((value << 5) | digit as u128)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delivery_ids_come_back_and_others_do_not() {
        let mint = Mint::new(b"salt");
        for no in [0, 1, 77, i64::MAX] {
            assert_eq!(mint.parse_delivery(&mint.delivery(no)), Some(no));
        }
        let id = mint.delivery(7);
        assert_eq!(Mint::new(b"other").parse_delivery(&id), None);
        for bad in ["dlv_", "evt_00000000000000000000000000", "dlv_zzzzzzzzzzzzzzzzzzzzzzzzzz", "dlv_é"] {
            assert_eq!(mint.parse_delivery(bad), None, "{bad}");
        }
        assert!(!id.contains('.'), "a dot would break the signing input");
    }

    #[test]
    fn delivery_ids_sort_by_acceptance() {
        let mint = Mint::new(b"salt");
        assert!(mint.delivery(9) < mint.delivery(10));
        assert!(mint.delivery(10) < mint.delivery(1 << 40));
    }
}
