//! The promises, checked against what really happened: nothing accepted is lost (P2), nothing is sent twice without a
//! reason (P3), everything is counted once (P4), lanes keep their order (P5), and nobody suffers from others (P8).
//!
//! Two sources that know nothing of each other are compared: the history, and what the store says through the same
//! questions the API asks.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use tidegate_core::delivery::Status;
use tidegate_core::id::{DeliveryNo, SubscriberNo};
use tidegate_core::payload::Payload;
use tidegate_core::retention::Retention;
use tidegate_core::retry::Next;
use tidegate_store::{DeliveryFilter, DeliveryRow, EventFilter, EventRow, Past, UnitStatus, What};

use super::acts::Site;
use super::catalog::quarantine_is_kept;
use super::gates;
use super::history::{Ended, EventKey, Fact, History, Sent, Truth};
use super::keeping;
use super::plan::{END_T, POISON, Plan};

/// A healthy receiver without order or rate has its event by then, whatever happens to others.
const HEALTHY_MS: i64 = 2_000;
/// An event of a healthy lane is with its receiver by then, whatever happens to the lane beside it.
const LANE_MS: i64 = 8_000;

/// What the store says at the end.
#[derive(Default)]
struct Books {
    events: Vec<(EventKey, EventRow)>,
    deliveries: BTreeMap<DeliveryNo, DeliveryRow>,
    by_pair: BTreeMap<(SubscriberNo, EventKey), Vec<DeliveryNo>>,
    replays: BTreeMap<(SubscriberNo, EventKey), Vec<DeliveryNo>>,
}

/// Checks everything; what is broken is written into the history.
pub(crate) async fn check(site: &Site, plan: &Plan) {
    let books = read(site).await;
    let mut found = Vec::new();
    let now = site.parts.clock.now().as_ms();
    let mut met = {
        let history = site.history.lock();
        events_are_kept(&history, &books, plan.terms.as_ref().map(|terms| (terms, now)), &mut found);
        everyone_got_theirs(&history, &books, plan, &mut found);
        statuses_are_true(&history, &books, plan.terms.is_some(), &mut found);
        bodies_never_change(&history, &mut found);
        duplicates_have_reasons(&history, &mut found);
        nothing_is_early(&history, plan, &mut found);
        replays_are_what_was_asked_for(&history, &books, plan.terms.is_some(), &mut found);
        jobs_cover_all(&history, &books, &mut found);
        lanes_keep_order(&history, &books, &mut found);
        rates_hold(&history, plan, &mut found);
        gates::check(&history, plan, &mut found);
        gates::met(&history)
    };
    if !plan.is_shared {
        // Each process has breakers of its own, and takes a while to find out that another one is dead.
        let history = site.history.lock();
        the_healthy_are_not_delayed(&history, &mut found);
        met.extend(super::breakers::check(&history, &mut found));
    }
    super::killed::nothing_unsent_is_exhausted(
        &mut site.history.lock(),
        books.deliveries.values(),
        &mut found,
    );
    super::folds::check(site, &mut found).await;
    super::counts::check(site, &mut found).await;
    traces_are_true(site, &books, &mut found).await;
    quarantine_is_kept(site, &mut found).await;
    let mut history = site.history.lock();
    found.into_iter().for_each(|text| history.violation(text));
    met.into_iter().for_each(|path| history.reach(path));
    note_rare_paths(&mut history);
}

async fn read(site: &Site) -> Books {
    let mut books = Books::default();
    for project in site.parts.rosters.current().projects.values().map(|row| row.no) {
        let filter = EventFilter { limit: 10_000, ..EventFilter::default() };
        let page = site.parts.store.events(project, filter).await.expect("the store works again");
        for row in page.items {
            books.events.push(((project, row.source.clone(), row.id.clone()), row));
        }
        let filter = DeliveryFilter { limit: 10_000, ..DeliveryFilter::default() };
        let page = site.parts.store.deliveries(project, filter).await.expect("the store works again");
        for row in page.items.into_iter().filter(|row| row.fold.is_none()) {
            if let Some(id) = row.events.first() {
                let is_notice = books.events.iter().any(|(key, _)| key.1 == "tidegate" && key.2 == *id);
                let source = if is_notice { "tidegate" } else { "shop" };
                let event = (project, source.to_owned(), id.clone());
                let pairs = if row.replay { &mut books.replays } else { &mut books.by_pair };
                pairs.entry((row.subscriber, event)).or_default().push(row.no);
            }
            books.deliveries.insert(row.no, row);
        }
    }
    books.events.sort_by_key(|(_, row)| row.seq);
    books
}

