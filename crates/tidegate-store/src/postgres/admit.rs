//! Which units come in, and what each is answered.
//!
//! A unit is an event and its sub-events: all of them come in, or none. An ordinary group finds out by taking the ids.
//! Where a unit has several events, shares an id with another one of its group, or concerns the quarantine, the ids are
//! taken in rounds, a unit that can not have all of its own gives back those it got, and only then is anything written.

use std::collections::BTreeSet;

use tokio_postgres::Row;

use super::db::{Asked, Conn};
use super::events::Key;
use super::folds::Folding;
use super::open::BLOCK_BITS;
use super::quarantine;
use super::submit::{Columns, Entry, NUMBERS_MAX};
use super::write::{Context, collect};
use crate::decided::{self, Holders, is_sound};
use crate::{Admission, Error, Result, Submission, UnitStatus, fingerprint_from};

pub(super) const HOLDERS: &str = "SELECT d.key_high, d.key_low, d.fingerprint
    FROM unnest($1::bigint[], $2::bigint[]) AS i(high, low)
    CROSS JOIN LATERAL (SELECT * FROM dedupe WHERE key_high = i.high AND key_low = i.low OFFSET 0) d";

async fn holders(conn: &Conn, keys: &[Key]) -> Asked<Holders<Key>> {
    if keys.is_empty() {
        return Ok(Holders::new());
    }
    let (high, low): (Vec<i64>, Vec<i64>) = keys.iter().map(|key| (key.high, key.low)).unzip();
    let rows = conn.rows(HOLDERS, &[&high, &low]).await?;
    let holder = |row: &Row| (Key { high: row.get(0), low: row.get(1) }, fingerprint_from(row.get(2)));
    Ok(rows.iter().map(holder).collect())
}

fn keys(entry: &Entry<'_>) -> Vec<Key> {
    entry.routed.unit.events.iter().map(|event| Key::of(entry.project, event)).collect()
}

/// Whether a unit is there already, and if so, how it compares.
fn known(entry: &Entry<'_>, holders: &Holders<Key>) -> Option<UnitStatus> {
    decided::known(entry.routed, &keys(entry), holders)
}

/// The answers to an ordinary group, whose units are single events that share no id.
pub(super) async fn answers(
    context: &Context<'_>,
    columns: &Columns<'_>,
    taken: Option<&[i64]>,
) -> Asked<Vec<Result<Vec<UnitStatus>>>> {
    let fresh = columns.fresh(taken);
    let repeated: Vec<Key> =
        (0..fresh.len()).filter(|index| !fresh[*index]).map(|index| columns.key(index)).collect();
    let holders = holders(context.conn, &repeated).await?;
    let mut answers = blank(context);
    for (index, entry) in columns.entries().iter().enumerate() {
        let status = if fresh[index] {
            UnitStatus::Accepted
        } else {
            // One that is gone again was there a moment ago.
            known(entry, &holders).unwrap_or(UnitStatus::Duplicate)
        };
        answers[entry.place.0][entry.place.1] = status;
    }
    Ok(answers.into_iter().map(Ok).collect())
}

/// Room for one answer per unit.
fn blank(context: &Context<'_>) -> Vec<Vec<UnitStatus>> {
    let submissions = &context.group.submissions;
    submissions.iter().map(|submission| vec![UnitStatus::Gone; submission.units.len()]).collect()
}

/// All units, in order.
fn entries(submissions: &[Submission]) -> Vec<Entry<'_>> {
    let entries = submissions.iter().enumerate().flat_map(|(which, submission)| {
        let units = submission.units.iter().enumerate();
        units.map(move |(unit, routed)| Entry { place: (which, unit), project: submission.project, routed })
    });
    entries.collect()
}

/// Any group: in rounds, so that in each round no two units want the same id.
pub(super) async fn submissions(context: &mut Context<'_>, folding: &mut Folding<'_>) -> Asked<()> {
    let group = context.group;
    if group.submissions.is_empty() {
        return Ok(());
    }
    if let Some(columns) = collect(context) {
        return ordinary(context, folding, &columns).await;
    }
    let mut answers = blank(context);
    let mut waiting = entries(&group.submissions);
    while !waiting.is_empty() {
        let (now, later) = split(waiting);
        round(context, folding, now, &mut answers).await?;
        waiting = later;
    }
    context.out.submissions = answers.into_iter().map(Ok).collect();
    Ok(())
}

