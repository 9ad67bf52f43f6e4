//! Names of things.
//!
//! Events and deliveries are integers inside: one counter, in order of acceptance, so no random key ever meets
//! a large index. Outside, a delivery is `dlv_` and 26 characters: the integer and a keyed tag of it. The tag
//! makes ids unguessable and unique between installations. It also covers the delivery's nonce: a database that goes
//! back in time draws numbers again, and the two deliveries of one number must not share an id.

use ring::hmac;

/// Acceptance order of an event, unique in an installation.
pub type Seq = i64;
/// A delivery inside an installation. Drawn from the same counter as [`Seq`].
pub type DeliveryNo = i64;
/// The random part of a delivery. Whoever writes draws one per session with the store, so a number that is drawn again
/// comes with another nonce. 0 for deliveries made before there were nonces.
pub type Nonce = u32;
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

/// A delivery, and no other that has or had its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeliveryKey {
    /// Its number.
    pub no: DeliveryNo,
    /// Its random part.
    pub nonce: Nonce,
}

/// A public id, taken apart: it names the delivery with this number if the tag is that delivery's too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParsedDelivery {
    /// The number.
    pub no: DeliveryNo,
    tag: u64,
}

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
    pub fn delivery(&self, key: DeliveryKey) -> String {
        prefixed("dlv_", (u128::from(key.no.unsigned_abs()) << 64) | u128::from(self.tag(key)))
    }

    /// What a public id says. Whether it names a delivery is known when its row was read, see [`Mint::names`].
    pub fn parse_delivery(&self, id: &str) -> Option<ParsedDelivery> {
        let value = decode(id.strip_prefix("dlv_")?)?;
        let no = i64::try_from(value >> 64).ok()?;
        Some(ParsedDelivery { no, tag: value as u64 })
    }

    /// Whether an id is the one of this delivery.
    pub fn names(&self, id: ParsedDelivery, key: DeliveryKey) -> bool {
        id.no == key.no && id.tag == self.tag(key)
    }

    /// Ids from before there were nonces stay valid: 0 adds nothing.
    fn tag(&self, key: DeliveryKey) -> u64 {
        let mut input = [0; 12];
        input[..8].copy_from_slice(&key.no.to_be_bytes());
        input[8..].copy_from_slice(&key.nonce.to_be_bytes());
        let input = if key.nonce == 0 { &input[..8] } else { &input[..] };
        let tag = hmac::sign(&self.key, input);
        u64::from_be_bytes(tag.as_ref()[..8].try_into().expect("an HMAC has more than 8 bytes"))
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

    fn key(no: DeliveryNo, nonce: Nonce) -> DeliveryKey {
        DeliveryKey { no, nonce }
    }

    #[test]
    fn delivery_ids_come_back_and_others_do_not() {
        let mint = Mint::new(b"salt");
        for key in [0, 1, 77, i64::MAX].into_iter().flat_map(|no| [key(no, 0), key(no, 5), key(no, u32::MAX)])
        {
            let parsed = mint.parse_delivery(&mint.delivery(key)).expect("it is an id");
            assert_eq!(parsed.no, key.no);
            assert!(mint.names(parsed, key));
        }
        let id = mint.delivery(key(7, 3));
        let parsed = mint.parse_delivery(&id).expect("it is an id");
        assert!(!Mint::new(b"other").names(parsed, key(7, 3)), "of another installation");
        assert!(!mint.names(parsed, key(7, 4)), "another delivery that got its number");
        assert!(!mint.names(parsed, key(8, 3)));
        for bad in ["dlv_", "evt_00000000000000000000000000", "dlv_zzzzzzzzzzzzzzzzzzzzzzzzzz", "dlv_é"] {
            assert_eq!(mint.parse_delivery(bad), None, "{bad}");
        }
        assert!(!id.contains('.'), "a dot would break the signing input");
    }

    #[test]
    fn ids_from_before_there_were_nonces_stay_valid() {
        let mint = Mint::new(b"salt");
        assert_eq!(mint.delivery(key(7, 0)), "dlv_0000000000003st8aprx0nh7v5");
        assert_eq!(mint.delivery(key(1 << 40, 0)), "dlv_00000g000000046cwhrh996q15");
    }

    #[test]
    fn delivery_ids_sort_by_acceptance() {
        let mint = Mint::new(b"salt");
        assert!(mint.delivery(key(9, 8)) < mint.delivery(key(10, 7)));
        assert!(mint.delivery(key(10, 7)) < mint.delivery(key(1 << 40, 0)));
    }
}
