//! Goal: recording never waits, and says what it dropped. Method: a recorder whose queue nobody empties.

use super::*;

fn recorder(threshold: u64) -> (Spans, mpsc::Receiver<Message>) {
    let (queue, spans) = mpsc::channel(2);
    let clock = Clock::simulated(Timestamp::from_ms(1_000));
    let recorder = Recorder { queue, clock, entropy: Entropy::seeded(1), threshold };
    (Spans { recorder: Some(recorder), counts: Arc::default() }, spans)
}

fn ending() -> Ending {
    let attributes = vec![("n", Value::Int(3))];
    Ending { name: "x", kind: Kind::Internal, attributes, links: Vec::new(), has_failed: true }
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_drops_and_counts() {
    let (spans, mut queue) = recorder(u64::MAX);
    for _ in 0..5 {
        spans.end(&spans.begin(None).unwrap(), ending());
    }
    assert_eq!(spans.counts(), (0, 3));
    let Some(Message::Span(span)) = queue.recv().await else { panic!("a span") };
    let text = encode::request(&[*span]);
    for part in ["\"status\":{\"code\":2}", "\"intValue\":\"3\"", "\"startTimeUnixNano\":\"1000000000\""] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("parentSpanId"));
}

#[tokio::test(start_paused = true)]
async fn whoever_began_a_trace_decides_whether_it_is_recorded() {
    let (spans, _queue) = recorder(0);
    assert!(spans.begin(None).is_none());
    let parent = |is_sampled| SpanContext { trace: 7, span: 8, is_sampled };
    assert!(spans.begin(Some(parent(false))).is_none());
    let open = spans.begin(Some(parent(true))).unwrap();
    assert_eq!((open.context.trace, open.parent), (7, Some(8)));
    assert_ne!(open.context.span, 8);
    assert!(Spans::default().begin(Some(parent(true))).is_none(), "nobody to send it to");
}