/// An ordinary group finds out which ids are new by taking them.
async fn ordinary(context: &mut Context<'_>, folding: &mut Folding<'_>, columns: &Columns<'_>) -> Asked<()> {
    let (conn, block) = (context.conn, context.draw().await?);
    let (taken, made) = columns.insert(conn, &context.stamp(), block).await?;
    columns.hand_over(context, Some(made), block);
    let fresh = columns.fresh(Some(&taken));
    columns.fold(conn, folding, block, |index| fresh[index]).await?;
    context.out.submissions = answers(context, columns, Some(&taken)).await?;
    Ok(())
}

/// As many units from the front as share no id and find room in one block of numbers, up to one that concerns the
/// quarantine, which goes alone.
fn split(entries: Vec<Entry<'_>>) -> (Vec<Entry<'_>>, Vec<Entry<'_>>) {
    let mut met = BTreeSet::new();
    let (mut count, mut numbers) = (0, 0);
    for entry in &entries {
        let is_special = entry.routed.admission != Admission::Granted;
        numbers += entry.numbers_max();
        let has_room = numbers < NUMBERS_MAX;
        let is_first = count == 0;
        if !is_first && (is_special || !has_room) || !keys(entry).into_iter().all(|key| met.insert(key)) {
            break;
        }
        count += 1;
        if is_special {
            break;
        }
    }
    let mut now = entries;
    // A unit that names one id twice can share a round with nobody, not even with itself.
    let later = now.split_off(count.max(1));
    (now, later)
}

async fn round<'a>(
    context: &mut Context<'a>,
    folding: &mut Folding<'_>,
    entries: Vec<Entry<'a>>,
    answers: &mut [Vec<UnitStatus>],
) -> Asked<()> {
    let mut coming = Vec::new();
    for entry in entries {
        match special(context, &entry).await? {
            Some(status) => answers[entry.place.0][entry.place.1] = status,
            None => coming.push(entry),
        }
    }
    let taken = take(context, &coming, answers).await?;
    let mut columns = Columns::default();
    for entry in taken {
        columns.push(context, entry);
        answers[entry.place.0][entry.place.1] = UnitStatus::Accepted;
    }
    columns.sort();
    if columns.is_empty() {
        return Ok(());
    }
    if columns.numbers_max() >= 1 << BLOCK_BITS {
        return Err(Error::Quota(
            "an event with its sub-events goes to too many subscribers at once".to_owned(),
        )
        .into());
    }
    let block = context.draw().await?;
    let (_, made) = columns.insert(context.conn, &context.stamp(), block).await?;
    columns.hand_over(context, Some(made), block);
    columns.fold(context.conn, folding, block, |_| true).await
}

/// What the quarantine says to a unit that concerns it; `None` means that it comes in.
async fn special(context: &mut Context<'_>, entry: &Entry<'_>) -> Asked<Option<UnitStatus>> {
    if entry.routed.admission == Admission::Granted {
        return Ok(None);
    }
    let found = holders(context.conn, &keys(entry)).await?;
    let known = known(entry, &found);
    match &entry.routed.admission {
        Admission::Refused(finding) if known.is_none() => {
            quarantine::insert(context, entry.project, &entry.routed.unit, finding).await.map(Some)
        }
        Admission::Released(no) => quarantine::release(context, entry.project, *no, known).await,
        Admission::Refused(_) | Admission::Granted => Ok(known),
    }
}

