//! Rollups: packed cells, one row for many keys of a bucket. Whoever adds holds the metrics' rows.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::id::{KeyNo, MetricNo};
use tidegate_core::observe::{Cell, Delta, Grain, page};

use super::db::{Asked, Conn};
use crate::{Buckets, Error, Rollups};

/// The key of whatever has no number of its own.
const OTHER: KeyNo = 0;

/// Numbers of the keys of each gain, by their places.
type Numbers = Vec<Vec<Option<KeyNo>>>;
/// Metric, grain, bucket and page.
type Place = (MetricNo, i64, i64, i64);

/// Adds to the cells that are there.
pub(super) async fn add(conn: &Conn, delta: &Delta) -> Asked<()> {
    if delta.gains.is_empty() {
        return Ok(());
    }
    let numbers = number(conn, delta).await?;
    let mut more: Vec<(Place, Vec<(KeyNo, Cell)>)> = Vec::new();
    for (gain, numbers) in delta.gains.iter().zip(&numbers) {
        let number = |place: u32| numbers[place as usize].unwrap_or(OTHER);
        let each = |grain: Grain, bucket, page, cells: &[(KeyNo, Cell)]| {
            more.push(((gain.metric, grain.code(), bucket, i64::from(page)), cells.to_vec()));
            Ok::<(), Error>(())
        };
        gain.each_page(number, each)?;
    }
    let places: Vec<Place> = more.iter().map(|(place, _)| *place).collect();
    let there = pages(conn, &places).await?;
    let mut merged = Vec::with_capacity(places.len());
    for (place, cells) in more {
        let page = page::merge(there.get(&place).map(Vec::as_slice), &cells);
        merged.push(page.map_err(|torn| Error::Unavailable(torn.to_string()))?);
    }
    let (metrics, grains, buckets, numbers) = columns(&places);
    conn.execute(
        "INSERT INTO rollups (metric, grain, bucket, page, cells)
         SELECT * FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bytea[])
         ON CONFLICT (metric, grain, bucket, page) DO UPDATE SET cells = excluded.cells",
        &[&metrics, &grains, &buckets, &numbers, &merged],
    )
    .await?;
    Ok(())
}

fn columns(places: &[Place]) -> (Vec<i64>, Vec<i64>, Vec<i64>, Vec<i64>) {
    let column = |pick: fn(&Place) -> i64| places.iter().map(pick).collect();
    (column(|p| p.0), column(|p| p.1), column(|p| p.2), column(|p| p.3))
}

/// The pages that are there already.
async fn pages(conn: &Conn, places: &[Place]) -> Asked<BTreeMap<Place, Vec<u8>>> {
    let (metrics, grains, buckets, pages) = columns(places);
    let sql = "SELECT r.metric, r.grain, r.bucket, r.page, r.cells
        FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[]) AS i(metric, grain, bucket, page)
        CROSS JOIN LATERAL (SELECT * FROM rollups WHERE metric = i.metric AND grain = i.grain
            AND bucket = i.bucket AND page = i.page OFFSET 0) r";
    let rows = conn.rows(sql, &[&metrics, &grains, &buckets, &pages]).await?;
    Ok(rows.iter().map(|row| ((row.get(0), row.get(1), row.get(2), row.get(3)), row.get(4))).collect())
}