/// The store keeps exactly what was committed, in that order, byte for byte; and what was refused is nowhere.
fn events_are_kept(
    history: &History,
    books: &Books,
    terms: Option<(&Retention, i64)>,
    found: &mut Vec<String>,
) {
    let kept: Vec<&EventKey> = books.events.iter().map(|(key, _)| key).collect();
    let accepted: Vec<&EventKey> = history.accepted.iter().map(|fact| &fact.key).collect();
    if let Some(terms) = terms {
        keeping::events_are_kept(history, &kept, terms, found);
    } else if kept != accepted {
        found.push(format!("P1 {} events were committed, {} are kept", accepted.len(), kept.len()));
    }
    for (key, row) in &books.events {
        let Some(fact) = history.index.get(key).map(|index| &history.accepted[*index]) else { continue };
        if row.body != fact.body || row.version != fact.version {
            found.push(format!("P1 event {} is not kept as it was accepted", key.2));
        }
        if key.2.starts_with("bad") {
            found.push(format!("event {} was refused and is kept", key.2));
        }
    }
    for told in &history.told {
        let is_apart = matches!(told.status, UnitStatus::Quarantined(_));
        if !is_apart && !history.index.contains_key(&told.key) {
            found.push(format!("P2 {} was told {:?} and is lost", told.key.2, told.status));
        }
    }
}

/// What a subscriber is owed of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owed {
    Must,
    May,
    Never,
}

fn owed(truth: &Truth, fact: &Fact) -> Owed {
    if truth.project != fact.key.0 {
        return Owed::Never;
    }
    if super::folds::is_fold(&truth.id) {
        // Only what passes its fold by.
        match truth.fold_of(fact).map(|fold| fold.passes(&fact.content)) {
            Some(true) => {}
            Some(false) => return Owed::Never,
            None => return Owed::May,
        }
    }
    if truth.created() <= fact.version {
        let wanted = truth.spec_at(fact.version).is_some_and(|spec| spec.wants(&fact.content).is_some());
        return if wanted { Owed::Must } else { Owed::Never };
    }
    let Some(from) = truth.backfill else { return Owed::Never };
    if fact.now < from {
        return Owed::Never;
    }
    // Which definition a step of the backfill met is nobody's promise, only that it was one of them.
    let until = truth.backfilled.unwrap_or(i64::MAX);
    let wants: Vec<bool> = truth
        .specs
        .iter()
        .filter(|(since, _)| *since <= until)
        .map(|(_, spec)| spec.wants(&fact.content).is_some())
        .collect();
    match (wants.iter().all(|wanted| *wanted), wants.iter().any(|wanted| *wanted)) {
        (true, _) if truth.backfilled.is_some() => Owed::Must,
        (_, true) => Owed::May,
        _ => Owed::Never,
    }
}

/// P2: each accepted event has exactly one delivery for each subscriber that wants it, and that came to an end.
fn everyone_got_theirs(history: &History, books: &Books, plan: &Plan, found: &mut Vec<String>) {
    for fact in &history.accepted {
        for (no, truth) in &history.subs {
            let rows = books.by_pair.get(&(*no, fact.key.clone())).map_or(0, Vec::len);
            let is_gone = || plan.terms.is_some() && keeping::is_over(history, *no, &fact.key);
            // Whether a backfill came in time is nobody's promise.
            let is_late = plan.terms.is_some() && truth.created() > fact.version;
            let is_right = match owed(truth, fact) {
                Owed::Must => rows == 1 || rows == 0 && (is_late || is_gone()),
                Owed::May => rows <= 1,
                Owed::Never => rows == 0,
            };
            if !is_right {
                let owed = owed(truth, fact);
                found.push(format!("P2 {} has {rows} deliveries of {}: {owed:?}", truth.id, fact.key.2));
            }
        }
    }
    for row in books.deliveries.values() {
        let is_left = plan.left_paused.as_deref() == Some(&row.subscriber_id);
        let is_over = match row.status {
            Status::Delivered | Status::Exhausted => true,
            Status::Expired => plan.terms.is_some(),
            Status::Cancelled => history.subs[&row.subscriber].deleted.is_some(),
            Status::Held => is_left && !history.subs[&row.subscriber].active,
            _ => false,
        };
        if !keeping::is_whole(row) {
            found.push(format!("P2 delivery {} has lost its event", row.no));
        }
        if !is_over {
            let (no, status, id) = (row.no, row.status, &row.subscriber_id);
            found.push(format!("P2 delivery {no} to {id} is left {status:?}"));
        }
    }
}