/// Finds out which units can have all their ids, by taking and giving back: whoever else wants one of them meanwhile
/// waits for this transaction. Answers those that can not.
async fn take<'a>(
    context: &Context<'a>,
    coming: &[Entry<'a>],
    answers: &mut [Vec<UnitStatus>],
) -> Asked<Vec<Entry<'a>>> {
    let conn = context.conn;
    let mut wanted: Vec<Key> = coming.iter().flat_map(keys).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let (high, low): (Vec<i64>, Vec<i64>) = wanted.iter().map(|key| (key.high, key.low)).unzip();
    let rows = conn
        .rows(
            "INSERT INTO dedupe (key_high, key_low, event, fingerprint)
             SELECT i.high, i.low, -1, '' FROM unnest($1::bigint[], $2::bigint[]) AS i(high, low)
             ON CONFLICT DO NOTHING RETURNING key_high, key_low",
            &[&high, &low],
        )
        .await?;
    let fresh: BTreeSet<Key> = rows.iter().map(|row| Key { high: row.get(0), low: row.get(1) }).collect();
    let lost: Vec<Key> = wanted.iter().copied().filter(|key| !fresh.contains(key)).collect();
    let holders = holders(conn, &lost).await?;
    // The places are taken again, with their numbers, by those that come in; nobody sees the gap.
    let (high, low): (Vec<i64>, Vec<i64>) = fresh.iter().map(|key| (key.high, key.low)).unzip();
    conn.execute(
        "DELETE FROM dedupe d USING unnest($1::bigint[], $2::bigint[]) AS i(high, low)
         WHERE d.key_high = i.high AND d.key_low = i.low",
        &[&high, &low],
    )
    .await?;
    let mut taken = Vec::new();
    for entry in coming {
        match known(entry, &holders) {
            Some(status) => answers[entry.place.0][entry.place.1] = status,
            None if is_sound(&keys(entry)) => taken.push(*entry),
            None => answers[entry.place.0][entry.place.1] = UnitStatus::Conflict,
        }
    }
    Ok(taken)
}

/// Who has an id, and whether this group gave it.
pub(super) const HOLDERS_AND_OURS: &str = "SELECT d.key_high, d.key_low, d.fingerprint,
        EXISTS (SELECT 1 FROM events e WHERE e.seq = d.event AND e.incarnation = $3 AND e.written = $4)
    FROM unnest($1::bigint[], $2::bigint[]) AS i(high, low)
    CROSS JOIN LATERAL (SELECT * FROM dedupe WHERE key_high = i.high AND key_low = i.low OFFSET 0) d";

/// What became of requests whose group was written without an answer.
pub(super) async fn read_back(
    conn: &Conn,
    submissions: &[Submission],
    (incarnation, written): (i64, i64),
) -> Asked<Vec<Vec<UnitStatus>>> {
    let wanted: BTreeSet<Key> = entries(submissions).iter().flat_map(keys).collect();
    let (high, low): (Vec<i64>, Vec<i64>) = wanted.iter().map(|key| (key.high, key.low)).unzip();
    let rows = conn.rows(HOLDERS_AND_OURS, &[&high, &low, &incarnation, &written]).await?;
    let (mut before, mut ours) = (Holders::new(), Holders::new());
    for row in &rows {
        let side = if row.get(3) { &mut ours } else { &mut before };
        side.insert(Key { high: row.get(0), low: row.get(1) }, fingerprint_from(row.get(2)));
    }
    Ok(decided::read_back(submissions, Key::of, before, &ours))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tidegate_core::event::{Event, Fingerprinter, Unit};
    use tidegate_core::route::Route;
    use tidegate_core::time::Timestamp;

    use super::*;
    use crate::RoutedUnit;

    fn unit(id: usize, routes: i64) -> RoutedUnit {
        let event = Event {
            id: id.to_string(),
            source: "shop".to_owned(),
            type_name: "order.paid".to_owned(),
            subject: None,
            time: Timestamp::from_ms(0),
            body: Bytes::new(),
        };
        let routes = (0..routes).map(|subscriber| Route::alone(subscriber, None)).collect();
        RoutedUnit {
            unit: Unit { events: vec![event], fingerprint: Fingerprinter::default().finish() },
            routes: vec![routes],
            keys: vec![0],
            admission: Admission::Granted,
        }
    }

    #[test]
    fn a_round_needs_no_more_numbers_than_a_block_has() {
        let units =
            [unit(0, NUMBERS_MAX / 2), unit(1, NUMBERS_MAX / 4), unit(2, NUMBERS_MAX / 4), unit(3, 1)];
        let mut waiting: Vec<Entry<'_>> = units
            .iter()
            .enumerate()
            .map(|(at, routed)| Entry { place: (0, at), project: 1, routed })
            .collect();
        let mut rounds = Vec::new();
        while !waiting.is_empty() {
            let (now, later) = split(waiting);
            rounds.push(now.len());
            waiting = later;
        }
        assert_eq!(rounds, [2, 2]);
        let alone = [unit(0, NUMBERS_MAX), unit(1, 1)];
        let entries = alone.iter().map(|routed| Entry { place: (0, 0), project: 1, routed }).collect();
        assert_eq!(split(entries).0.len(), 1, "whatever it needs");
    }
}
