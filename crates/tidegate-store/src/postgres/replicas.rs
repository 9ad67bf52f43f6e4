//! The processes that share the store: who lives, and what becomes of what the dead held.

use tidegate_core::delivery::{after_end, set_aside_reason};
use tidegate_core::id::{DeliveryNo, Incarnation, Lane, SubscriberNo, WindowNo};
use tidegate_core::limits::CLAIMS_LOST_MAX;
use tidegate_core::schedule::Stance;
use tidegate_core::time::Timestamp;
use tokio_postgres::types::ToSql;

use super::connect::FSYNC_OFF;
use super::db::{Asked, Conn};
use super::{BEAT_TTL, held, lanes, windows};
use crate::observe::{read_switches, written_switches};
use crate::rewind::{Found, Seen};
use crate::{Beat, Error, Load, Replica, TakenOver};

/// The database's clock, in milliseconds.
const NOW_MS: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// What it shows.
pub(super) async fn now(conn: &Conn) -> Asked<Timestamp> {
    let row = conn.only(&format!("SELECT {NOW_MS}"), &[]).await?;
    Ok(Timestamp::from_ms(row.get(0)))
}

/// Drawn by chance, not from a sequence: in a database that goes back in time that would give two living processes one
/// life. Few enough bits that JSON shows it exactly.
const DRAW_LIFE: &str = "SELECT 1 + ('x' || right(gen_random_uuid()::text, 12))::bit(48)::bigint";

/// Gives this process a new life.
pub(super) async fn join(conn: &Conn, name: &str, now: Timestamp) -> Asked<Incarnation> {
    let incarnation: Incarnation = conn.only(DRAW_LIFE, &[]).await?.get(0);
    conn.execute("INSERT INTO replicas (incarnation, held) VALUES ($1, '{}')", &[&incarnation]).await?;
    let mark = "INSERT INTO marks SELECT $1, (last_value << 20) - 1, $2 FROM numbers";
    conn.execute(mark, &[&incarnation, &now.as_ms()]).await?;
    // It has no part of any limit before it says more.
    let sql = format!(
        "INSERT INTO beats (incarnation, name, began_at, at, divides, busy, leaving)
         VALUES ($1, $2, $3, {NOW_MS}, 0, '{{}}', false)"
    );
    conn.execute(&sql, &[&incarnation, &name, &now.as_ms()]).await?;
    Ok(incarnation)
}

/// Writes down that this process lives. One that was declared dead does not come back to life by it.
async fn say(conn: &Conn, incarnation: Incarnation, load: Load) -> Asked<()> {
    let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let sql = format!(
        "UPDATE beats SET at = {NOW_MS}, in_flight = $2, queued = $3, streams = $4, obeys = $5,
            wall = $6, switches = $7, divides = $8, busy = $9, leaving = $10
         WHERE incarnation = $1"
    );
    let (in_flight, queued, streams) = (count(load.in_flight), count(load.queued), count(load.streams));
    let wall = load.wall.map(Timestamp::as_ms);
    let switches = load.switches.map(written_switches);
    let (divides, busy, leaving) = match load.stance {
        Some(Stance { divides, busy, is_leaving }) => (Some(divides), busy, Some(is_leaving)),
        None => (None, None, None),
    };
    let said: [&(dyn ToSql + Sync); 10] = [
        &incarnation,
        &in_flight,
        &queued,
        &streams,
        &load.obeys,
        &wall,
        &switches,
        &divides,
        &busy,
        &leaving,
    ];
    let alive = conn.execute(&sql, &said).await?;
    if alive == 0 {
        return Err(Error::Fenced.into());
    }
    Ok(())
}

/// Says that this process lives, and hears who else does.
pub(super) async fn beat(conn: &Conn, incarnation: Incarnation, load: Load, seen: &Seen) -> Asked<Beat> {
    let known = seen.known();
    say(conn, incarnation, load).await?;
    let sql = format!(
        "SELECT incarnation, name, began_at, b.at, in_flight, queued, {NOW_MS}, streams, version, obeys, wall,
            current_setting('fsync'), switches, coalesce(written, 0), divides, busy, coalesce(leaving, false),
            last_value
         FROM beats b LEFT JOIN replicas USING (incarnation), installation, numbers ORDER BY began_at, incarnation"
    );
    let rows = conn.rows(&sql, &[]).await?;
    let mut beat = Beat {
        now: None,
        incarnation,
        replicas: Vec::new(),
        expired: Vec::new(),
        version: None,
        weakness: None,
    };
    for row in &rows {
        let is_own = row.get::<_, Incarnation>(0) == known.life && known.life == incarnation;
        let written = is_own.then(|| row.get(13));
        let found = Found { written, version: row.get(8), block: row.get(17) };
        seen.compare(known, found)?;
    }
    for row in rows {
        let (at, now) = (Timestamp::from_ms(row.get(3)), Timestamp::from_ms(row.get(6)));
        beat.now = Some(now);
        beat.version = Some(row.get(8));
        seen.version(row.get(8));
        beat.weakness = (row.get::<_, &str>(11) == "off").then_some(FSYNC_OFF);
        // One that lies ahead is from before the database's clock went back, and has not been renewed since.
        if now.since(at) > BEAT_TTL || at.since(now) > BEAT_TTL {
            beat.expired.push(row.get(0));
            continue;
        }
        let size = |column| row.get::<_, i64>(column).unsigned_abs();
        beat.replicas.push(Replica {
            incarnation: row.get(0),
            name: row.get(1),
            began_at: Timestamp::from_ms(row.get(2)),
            at,
            load: Load {
                in_flight: size(4),
                queued: size(5),
                streams: size(7),
                obeys: row.get(9),
                wall: row.get::<_, Option<i64>>(10).map(Timestamp::from_ms),
                switches: row.get::<_, Option<&str>>(12).map(read_switches),
                stance: row.get::<_, Option<i64>>(14).map(|divides| Stance {
                    divides,
                    busy: row.get(15),
                    is_leaving: row.get(16),
                }),
            },
            groups: size(13),
        });
    }
    Ok(beat)
}