fn sends_by_delivery(history: &History) -> BTreeMap<DeliveryNo, Vec<&Sent>> {
    let mut sends = BTreeMap::<DeliveryNo, Vec<&Sent>>::new();
    for sent in &history.sends {
        sends.entry(sent.delivery).or_default().push(sent);
    }
    sends
}

/// A delivery's status, and its count of attempts, are what its receiver would say.
fn statuses_are_true(history: &History, books: &Books, is_short: bool, found: &mut Vec<String>) {
    let sends = sends_by_delivery(history);
    for row in books.deliveries.values() {
        let own = sends.get(&row.no).map_or(&[][..], Vec::as_slice);
        let is_taken = own.iter().any(|sent| {
            sent.arrived.is_some()
                && sent.told.is_some_and(|(_, heard)| heard.is_success())
                && sent.recorded == Some(Next::Delivered)
        });
        if is_taken != (row.status == Status::Delivered) {
            let (no, status) = (row.no, row.status);
            found.push(format!("P2 delivery {no} is {status:?}, but its receiver took it: {is_taken}"));
        }
        if row.status == Status::Exhausted && row.reason.is_none() {
            found.push(format!("P2 delivery {} ended without a reason", row.no));
        }
        let recorded = own.iter().filter(|sent| sent.recorded.is_some()).count();
        if recorded != row.attempts as usize {
            let (no, attempts) = (row.no, row.attempts);
            found.push(format!("delivery {no} says {attempts} attempts, {recorded} were recorded"));
        }
    }
    for delivery in sends.keys() {
        if !books.deliveries.contains_key(delivery) && !is_short {
            found.push(format!("delivery {delivery} was sent and is unknown"));
        }
    }
}

/// Same `webhook-id`, same bytes; and they are the event's own or a form of them. Only an attempt whose result the
/// store never heard of may be followed by another form.
fn bodies_never_change(history: &History, found: &mut Vec<String>) {
    for sent in &history.sends {
        let kept = history.index.get(&sent.event).map(|index| &history.accepted[*index].body);
        let is_form = |kept: &Bytes| *kept == sent.body || Payload::Cloudevents.render(kept) == sent.body;
        if !kept.is_some_and(is_form) {
            found.push(format!("P3 delivery {} was sent with other bytes than were accepted", sent.delivery));
        }
    }
    for (delivery, sends) in sends_by_delivery(history) {
        for pair in sends.windows(2) {
            if pair[0].recorded.is_some() && pair[0].body != pair[1].body {
                found.push(format!("P3 delivery {delivery} was sent again with other bytes"));
            }
        }
    }
}

/// P3: after a success that the sender heard of, only a crash that kept it from the store explains another attempt.
fn duplicates_have_reasons(history: &History, found: &mut Vec<String>) {
    for (delivery, sends) in sends_by_delivery(history) {
        for pair in sends.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            let is_success = first.told.is_some_and(|(_, heard)| heard.is_success());
            if is_success && !is_forgotten(history, first, second) {
                found.push(format!("P3 delivery {delivery} was sent again after a known success"));
            }
            let is_over = matches!(first.recorded, Some(Next::Exhausted(_)));
            if is_over && !is_retried(history, first, second) {
                found.push(format!("P3 delivery {delivery} was sent again after its end"));
            }
        }
    }
}

/// The result of `first` died with its process.
fn is_forgotten(history: &History, first: &Sent, second: &Sent) -> bool {
    first.recorded.is_none() && first.life != second.life && history.lives[first.life] == Ended::Suddenly
}

fn is_retried(history: &History, first: &Sent, second: &Sent) -> bool {
    history
        .retries
        .iter()
        .any(|(t, delivery)| *delivery == first.delivery && (first.t..=second.t).contains(t))
}