/// The numbers of the keys that metrics gain; new ones get theirs for as long as their metric has any.
async fn number(conn: &Conn, delta: &Delta) -> Asked<Numbers> {
    let mut numbers: Numbers = vec![vec![None; delta.keys.len()]; delta.gains.len()];
    let mut wanted: Vec<(usize, u32)> = Vec::new();
    for (which, gain) in delta.gains.iter().enumerate() {
        let mut places: Vec<u32> = gain.cells.iter().map(|(_, place, _)| *place).collect();
        places.sort_unstable();
        places.dedup();
        wanted.extend(places.into_iter().map(|place| (which, place)));
    }
    let (metrics, keys): (Vec<MetricNo>, Vec<&[u8]>) = wanted
        .iter()
        .map(|(which, place)| (delta.gains[*which].metric, delta.keys[*place as usize].as_bytes()))
        .unzip();
    let sql =
        "SELECT i.place, k.no FROM unnest($1::bigint[], $2::bytea[]) WITH ORDINALITY AS i(metric, key, place)
        CROSS JOIN LATERAL (SELECT no FROM rollup_keys WHERE metric = i.metric AND key = i.key OFFSET 0) k";
    let rows = conn.rows(sql, &[&metrics, &keys]).await?;
    for row in &rows {
        let (which, place) = wanted[usize::try_from(row.get::<_, i64>(0) - 1).unwrap_or(0)];
        numbers[which][place as usize] = Some(u32::try_from(row.get::<_, i64>(1)).unwrap_or(OTHER));
    }
    wanted.retain(|(which, place)| numbers[*which][*place as usize].is_none());
    number_new(conn, delta, &wanted, &mut numbers).await?;
    Ok(numbers)
}

async fn number_new(conn: &Conn, delta: &Delta, new: &[(usize, u32)], numbers: &mut Numbers) -> Asked<()> {
    if new.is_empty() {
        return Ok(());
    }
    let metrics: BTreeSet<MetricNo> = new.iter().map(|(which, _)| delta.gains[*which].metric).collect();
    let metrics: Vec<MetricNo> = metrics.into_iter().collect();
    let counts = conn
        .rows("SELECT no, keys, keys_max + keys_back FROM metrics WHERE no = ANY($1)", &[&metrics])
        .await?;
    let mut counts: BTreeMap<MetricNo, (i64, i64)> =
        counts.iter().map(|row| (row.get(0), (row.get(1), row.get(2)))).collect();
    let (mut of, mut keys, mut given) = (Vec::new(), Vec::new(), Vec::new());
    for (which, place) in new {
        let metric = delta.gains[*which].metric;
        let Some((count, max)) = counts.get_mut(&metric) else { continue };
        if count < max {
            *count += 1;
            of.push(metric);
            keys.push(delta.keys[*place as usize].as_bytes());
            given.push(*count);
            numbers[*which][*place as usize] = Some(u32::try_from(*count).unwrap_or(OTHER));
        }
    }
    let insert = "INSERT INTO rollup_keys (metric, key, no)
        SELECT * FROM unnest($1::bigint[], $2::bytea[], $3::bigint[])";
    conn.execute(insert, &[&of, &keys, &given]).await?;
    let counts: Vec<i64> = metrics.iter().map(|no| counts.get(no).map_or(0, |(count, _)| *count)).collect();
    let update = "UPDATE metrics m SET keys = i.keys
        FROM unnest($1::bigint[], $2::bigint[]) AS i(no, keys) WHERE m.no = i.no AND m.keys <> i.keys";
    conn.execute(update, &[&metrics, &counts]).await?;
    Ok(())
}

/// What a metric has in some buckets, as of one instant.
pub(super) async fn read(conn: &Conn, metric: MetricNo, buckets: &[Buckets]) -> Asked<Rollups> {
    let sql = "SELECT no, key FROM rollup_keys WHERE metric = $1";
    let rows = conn.rows(sql, &[&metric]).await?;
    let keys = rows
        .iter()
        .map(|row| {
            let key = String::from_utf8_lossy(row.get(1)).into();
            (u32::try_from(row.get::<_, i64>(0)).unwrap_or(OTHER), key)
        })
        .collect();
    let mut pages: Vec<(Grain, i64, Vec<u8>)> = Vec::new();
    let sql = "SELECT bucket, cells FROM rollups
        WHERE metric = $1 AND grain = $2 AND bucket >= $3 AND bucket < $4 ORDER BY bucket, page";
    for Buckets { grain, from, to } in buckets {
        let rows = conn.rows(sql, &[&metric, &grain.code(), from, to]).await?;
        pages.extend(rows.iter().map(|row| (*grain, row.get(0), row.get(1))));
    }
    Ok(Rollups { keys, pages })
}