/// Voids what an expired process held.
pub(super) async fn take_over(
    conn: &Conn,
    space: i32,
    expired: Incarnation,
    now: Timestamp,
) -> Asked<TakenOver> {
    let ttl = i64::try_from(BEAT_TTL.as_millis()).unwrap_or(i64::MAX);
    let sql = format!("DELETE FROM beats WHERE incarnation = $1 AND abs({NOW_MS} - at) > $2");
    if conn.execute(&sql, &[&expired, &ttl]).await? == 0 {
        return Ok(TakenOver::default());
    }
    end(conn, space, expired, now, true).await
}

/// Ends a life in good order: what it still holds was not sent.
pub(super) async fn leave(conn: &Conn, space: i32, incarnation: Incarnation, now: Timestamp) -> Asked<()> {
    conn.execute("DELETE FROM beats WHERE incarnation = $1", &[&incarnation]).await?;
    end(conn, space, incarnation, now, false).await?;
    Ok(())
}

/// From here on no group of that life is written any more; one that is under way is waited for.
pub(super) async fn end(
    conn: &Conn,
    space: i32,
    incarnation: Incarnation,
    now: Timestamp,
    is_lost: bool,
) -> Asked<TakenOver> {
    let sql = "DELETE FROM replicas WHERE incarnation = $1 RETURNING at, held";
    let gone = conn.row(sql, &[&incarnation]).await?;
    let latest = gone.as_ref().map_or(now, |row| now.max(Timestamp::from_ms(row.get(0))));
    let claims = held::claims(conn, incarnation, gone.and_then(|row| row.get(1))).await?;
    let sql = "SELECT id, subscriber, lane, lost FROM deliveries WHERE id = ANY($1)";
    let held = conn.rows(sql, &[&claims]).await?;
    let (mut due, mut aside) = (Vec::new(), Vec::new());
    let mut touched = lanes::Lanes::new();
    for row in held {
        let (id, subscriber, lane): (DeliveryNo, SubscriberNo, Option<Lane>) =
            (row.get(0), row.get(1), row.get(2));
        let lost = after_end(row.get::<_, i32>(3).unsigned_abs(), is_lost);
        let fate = if lost.is_some() { &mut due } else { &mut aside };
        fate.push(id);
        touched.extend(lane.map(|lane| (subscriber, lane)));
    }
    lanes::lock(conn, space, &touched).await?;
    // Whoever had the lanes meanwhile may have ended some of them.
    let (more, most) = (i32::from(is_lost), CLAIMS_LOST_MAX.cast_signed());
    let due = conn
        .execute(
            // What may still be joined gets another id: in a database that went back in time it may have left before.
            "UPDATE deliveries SET status = 0, lost = least(lost + $2, $4), incarnation = NULL, holder = NULL,
                nonce = CASE WHEN $2 > 0 AND fold IN (SELECT no FROM windows WHERE no = fold AND stage = 1) THEN $5
                    ELSE nonce END
             WHERE id = ANY($1) AND status = 1 AND incarnation = $3",
            &[&due, &more, &incarnation, &most, &conn.nonce()],
        )
        .await?;
    let aside = conn
        .rows(
            "UPDATE deliveries SET status = 4, incarnation = NULL, holder = NULL, finished_at = $2, reason = $3
             WHERE id = ANY($1) AND status = 1 AND incarnation = $4 RETURNING fold",
            &[&aside, &now.as_ms(), &set_aside_reason(), &incarnation],
        )
        .await?;
    let ended: Vec<WindowNo> = aside.iter().filter_map(|row| row.get(0)).collect();
    windows::seal_ended(conn, &ended).await?;
    lanes::make_next_due(conn, &touched, now).await?;
    // After the lanes, like everybody else who holds some.
    stamp(conn, latest).await?;
    Ok(TakenOver { due, set_aside: aside.len() as u64 })
}

/// Keeps the time of a change that is no group's: no process may start with an earlier one.
pub(super) async fn stamp(conn: &Conn, now: Timestamp) -> Asked<()> {
    conn.execute("UPDATE installation SET at = $1 WHERE at < $1", &[&now.as_ms()]).await?;
    Ok(())
}

/// Keeps a proof of the master key, if there is none yet; says which is kept.
pub(super) async fn proof(conn: &Conn, sealed: &[u8]) -> Asked<Vec<u8>> {
    let sql = "UPDATE installation SET sealed = coalesce(sealed, $1) RETURNING sealed";
    Ok(conn.only(sql, &[&sealed]).await?.get(0))
}

/// Puts another proof in the place of the one that is kept.
pub(super) async fn prove_anew(conn: &Conn, kept: &[u8], anew: &[u8]) -> Asked<()> {
    conn.execute("UPDATE installation SET sealed = $2 WHERE sealed = $1", &[&kept, &anew]).await?;
    Ok(())
}
