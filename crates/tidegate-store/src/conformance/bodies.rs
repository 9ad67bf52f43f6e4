//! Bodies: the bytes that come out are the bytes that went in.

use bytes::Bytes;
use tidegate_core::retry::Next;

use super::bench::{Bench, PROJECT, draft, finished, room};
use super::{Case, named};
use crate::{Finished, Group};

pub(super) fn cases() -> Vec<Case> {
    named!["bodies":
        bytes_come_back_exactly,
        texts_come_back_exactly,
        what_was_sent_is_sent_again,
    ]
}

fn awkward() -> Vec<Bytes> {
    let noise = (0..1024 * 1024u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8);
    vec![
        Bytes::new(),
        Bytes::from_static(b"\0"),
        Bytes::from_static(b"{\"a\":\"\0\"}\0"),
        Bytes::from_static(&[0xff, 0xfe, 0x00, 0xc3, 0x28, 0x80]),
        Bytes::from_static("ключ \u{1f512} \u{feff}\r\n".as_bytes()),
        Bytes::from((0..=255u8).collect::<Vec<_>>()),
        Bytes::from(noise.collect::<Vec<_>>()),
    ]
}

async fn bytes_come_back_exactly(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    let through_memory = bench.subscriber("m").await;
    let drafts = awkward()
        .into_iter()
        .enumerate()
        .map(|(n, body)| draft(format!("e{n}")).saying(body).to(subscriber).to(through_memory));
    let committed = bench.send_into(room(100, &[through_memory]), drafts).await;
    let handed_over: Vec<Bytes> = committed.jobs.into_iter().map(|job| job.body).collect();
    assert_eq!(handed_over, awkward());
    bench.reopen().await;
    let claimed: Vec<Bytes> = bench.claim_all(subscriber).await.into_iter().map(|job| job.body).collect();
    assert_eq!(claimed, awkward());
    let listed: Vec<Bytes> = bench.events(PROJECT).await.into_iter().map(|row| row.body).collect();
    assert_eq!(listed, awkward());
}

async fn texts_come_back_exactly(bench: Bench) {
    let odd = "a\0b '\"; DROP TABLE events; -- é\u{10ffff}";
    let mut event = draft(odd).from(odd).kind(odd);
    event.subject = Some(odd.to_owned());
    bench.send([event, draft("")]).await;
    let found = bench.store().event(PROJECT, odd.to_owned()).await.unwrap();
    let [row] = &found[..] else { panic!("one event has this id") };
    assert_eq!((row.id.as_str(), row.source.as_str(), row.type_name.as_str()), (odd, odd, odd));
    assert_eq!(row.subject.as_deref(), Some(odd));
    assert_eq!(bench.store().event(PROJECT, String::new()).await.unwrap().len(), 1);
}

async fn what_was_sent_is_sent_again(mut bench: Bench) {
    let subscriber = bench.subscriber("s").await;
    bench.send([draft("e").to(subscriber)]).await;
    let sent = Bytes::from_static(b"another form of it\0");
    for body in [Some(sent.clone()), None, Some(Bytes::from_static(b"a later one"))] {
        let job = bench.claim_one(subscriber).await;
        let failed = Finished { body, ..finished(&job, Next::RetryAt(bench.now), bench.now) };
        bench.commit(Group { results: vec![failed], ..Group::default() }).await;
        bench.reopen().await;
        assert_eq!(bench.claim_one(subscriber).await.body, sent, "the first bytes that were sent");
        bench.reopen().await;
    }
    assert_ne!(bench.events(PROJECT).await[0].body, sent, "the event stays what it was");
}