/// Nothing is attempted before it is due, nor before its receiver allows it.
fn nothing_is_early(history: &History, plan: &Plan, found: &mut Vec<String>) {
    for (delivery, sends) in sends_by_delivery(history) {
        for pair in sends.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            let is_moved = plan.is_shared && history.jumps.iter().any(|t| *t <= second.t);
            if is_retried(history, first, second) || is_forgotten(history, first, second) || is_moved {
                continue;
            }
            let due = match first.recorded {
                Some(Next::RetryAt(at) | Next::PostponedTo(at)) => Some(at.as_ms()),
                _ => None,
            };
            let earliest = first.asked.max(due);
            if earliest.is_some_and(|earliest| second.now + history.apart_ms < earliest) {
                found.push(format!("delivery {delivery} was sent at {} before it was due", second.t));
            }
        }
    }
}

/// As many replays as were promised, each saying so on the wire, and nothing else does.
fn replays_are_what_was_asked_for(history: &History, books: &Books, is_short: bool, found: &mut Vec<String>) {
    let made: BTreeMap<_, usize> =
        books.replays.iter().map(|(pair, rows)| (pair.clone(), rows.len())).collect();
    let is_asked = |(pair, made): (&_, &usize)| history.replays.get(pair).is_some_and(|asked| made <= asked);
    if made != history.replays && !(is_short && made.iter().all(is_asked)) {
        found.push(format!("replays {made:?}, but {:?} were asked for", history.replays));
    }
    for sent in &history.sends {
        let Some(row) = books.deliveries.get(&sent.delivery) else { continue };
        let is_replay = row.replay;
        if is_replay != sent.is_replay {
            found.push(format!("delivery {} is a replay: {is_replay}, but said otherwise", sent.delivery));
        }
    }
}

/// A job sends nothing again twice, and one that came to its end has passed over nothing that it should have sent.
fn jobs_cover_all(history: &History, books: &Books, found: &mut Vec<String>) {
    for (no, job) in &history.jobs {
        let covered: BTreeSet<i64> = job.covered.iter().copied().collect();
        if covered.len() != job.covered.len() {
            found.push(format!("job {no} sent something again twice: {:?}", job.covered));
        }
        let What::Replay { subscriber, past: Past::Any } = job.scope.selector.what else { continue };
        let truth = &history.subs[&subscriber];
        let is_done = job.mark >= job.scope.until && truth.deleted.is_none();
        let (from, to) = job.versions;
        for (key, row) in books.events.iter().filter(|(key, _)| is_done && key.0 == job.scope.project) {
            let known = truth.specs.iter().filter(|(since, _)| *since <= to);
            let met = known
                .clone()
                .filter(|(since, _)| *since >= from)
                .chain(truth.specs.iter().rev().find(|(since, _)| *since <= from));
            let content = &history.accepted[history.index[key]].content;
            let mut wants = met.map(|(_, spec)| spec.wants(content).is_some());
            let is_meant = (job.scope.begin + 1..=job.scope.until).contains(&row.seq);
            if is_meant && wants.all(|wanted| wanted) && !covered.contains(&row.seq) {
                found.push(format!("job {no} passed over {}", key.2));
            }
        }
    }
}

/// P5: what goes through a lane first goes in order of acceptance, and replays in the order they were asked for. (Two
/// at once are noticed when it happens.)
fn lanes_keep_order(history: &History, books: &Books, found: &mut Vec<String>) {
    let seqs: BTreeMap<&EventKey, i64> = books.events.iter().map(|(key, row)| (key, row.seq)).collect();
    let mut seen = BTreeSet::new();
    let mut last = BTreeMap::<(SubscriberNo, &str), i64>::new();
    for sent in &history.sends {
        let Some(lane) = &sent.lane else { continue };
        if !seen.insert(sent.delivery) {
            continue;
        }
        let place = if sent.is_replay { Some(&sent.delivery) } else { seqs.get(&sent.event) };
        let Some(place) = place else { continue };
        let last = last.entry((sent.subscriber, lane)).or_insert(0);
        if place < last {
            let (id, event) = (&history.subs[&sent.subscriber].id, &sent.event.2);
            found.push(format!("P5 {event} came after a younger one in lane {lane} of {id}"));
        }
        *last = (*last).max(*place);
    }
}

