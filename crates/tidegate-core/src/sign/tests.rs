//! Goal: receivers with any Standard Webhooks library accept what we sign, and a wrong request is refused with the
//! right reason. Method: the specification's known answer, and one accident per complaint.

use proptest::prelude::*;

use super::*;
use crate::time::{Span, Timestamp};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const ID: &str = "msg_p5jXN8AQM9LWM0D4loKWxJek";
const AT: i64 = 1_614_265_330;
const BODY: &[u8] = br#"{"test": 2432232314}"#;
const SIGNATURE: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

#[test]
fn the_known_answer_of_the_specification() {
    let signer = Signer::parse(SECRET).unwrap();
    assert_eq!(signer.signature(ID, AT, BODY), SIGNATURE);
    assert_eq!(SIGNATURE.len(), SIGNATURE_LEN);
}

#[test]
fn the_hex_signature_is_plain_hmac() {
    // RFC 4231, test case 2.
    let signer = Signer::parse("Jefe").unwrap();
    assert_eq!(
        signer.hex_signature(b"what do ya want for nothing?"),
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    );
}

#[test]
fn secrets_are_checked_and_never_shown() {
    let refused = [
        ("", SecretProblem::Empty),
        ("whsec_", SecretProblem::Size(0)),
        ("whsec_!!!!", SecretProblem::NotBase64),
        ("whsec_c2hvcnQ=", SecretProblem::Size(5)),
    ];
    for (secret, problem) in refused {
        assert_eq!(Signer::parse(secret).err(), Some(problem), "{secret}");
    }
    let encoded = |len: usize| format!("whsec_{}", STANDARD.encode(vec![7; len]));
    for (len, is_fine) in [(23, false), (24, true), (64, true), (65, false)] {
        assert_eq!(Signer::parse(&encoded(len)).is_ok(), is_fine, "{len}");
    }
    assert!(Signer::parse(&"x".repeat(256)).is_ok());
    assert_eq!(Signer::parse(&"x".repeat(257)).err(), Some(SecretProblem::TooLong));
    assert_eq!(format!("{:?}", Signer::parse("hunter2hunter2").unwrap()), "Signer(…)");
    let made = secret_from([9; 32]);
    assert!(made.starts_with("whsec_") && Signer::parse(&made).is_ok());
}

#[test]
fn numbers_have_their_digits() {
    for number in [0, 7, -1, AT, i64::MAX, i64::MIN] {
        assert_eq!(Digits::default().of(number), number.to_string().as_bytes());
    }
}

/// RFC 8032, section 7.1, test 2: its seed and its public key.
const PRIVATE: &str =
    "whsk_TM0Imyj/ltqdtsNG7BFOD1uKMZ81q6Yk2oz27U+4pvs9QBfD6EOJWpK3CqdNG368nJgszy7ElozAzVXxKvRmDA==";
const PUBLIC: &str = "whpk_PUAXw+hDiVqStwqnTRt+vJyYLM8uxJaMwM1V8Sr0Zgw=";

