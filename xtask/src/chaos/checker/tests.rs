//! The checker against histories that are made up: every rule is broken once, and nothing else is found.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Arrival, Event, Findings, History, Journal, Line, Promise, Trace, check, out_of_order};

const BOTH: &[usize] = &[0, 1];
const FIRST: &[usize] = &[0];

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn event(seq: u32) -> Event {
    Event { key: 7, seq }
}

/// One event, taken at a time and answered a millisecond later.
fn taken(subscriber: usize, delivery: &str, seq: u32, at: u64) -> Arrival {
    Arrival {
        subscriber,
        delivery: delivery.to_owned(),
        body: u64::from(seq),
        events: vec![event(seq)],
        status: 200,
        at: ms(at),
        answered: Some(ms(at + 1)),
    }
}

fn refused(subscriber: usize, delivery: &str, seq: u32, at: u64) -> Arrival {
    Arrival { status: 500, ..taken(subscriber, delivery, seq, at) }
}

fn told(seq: u32, outcome: &str, delivery: &str) -> BTreeMap<Event, Trace> {
    let line = Line { subscriber: 0, outcome: outcome.to_owned(), delivery: Some(delivery.to_owned()) };
    BTreeMap::from([(event(seq), Trace::Known(vec![line]))])
}

fn unknown(seq: u32) -> BTreeMap<Event, Trace> {
    BTreeMap::from([(event(seq), Trace::Unknown)])
}