/// Rates hold in every span without a change or a jump of the clock, also over restarts. Only the stand-in for a shared bucket dies
/// with its process.
fn rates_hold(history: &History, plan: &Plan, found: &mut Vec<String>) {
    let held_ms = gates::held_ms(plan);
    for (no, truth) in &history.subs {
        let sends: Vec<&Sent> = history.sends.iter().filter(|sent| sent.subscriber == *no).collect();
        let is_broken = |from: &Sent, to: &Sent| {
            let mut breaks = truth.touched.iter().chain(&history.jumps);
            let is_lost = from.life != to.life && plan.shares_rates && !plan.is_shared;
            is_lost || breaks.any(|t| (from.t - 200..=to.t).contains(t))
        };
        for (index, first) in sends.iter().enumerate() {
            let span = sends[index..].iter().take_while(|sent| !is_broken(first, sent));
            for (count, sent) in span.enumerate() {
                let span_ms = if plan.is_shared { sent.t - first.t } else { sent.now - first.now };
                let allowed = truth.latest_before(sent.t).rate_allows(span_ms + held_ms);
                if allowed.is_some_and(|allowed| count as i64 + 1 > allowed) {
                    found.push(format!("P8 {} got {} in {span_ms} ms", truth.id, count + 1));
                    return;
                }
            }
        }
    }
}

/// P8 and P5: whoever is healthy gets its events soon, whatever others do; so does a lane beside a failing one.
fn the_healthy_are_not_delayed(history: &History, found: &mut Vec<String>) {
    let mut first = BTreeMap::<(SubscriberNo, &EventKey), i64>::new();
    for sent in &history.sends {
        if let Some(arrived) = sent.arrived {
            first.entry((sent.subscriber, &sent.event)).or_insert(arrived);
        }
    }
    for (no, truth) in &history.subs {
        let bound = match truth.id.as_str() {
            "poisoned" => LANE_MS,
            id if id.starts_with("canary") => HEALTHY_MS,
            _ => continue,
        };
        for fact in &history.accepted {
            let is_poison = truth.id == "poisoned" && fact.content.key.as_deref() == Some(POISON);
            let is_late = fact.t + bound > END_T;
            let is_disturbed = history.is_disturbed(fact.t - bound, fact.t + bound);
            if is_poison || is_late || is_disturbed || owed(truth, fact) != Owed::Must {
                continue;
            }
            let waited = first.get(&(*no, &fact.key)).map_or(i64::MAX, |arrived| arrived - fact.t);
            if waited > bound {
                found.push(format!("P8 {} waited {waited} ms for {}", truth.id, fact.key.2));
            }
        }
    }
}

/// The trace of an event tells of all its deliveries, and of every subscriber there was.
async fn traces_are_true(site: &Site, books: &Books, found: &mut Vec<String>) {
    for (key, row) in books.events.iter().step_by(9) {
        let trace = site.parts.store.trace(key.0, row.seq).await.expect("the store works again");
        let history = site.history.lock();
        let alone = trace.deliveries.iter().filter(|row| row.fold.is_none());
        let told: BTreeSet<DeliveryNo> = alone.map(|row| row.no).collect();
        let own = history.subs.keys().flat_map(|no| {
            let pair = (*no, key.clone());
            [books.by_pair.get(&pair), books.replays.get(&pair)].into_iter().flatten()
        });
        if told != own.flatten().copied().collect() {
            found.push(format!("the trace of {} does not tell of its deliveries", key.2));
        }
        for (no, truth) in history.subs.iter().filter(|(_, truth)| truth.project == key.0) {
            let rule = trace.rules.iter().find(|rule| rule.subscriber == *no);
            let wanted = truth.spec_at(row.version).map(super::spec::Spec::definition);
            if rule.and_then(|rule| rule.definition.clone()) != wanted {
                found.push(format!("the trace of {} judges {} by the wrong rules", key.2, truth.id));
            }
        }
    }
}

fn note_rare_paths(history: &mut History) {
    let mut reached = Vec::new();
    for sends in sends_by_delivery(history).values() {
        for pair in sends.windows(2) {
            let is_taken = pair[0].answered.is_some_and(|status| status < 300);
            let is_unheard = pair[0].told.is_none_or(|(_, heard)| !heard.is_success());
            if is_taken && is_unheard && pair[1].arrived.is_some() {
                reached.push("a duplicate after a lost response");
            }
            if pair[0].asked.is_some() {
                reached.push("a receiver's wish honoured");
            }
        }
        if sends.iter().any(|sent| sent.lane.is_some()) {
            reached.push("a lane");
        }
        let fact = history.index.get(&sends[0].event).map(|index| &history.accepted[*index]);
        let mut pauses = history.subs[&sends[0].subscriber].pauses.iter();
        if fact.is_some_and(|fact| pauses.any(|(from, to)| *from < fact.t && fact.t < *to)) {
            reached.push("a held delivery released");
        }
    }
    reached.into_iter().for_each(|what| history.reach(what));
}