#[test]
fn ed25519_signs_what_its_public_key_checks() {
    let signer = Signer::parse(PRIVATE).unwrap();
    assert_eq!(signer.public_key().as_deref(), Some(PUBLIC));
    assert!(!signer.is_hmac());
    let header = signer.signature(ID, AT, BODY);
    assert!(header.starts_with("v1a,"));
    let (at, both) = (AT.to_string(), format!("{SIGNATURE} {header}"));
    for (secret, header) in [(PUBLIC, &header), (PRIVATE, &header), (PUBLIC, &both), (SECRET, &both)] {
        check(secret, &at, header, BODY, 0, &Ok(()));
    }
    check(PUBLIC, &at, &header, br#"{"test": 2432232315}"#, 0, &Err(Complaint::Mismatch));
    check(PUBLIC, &at, &header, br#"{"test":2432232314}"#, 0, &Err(Complaint::Reserialised));
    check(&private_key_from([8; 32]), &at, &header, BODY, 0, &Err(Complaint::Mismatch));
    let garbled = verify(PUBLIC, ID, &at, SIGNATURE, BODY, Timestamp::from_ms(AT * 1000));
    assert!(matches!(garbled, Err(Complaint::Garbled("webhook-signature", _))));
    let made = private_key_from([9; 32]);
    let seed = format!("whsk_{}", STANDARD.encode([9; 32]));
    let public = |secret: &str| Signer::parse(secret).unwrap().public_key();
    assert_eq!(public(&made), public(&seed));
}

#[test]
fn keys_that_are_none_are_refused() {
    let mixed = [&[9; 32][..], &[1; 32]].concat();
    for text in ["whsk_", "whsk_!", "whsk_AAAA", &format!("whsk_{}", STANDARD.encode(mixed))] {
        assert_eq!(Signer::parse(text).err(), Some(SecretProblem::PrivateKey), "{text}");
    }
    assert_eq!(Signer::parse(PUBLIC).err(), Some(SecretProblem::Public));
    check("whpk_AAAA", "1", "v1a,AAAA", BODY, 0, &Err(Complaint::Secret(SecretProblem::PublicKey)));
}

#[track_caller]
fn check(
    secret: &str,
    timestamp: &str,
    header: &str,
    body: &[u8],
    late_seconds: i64,
    expected: &Result<(), Complaint>,
) {
    let now = Timestamp::from_ms((AT + late_seconds) * 1000);
    assert_eq!(&verify(secret, ID, timestamp, header, body, now), expected);
}

#[test]
fn a_right_request_passes_for_five_minutes_either_way() {
    let at = AT.to_string();
    for late in [-300, -1, 0, 1, 300] {
        check(SECRET, &at, SIGNATURE, BODY, late, &Ok(()));
    }
    check(SECRET, &at, SIGNATURE, BODY, 301, &Err(Complaint::TooOld(Span::from_ms(301_000))));
    check(SECRET, &at, SIGNATURE, BODY, -3600, &Err(Complaint::TooNew(Span::from_ms(3_600_000))));
    // Rotation: the old and the new secret, and a version nobody knows yet.
    let other = Signer::parse("other").unwrap().signature(ID, AT, BODY);
    check(SECRET, &at, &format!("v1a,abc {other} {SIGNATURE}"), BODY, 0, &Ok(()));
}

#[test]
fn headers_that_can_not_be_read_are_named() {
    let at = AT.to_string();
    check(SECRET, "", SIGNATURE, BODY, 0, &Err(Complaint::Missing("webhook-timestamp")));
    check(SECRET, &at, " ", BODY, 0, &Err(Complaint::Missing("webhook-signature")));
    assert_eq!(
        verify(SECRET, "", &at, SIGNATURE, BODY, Timestamp::from_ms(0)),
        Err(Complaint::Missing("webhook-id"))
    );
    for timestamp in ["soon", "1.5", "-5", "+5", "99999999999999999999", "9223372036854775807"] {
        let answer = verify(SECRET, ID, timestamp, SIGNATURE, BODY, Timestamp::from_ms(0));
        assert!(matches!(answer, Err(Complaint::Garbled("webhook-timestamp", _))), "{timestamp}");
    }
    for header in ["v1", "v1,***", "v2,abcd", "sha256=00"] {
        let answer = verify(SECRET, ID, &at, header, BODY, Timestamp::from_ms(0));
        assert!(matches!(answer, Err(Complaint::Garbled("webhook-signature", _))), "{header}");
    }
    check("whsec_?", &at, SIGNATURE, BODY, 0, &Err(Complaint::Secret(SecretProblem::NotBase64)));
}

#[test]
fn the_usual_accidents_are_recognised() {
    let at = AT.to_string();
    check(SECRET, &at, SIGNATURE, br#"{"test":2432232314}"#, 0, &Err(Complaint::Reserialised));
    check(SECRET, &at, SIGNATURE, b"{\n  \"test\": 2432232314\n}", 0, &Err(Complaint::Reserialised));
    check(SECRET, &at, SIGNATURE, b"{\"test\": 2432232314}\n", 0, &Err(Complaint::TrailingSpace));
    check(&format!("{SECRET}\n"), &at, SIGNATURE, BODY, 0, &Err(Complaint::Secret(SecretProblem::NotBase64)));
    check(&SECRET[6..], &at, SIGNATURE, BODY, 0, &Err(Complaint::SecretPrefix));
    check("another secret", &at, SIGNATURE, BODY, 0, &Err(Complaint::Mismatch));
    check(SECRET, &(AT + 1).to_string(), SIGNATURE, BODY, 0, &Err(Complaint::Mismatch));
    check(SECRET, &at, SIGNATURE, br#"{"test": 2432232315}"#, 0, &Err(Complaint::Mismatch));
    let plain = Signer::parse("plain").unwrap();
    check(" plain\n", &at, &plain.signature(ID, AT, BODY), BODY, 0, &Err(Complaint::SecretSpace));
    // Sorted by a library that does so, while the original was not.
    let sent = br#"{"a":1,"b":"x, y: z \" ,"}"#;
    let shuffled = br#"{ "b" : "x, y: z \" ,", "a" : 1 }"#;
    check("plain", &at, &plain.signature(ID, AT, sent), shuffled, 0, &Err(Complaint::Reserialised));
    check("plain", &at, &plain.signature(ID, AT, b"a\n"), b"a", 0, &Err(Complaint::TrailingSpace));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_signed_verifies_and_nothing_else(
        secret in "[ -~]{1,64}",
        body in proptest::collection::vec(any::<u8>(), 0..200),
        at in 0_i64..4_000_000_000,
        flip in any::<proptest::sample::Index>(),
    ) {
        let Ok(signer) = Signer::parse(&secret) else { return Ok(()) };
        let header = signer.signature(ID, at, &body);
        let now = Timestamp::from_ms(at * 1000);
        prop_assert_eq!(verify(&secret, ID, &at.to_string(), &header, &body, now), Ok(()));
        if !body.is_empty() {
            let mut changed = body.clone();
            changed[flip.index(body.len())] ^= 1;
            prop_assert!(verify(&secret, ID, &at.to_string(), &header, &changed, now).is_err());
        }
        prop_assert!(verify(&secret, "other", &at.to_string(), &header, &body, now).is_err());
    }
}