fn judge(promises: &[Promise<'_>], arrivals: &[Arrival], traces: &BTreeMap<Event, Trace>) -> Findings {
    check(&History { promises, arrivals, traces, ends: &["exhausted"] })
}

/// The rules that were broken, each once.
fn broken(
    promises: &[Promise<'_>],
    arrivals: &[Arrival],
    traces: &BTreeMap<Event, Trace>,
) -> Vec<&'static str> {
    let findings = judge(promises, arrivals, traces);
    let rules = findings.rules().map(|(name, rule)| {
        assert_eq!(rule.examples.len() as u64, rule.count, "{name} has an example for each");
        std::iter::repeat_n(name, usize::try_from(rule.count).expect("a few"))
    });
    rules.into_iter().flatten().collect()
}

#[test]
fn an_honest_history_breaks_nothing() {
    let promises = [Promise::firm(event(1), BOTH), Promise::firm(event(2), FIRST)];
    let arrivals = [refused(0, "a", 1, 1), taken(0, "a", 1, 2), taken(1, "b", 1, 3), taken(0, "c", 2, 4)];
    assert!(broken(&promises, &arrivals, &told(1, "delivered", "a")).is_empty());
    assert!(judge(&promises, &arrivals, &BTreeMap::new()).repeats.is_empty());
}

#[test]
fn what_was_acknowledged_is_taken_by_everybody_who_wants_it() {
    let promise = [Promise::firm(event(1), BOTH)];
    let none = BTreeMap::new();
    assert_eq!(broken(&promise, &[taken(0, "a", 1, 1)], &none), ["missing"]);
    assert_eq!(broken(&promise, &[taken(0, "a", 1, 1), refused(1, "b", 1, 1)], &none), ["missing"]);
}

#[test]
fn an_end_in_the_trace_counts_where_the_campaign_allows_it() {
    let promise = [Promise::firm(event(1), FIRST)];
    let refused = [refused(0, "a", 1, 1)];
    assert!(broken(&promise, &refused, &told(1, "exhausted", "a")).is_empty());
    assert_eq!(judge(&promise, &refused, &told(1, "exhausted", "a")).ended, 1);
    assert_eq!(broken(&promise, &refused, &told(1, "cancelled", "a")), ["missing"]);
    assert_eq!(broken(&promise, &refused, &told(1, "pending", "a")), ["missing"]);
}

#[test]
fn an_event_is_in_one_delivery_of_a_subscriber() {
    let twice = [refused(0, "a", 1, 1), taken(0, "b", 1, 2)];
    let firm = Promise::firm(event(1), FIRST);
    assert_eq!(broken(&[firm], &twice, &BTreeMap::new()), ["in two deliveries"]);
    let sent_again = [Promise { may_double: true, ..firm }];
    assert!(broken(&sent_again, &twice, &BTreeMap::new()).is_empty());
    assert_eq!(judge(&sent_again, &twice, &BTreeMap::new()).doubled_allowed, 1);
}

#[test]
fn an_id_stands_for_one_body_at_one_subscriber() {
    let promises = [Promise::firm(event(1), BOTH), Promise::firm(event(2), FIRST)];
    let honest = [taken(0, "a", 1, 1), taken(1, "b", 1, 2), taken(0, "c", 2, 3)];
    let with = |more: Arrival| broken(&promises, &[&honest[..], &[more]].concat(), &BTreeMap::new());
    assert_eq!(with(Arrival { body: 99, ..refused(0, "a", 1, 4) }), ["ids of two bodies"]);
    let two_events = [taken(0, "a", 1, 1), taken(1, "b", 1, 2), taken(0, "a", 2, 3)];
    assert_eq!(broken(&promises, &two_events, &BTreeMap::new()), ["ids of two bodies"]);
    let shared = [taken(0, "a", 1, 1), taken(1, "a", 1, 2), taken(0, "c", 2, 3)];
    assert_eq!(broken(&promises, &shared, &BTreeMap::new()), ["ids at two subscribers"]);
}

#[test]
fn what_a_trace_calls_delivered_was_taken_under_that_id() {
    let promise = [Promise::firm(event(1), FIRST)];
    let delivered = told(1, "delivered", "a");
    assert!(broken(&promise, &[taken(0, "a", 1, 1)], &delivered).is_empty());
    let refused_alone = broken(&promise, &[refused(0, "a", 1, 1)], &delivered);
    assert_eq!(refused_alone, ["missing", "delivered, never taken"]);
    let under_another = broken(&promise, &[taken(0, "b", 1, 1)], &delivered);
    assert_eq!(under_another, ["delivered, never taken"]);
    let never_came = broken(&promise, &[], &delivered);
    assert_eq!(never_came, ["missing", "delivered, never taken"]);
}

#[test]
fn what_may_be_lost_is_lost_as_a_whole() {
    let firm = Promise::firm(event(1), BOTH);
    let lossy = Promise { may_be_lost: true, ..firm };
    assert!(broken(&[lossy], &[taken(0, "a", 1, 1)], &unknown(1)).is_empty());
    assert_eq!(judge(&[lossy], &[], &unknown(1)).lost, 1);
    assert_eq!(broken(&[lossy], &[taken(0, "a", 1, 1)], &told(1, "delivered", "a")), ["missing"]);
    let forgotten = broken(&[firm], &[taken(0, "a", 1, 1), taken(1, "b", 1, 2)], &unknown(1));
    assert_eq!(forgotten, ["unknown to the API"]);
}

#[test]
fn nothing_is_made_up_and_nobody_gets_what_is_for_others() {
    let promise = [Promise::firm(event(1), FIRST)];
    let with = |more: Arrival| broken(&promise, &[taken(0, "a", 1, 1), more], &BTreeMap::new());
    assert_eq!(with(taken(0, "b", 2, 2)), ["made-up events"]);
    assert_eq!(with(taken(1, "b", 1, 2)), ["made-up events"]);
}

#[test]
fn a_second_taking_is_a_repeat_and_a_retry_is_not() {
    let promise = [Promise::firm(event(1), FIRST)];
    let repeats = |arrivals: &[Arrival]| judge(&promise, arrivals, &BTreeMap::new()).repeats;
    assert_eq!(repeats(&[taken(0, "a", 1, 5), taken(0, "a", 1, 9)]), [ms(5)]);
    assert!(repeats(&[refused(0, "a", 1, 5), taken(0, "a", 1, 9)]).is_empty());
}

#[test]
fn nothing_overtakes_in_a_lane_nor_goes_beside_its_predecessor() {
    let violations = |arrivals: &[Arrival]| out_of_order(arrivals, 0, |_| true).count;
    let (one, two) = (taken(0, "a", 1, 10), taken(0, "b", 2, 20));
    assert_eq!(violations(&[one.clone(), two.clone()]), 0);
    assert_eq!(violations(&[two.clone(), one.clone()]), 1);
    let late = Arrival { answered: Some(ms(25)), ..one.clone() };
    assert_eq!(violations(&[late, two.clone()]), 1, "the first was not answered yet");
    assert_eq!(violations(&[refused(0, "a", 1, 10), two.clone()]), 1);
    assert_eq!(violations(&[one.clone(), two.clone(), one.clone()]), 0, "a repeat is no violation");
    assert_eq!(out_of_order(&[two.clone(), one.clone()], 1, |_| true).count, 0, "another subscriber");
    let lost = |event: Event| event.seq != 2;
    assert_eq!(out_of_order(&[one.clone(), taken(0, "c", 3, 20)], 0, lost).count, 0, "the second is lost");
    assert_eq!(out_of_order(&[taken(0, "c", 3, 20), one], 0, lost).count, 1);
    let fold = Arrival { events: vec![event(1), event(2)], ..two.clone() };
    assert_eq!(violations(&[fold]), 0, "it stands before it in the same body");
    let turned = Arrival { events: vec![event(2), event(1)], ..two };
    assert_eq!(violations(&[turned]), 1);
}

#[test]
fn requests_are_read_as_they_are() {
    let read = |body: &str| {
        let head = format!("POST /3 HTTP/1.1\r\nWebhook-Id: dlv_1\r\ncontent-length: {}\r\n\r\n", body.len());
        Arrival::read(&[head.as_bytes(), body.as_bytes()].concat(), head.len(), 3, ms(1))
    };
    let one = read(r#"{"id":"k7-2","data":{}}"#).expect("an event");
    assert_eq!((one.subscriber, one.delivery.as_str(), one.events.as_slice()), (3, "dlv_1", &[event(2)][..]));
    assert!(!one.is_taken());
    assert_ne!(one.body, read(r#"{"id":"k7-2","data":{} }"#).expect("an event").body, "every byte counts");
    let many = read(r#"{"delivery":"dlv_1","events":[{"id":"k7-1"},{"id":"k7-2"}]}"#).expect("a fold");
    assert_eq!(many.events, [event(1), event(2)]);
    assert!(read(r#"{"delivery":"dlv_2","events":[]}"#).is_err());
    assert!(read(r#"{"id":"other"}"#).is_err());
}

#[test]
fn a_journal_counts_what_was_taken_once() {
    let mut journal = Journal::default();
    for arrival in [refused(0, "a", 1, 1), taken(0, "a", 1, 2), taken(0, "a", 1, 3), taken(1, "b", 1, 4)] {
        journal.note(arrival);
    }
    assert_eq!((journal.taken(), journal.arrivals().len()), (2, 4));
}
