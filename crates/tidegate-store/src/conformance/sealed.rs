//! What is sealed: kept with its subscriber, moved to another master key without a new version, gone with it.

use super::bench::{Bench, PROJECT, new_subscriber};
use super::{Case, named};
use crate::{Change, NewSecret, NewSubscriber, Reseal, SealedRow, SecretKind, SubscriberUpdate};

pub(super) fn cases() -> Vec<Case> {
    named!["sealed":
        everything_sealed_is_listed,
        what_is_sealed_anew_takes_its_place_and_no_version_moves,
        what_changed_meanwhile_stays,
        a_new_definition_brings_its_own_secrets,
        secrets_go_with_their_subscriber,
    ]
}

fn values(rows: &[SealedRow], kind: SecretKind) -> Vec<&[u8]> {
    rows.iter().filter(|row| row.kind == kind).map(|row| row.value.as_slice()).collect()
}

async fn everything_sealed_is_listed(bench: Bench) {
    let no = bench.subscriber("s").await;
    let bare = NewSubscriber { destination: None, ..new_subscriber("bare") };
    let bare = bench.change(Change::CreateSubscriber(bare)).await.no;
    let rows = bench.store().sealed().await.unwrap();
    let seen: Vec<_> = rows.iter().map(|row| (row.kind, row.subscriber, row.id.as_str())).collect();
    let (signing, destination) = (SecretKind::Signing, SecretKind::Destination);
    assert_eq!(seen, [(signing, no, "s"), (signing, bare, "bare"), (destination, no, "s")]);
}

async fn what_is_sealed_anew_takes_its_place_and_no_version_moves(mut bench: Bench) {
    let rotated = bench.subscriber("a").await;
    let secret = NewSecret { sealed: b"sealed".to_vec(), grace_until: Some(bench.now) };
    bench.update(rotated, SubscriberUpdate { secret: Some(secret), ..Default::default() }).await;
    bench.subscriber("b").await;
    let version = bench.version().await;
    let rows = bench.store().sealed().await.unwrap();
    let anew = |row: SealedRow| Reseal { value: [b"new ", row.value.as_slice()].concat(), row };
    bench.store().reseal(rows.into_iter().map(anew).collect()).await.unwrap();
    bench.reopen().await;
    assert_eq!(bench.version().await, version);
    let rows = bench.store().sealed().await.unwrap();
    assert_eq!(values(&rows, SecretKind::Signing), [b"new sealed"; 3], "the one before it too");
    assert_eq!(values(&rows, SecretKind::Destination), [b"new sealed too"; 2]);
    let read = bench.store().configuration(0).await.unwrap().subscribers.remove(0);
    assert_eq!(
        (read.secret.as_slice(), read.destination.as_deref()),
        (&b"new sealed"[..], Some(&b"new sealed too"[..]))
    );
}

async fn what_changed_meanwhile_stays(bench: Bench) {
    let no = bench.subscriber("s").await;
    let rows = bench.store().sealed().await.unwrap();
    let update = SubscriberUpdate {
        definition: Some("{}".to_owned()),
        destination: Some(b"younger".to_vec()),
        ..Default::default()
    };
    bench.update(no, update).await;
    let anew = rows.into_iter().map(|row| Reseal { row, value: b"late".to_vec() }).collect();
    bench.store().reseal(anew).await.unwrap();
    let rows = bench.store().sealed().await.unwrap();
    assert_eq!(values(&rows, SecretKind::Destination), [b"younger"]);
    assert_eq!(values(&rows, SecretKind::Signing), [b"late"]);
}

async fn a_new_definition_brings_its_own_secrets(bench: Bench) {
    let no = bench.subscriber("s").await;
    bench.pause(no).await;
    let read = async || bench.store().configuration(0).await.unwrap().subscribers.remove(0).destination;
    assert_eq!(read().await.as_deref(), Some(&b"sealed too"[..]), "other changes leave them alone");
    let definition = Some("{}".to_owned());
    bench.update(no, SubscriberUpdate { definition, ..Default::default() }).await;
    assert_eq!(read().await, None, "nobody's secrets are joined with another definition");
}

async fn secrets_go_with_their_subscriber(bench: Bench) {
    let no = bench.subscriber("s").await;
    bench.change(Change::DeleteSubscriber { project: PROJECT, no }).await;
    assert_eq!(bench.store().sealed().await.unwrap(), []);
    let row = bench.store().configuration(0).await.unwrap().subscribers.remove(0);
    assert_eq!((row.deleted, row.secret.len(), row.previous_secret, row.destination), (true, 0, None, None));
}
