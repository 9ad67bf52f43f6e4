//! Projects, keys and subscribers: few rows, changed seldom, each change one version.

use std::sync::{Arc, PoisonError};

use rusqlite::{Connection, OptionalExtension, Params, Row, Transaction, params};
use tidegate_core::catalog::Mode;
use tidegate_core::fold::Decided;
use tidegate_core::id::{ProjectNo, SubscriberNo, Version};
use tidegate_core::limits::{KEYS_PER_PROJECT_MAX, PROJECTS_MAX, SUBSCRIBERS_PER_PROJECT_MAX};
use tidegate_core::time::Timestamp;
use tidegate_core::verification::VerificationStatus;

use super::catalog::Declaration;
use super::sweep::Numbered;
use super::{Writer, catalog, failed, folds, gates, lanes, rebuilds, stamp, verification};
use crate::configuration::FormerConditions;
use crate::{
    Change, Changed, Configuration, Error, KeyRow, NewKey, NewSecret, NewSubscriber, ProjectRow, Result,
    SubscriberRow, SubscriberUpdate,
};

pub(super) fn change(writer: &mut Writer, change: &Change, now: Timestamp) -> Result<Changed> {
    let version = writer.version + 1;
    let last = writer.next_no - 1;
    let shared = Arc::clone(&writer.book);
    let mut book = shared.lock().unwrap_or_else(PoisonError::into_inner);
    let tx = writer.conn.transaction().map_err(failed)?;
    let (no, created) = apply(&tx, change, version, last, now)?;
    if change.is_about_counting() {
        rebuilds::stop_vain(&tx, now).map_err(failed)?;
    }
    if let Change::UpdateSubscriber {
        no, update: SubscriberUpdate { skip_after: Some(failures), .. }, ..
    } = change
    {
        lanes::let_pass(&tx, &writer.backfilling, *no, *failures, now).map_err(failed)?;
    }
    let left = match change {
        Change::DeleteSubscriber { project, no } => {
            folds::leave(&tx, &book, (*project, *no), now).map_err(failed)?
        }
        _ => Decided::default(),
    };
    tx.execute("UPDATE meta SET value = ?1 WHERE name = 'version'", [version]).map_err(failed)?;
    stamp(&tx, now).map_err(failed)?;
    tx.commit().map_err(failed)?;
    book.apply(left);
    writer.version = version;
    match change {
        Change::CreateSubscriber(new) if new.backfill_from.is_some() => {
            writer.backfilling.insert(no, 0);
        }
        Change::DeleteSubscriber { no, .. } => {
            writer.backfilling.remove(no);
        }
        _ => {}
    }
    Ok(Changed { version, no, created })
}

/// What was created or changed, and whether it was created.
fn apply(
    tx: &Transaction<'_>,
    change: &Change,
    version: Version,
    last: i64,
    now: Timestamp,
) -> Result<(i64, bool)> {
    let no = match change {
        Change::CreateProject { id, catalog } => create_project(tx, id, *catalog, now),
        Change::UpdateProject { no, catalog } => update_project(tx, *no, *catalog),
        Change::DeleteProject { no } => delete_project(tx, *no, version, now),
        Change::PutType { project, service, type_name, definition, metrics, keep_ms } => {
            check_project(tx, *project)?;
            let declared = Declaration { definition, metrics, keep_ms: *keep_ms, last };
            let created = catalog::put(tx, (*project, service, type_name), &declared, version, now)?;
            return Ok((*project, created));
        }
        Change::SwitchObserving(switches) => catalog::switch(tx, *switches, version),
        Change::DeleteType { project, service, type_name } => {
            catalog::delete(tx, (*project, service, type_name), version, now)
        }
        Change::PutGate { project, name, definition } => {
            check_project(tx, *project)?;
            return gates::put(tx, (*project, name), definition, version, now);
        }
        Change::DeleteGate { project, name } => gates::delete(tx, (*project, name), version, now),
        Change::CreateKey(new) => create_key(tx, new, now),
        Change::DeleteKey { project, id } => delete_key(tx, *project, id),
        Change::CreateSubscriber(new) => create_subscriber(tx, new, version, last, now),
        Change::UpdateSubscriber { project, no, update } => {
            update_subscriber(tx, *project, *no, update, version, now)
        }
        Change::DeleteSubscriber { project, no } => delete_subscriber(tx, *project, *no, version, now),
    }?;
    let created =
        matches!(change, Change::CreateProject { .. } | Change::CreateKey(_) | Change::CreateSubscriber(_));
    Ok((no, created))
}

pub(super) fn count(tx: &Transaction<'_>, sql: &str, project: ProjectNo) -> Result<usize> {
    tx.query_row(sql, [project], |row| row.get(0)).map_err(failed)
}

fn is_there(tx: &Transaction<'_>, sql: &str, values: impl Params) -> Result<bool> {
    tx.prepare(sql).and_then(|mut statement| statement.exists(values)).map_err(failed)
}

fn check_project(tx: &Transaction<'_>, no: ProjectNo) -> Result<()> {
    let living = "SELECT 1 FROM projects WHERE no = ?1 AND deleted_at IS NULL";
    if is_there(tx, living, [no])? { Ok(()) } else { Err(Error::NotFound) }
}

fn create_project(tx: &Transaction<'_>, id: &str, catalog: Mode, now: Timestamp) -> Result<i64> {
    if is_there(tx, "SELECT 1 FROM projects WHERE id = ?1 AND deleted_at IS NULL", [id])? {
        return Err(Error::Conflict(format!("the project {id} exists already")));
    }
    if count(tx, "SELECT count(*) FROM projects WHERE deleted_at IS NULL AND no <> ?1", 0)? >= PROJECTS_MAX {
        return Err(Error::Quota(format!("an installation has at most {PROJECTS_MAX} projects")));
    }
    let insert = "INSERT INTO projects (id, catalog, created_at) VALUES (?1, ?2, ?3)";
    tx.execute(insert, params![id, catalog.name(), now.as_ms()]).map_err(failed)?;
    Ok(tx.last_insert_rowid())
}

fn update_project(tx: &Transaction<'_>, no: ProjectNo, catalog: Mode) -> Result<i64> {
    let update = "UPDATE projects SET catalog = ?2 WHERE no = ?1 AND deleted_at IS NULL";
    match tx.execute(update, params![no, catalog.name()]).map_err(failed)? {
        0 => Err(Error::NotFound),
        _ => Ok(no),
    }
}

fn delete_project(tx: &Transaction<'_>, no: ProjectNo, version: Version, now: Timestamp) -> Result<i64> {
    let living = "SELECT count(*) FROM subscribers WHERE project = ?1 AND deleted_at IS NULL";
    if count(tx, living, no)? > 0 {
        return Err(Error::Conflict("the project still has subscribers: delete them first".into()));
    }
    let changed = tx
        .execute(
            "UPDATE projects SET deleted_at = ?2 WHERE no = ?1 AND deleted_at IS NULL",
            params![no, now.as_ms()],
        )
        .map_err(failed)?;
    tx.execute("DELETE FROM keys WHERE project = ?1", [no]).map_err(failed)?;
    catalog::delete_all(tx, no, version, now)?;
    gates::delete_all(tx, no, version, now)?;
    if changed == 0 { Err(Error::NotFound) } else { Ok(no) }
}

fn create_key(tx: &Transaction<'_>, new: &NewKey, now: Timestamp) -> Result<i64> {
    if is_there(tx, "SELECT 1 FROM keys WHERE hash = ?1", [&new.hash])? {
        return Ok(new.project);
    }
    if new.project != 0 {
        check_project(tx, new.project)?;
    }
    if is_there(tx, "SELECT 1 FROM keys WHERE project = ?1 AND id = ?2", params![new.project, new.id])? {
        return Err(Error::Conflict(format!("the key {} exists already", new.id)));
    }
    if count(tx, "SELECT count(*) FROM keys WHERE project = ?1", new.project)? >= KEYS_PER_PROJECT_MAX {
        return Err(Error::Quota(format!(
            "a project has at most {KEYS_PER_PROJECT_MAX} keys: delete unused ones"
        )));
    }
    tx.execute(
        "INSERT INTO keys (project, id, role, name, prefix, hash, created_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        params![new.project, new.id, new.role, new.name, new.prefix, new.hash, now.as_ms()],
    )
    .map_err(failed)?;
    Ok(new.project)
}

fn delete_key(tx: &Transaction<'_>, project: ProjectNo, id: &str) -> Result<i64> {
    let changed = tx
        .execute("DELETE FROM keys WHERE project = ?1 AND id = ?2", params![project, id])
        .map_err(failed)?;
    if changed == 0 { Err(Error::NotFound) } else { Ok(project) }
}

fn create_subscriber(
    tx: &Transaction<'_>,
    new: &NewSubscriber,
    version: Version,
    last: i64,
    now: Timestamp,
) -> Result<i64> {
    check_project(tx, new.project)?;
    let taken = "SELECT 1 FROM subscribers WHERE project = ?1 AND id = ?2 AND deleted_at IS NULL";
    if is_there(tx, taken, params![new.project, new.id])? {
        return Err(Error::Conflict(format!("the subscriber {} exists already", new.id)));
    }
    let living = "SELECT count(*) FROM subscribers WHERE project = ?1 AND deleted_at IS NULL";
    if count(tx, living, new.project)? >= SUBSCRIBERS_PER_PROJECT_MAX {
        return Err(Error::Quota(format!("a project has at most {SUBSCRIBERS_PER_PROJECT_MAX} subscribers")));
    }
    gates::check(tx, new.project, &new.definition)?;
    let backfill = new.backfill_from.map(|from| (0, last, from.as_ms()));
    let no = Numbered::Subscribers.next(tx).map_err(failed)?;
    tx.execute(
        "INSERT INTO subscribers (no, project, id, created_at, created_version, version, active, inactive_reason,
            definition, secret, backfill_after, backfill_until, backfill_from, destination, verification,
            inactive_at)
         VALUES (?14, ?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13,
            CASE WHEN ?5 THEN NULL ELSE ?3 END)",
        params![
            new.project,
            new.id,
            now.as_ms(),
            version,
            new.active && !new.unverified,
            inactive_reason(new),
            new.definition,
            new.secret,
            backfill.map(|marks| marks.0),
            backfill.map(|marks| marks.1),
            backfill.map(|marks| marks.2),
            new.destination,
            new.unverified.then_some(VerificationStatus::Pending.name()),
            no,
        ],
    )
    .map_err(failed)?;
    remember(tx, new.project, no, version, Some(&new.definition))?;
    Ok(no)
}

fn inactive_reason(new: &NewSubscriber) -> Option<&'static str> {
    match (new.active, new.unverified) {
        (false, _) => Some("paused"),
        (true, true) => Some("unverified"),
        (true, false) => None,
    }
}

/// Keeps what a subscriber wanted from this version on.
fn remember(
    tx: &Transaction<'_>,
    project: ProjectNo,
    no: SubscriberNo,
    version: Version,
    definition: Option<&str>,
) -> Result<()> {
    tx.execute(
        "INSERT INTO subscriber_versions (project, subscriber, version, definition) VALUES (?1, ?2, ?3, ?4)",
        params![project, no, version, definition],
    )
    .map_err(failed)?;
    Ok(())
}

/// Refuses a change of something that others have changed since it was read.
fn check_base(
    tx: &Transaction<'_>,
    project: ProjectNo,
    no: SubscriberNo,
    based_on: Option<Version>,
) -> Result<()> {
    let Some(routed) = based_on else { return Ok(()) };
    let sql = "SELECT version FROM subscribers WHERE project = ?1 AND no = ?2 AND deleted_at IS NULL";
    let current = tx.query_row(sql, [project, no], |row| row.get(0)).optional().map_err(failed)?;
    match current {
        Some(current) if current != routed => Err(Error::Stale { routed, current }),
        _ => Ok(()),
    }
}

fn update_subscriber(
    tx: &Transaction<'_>,
    project: ProjectNo,
    no: SubscriberNo,
    update: &SubscriberUpdate,
    version: Version,
    now: Timestamp,
) -> Result<i64> {
    check_base(tx, project, no, update.based_on)?;
    let changed = tx
        .execute(
            "UPDATE subscribers SET version = ?3, definition = coalesce(?4, definition),
                active = coalesce(?5, active),
                inactive_reason = CASE WHEN ?5 IS NULL THEN inactive_reason ELSE ?6 END,
                failing_since = CASE WHEN ?5 = 1 THEN NULL ELSE failing_since END,
                destination = CASE WHEN ?4 IS NULL THEN destination ELSE ?7 END,
                inactive_at = CASE WHEN ?5 = 1 THEN NULL WHEN ?5 = 0 THEN coalesce(inactive_at, ?8) ELSE inactive_at END
             WHERE project = ?1 AND no = ?2 AND deleted_at IS NULL",
            params![
                project,
                no,
                version,
                update.definition,
                update.active.as_ref().map(std::result::Result::is_ok),
                update.active.as_ref().and_then(|active| active.as_ref().err()),
                update.destination,
                now.as_ms(),
            ],
        )
        .map_err(failed)?;
    if changed == 0 {
        return Err(Error::NotFound);
    }
    if update.reorders && super::deliveries::any_unfinished(tx, no).map_err(failed)? {
        return Err(Error::Unfinished);
    }
    if let Some(change) = &update.verification {
        verification::update(tx, no, change, now)?;
    }
    if update.active == Some(Ok(())) {
        verification::hold_back(tx, no, now)?;
    }
    if let Some(secret) = &update.secret {
        replace_secret(tx, no, secret)?;
    }
    if let Some(definition) = &update.definition {
        gates::check(tx, project, definition)?;
        remember(tx, project, no, version, Some(definition))?;
    }
    Ok(no)
}

/// What is replaced becomes the previous one here and not in memory: of two rotations at once none is lost.
fn replace_secret(tx: &Transaction<'_>, no: SubscriberNo, secret: &NewSecret) -> Result<()> {
    tx.execute(
        "UPDATE subscribers SET previous_secret = CASE WHEN ?3 IS NULL THEN NULL ELSE secret END,
            previous_until = ?3, secret = ?2
         WHERE no = ?1",
        params![no, secret.sealed, secret.grace_until.map(Timestamp::as_ms)],
    )
    .map_err(failed)?;
    Ok(())
}

fn delete_subscriber(
    tx: &Transaction<'_>,
    project: ProjectNo,
    no: SubscriberNo,
    version: Version,
    now: Timestamp,
) -> Result<i64> {
    let changed = tx
        .execute(
            "UPDATE subscribers SET version = ?3, deleted_at = ?4, backfill_after = NULL, secret = x'',
                previous_secret = NULL, previous_until = NULL, destination = NULL
             WHERE project = ?1 AND no = ?2 AND deleted_at IS NULL",
            params![project, no, version, now.as_ms()],
        )
        .map_err(failed)?;
    if changed == 0 {
        return Err(Error::NotFound);
    }
    remember(tx, project, no, version, None)?;
    Ok(no)
}

/// Keeps since when a subscriber fails. No change of the configuration: nobody routes by it.
pub(super) fn keep_streak(
    conn: &Connection,
    subscriber: SubscriberNo,
    since: Option<Timestamp>,
) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE subscribers SET failing_since = ?2 WHERE no = ?1")?
        .execute(params![subscriber, since.map(Timestamp::as_ms)])?;
    Ok(())
}

pub(super) fn load(conn: &Connection, since: Version) -> rusqlite::Result<Configuration> {
    let version = conn
        .query_row("SELECT value FROM meta WHERE name = 'version'", [], |row| row.get(0))
        .optional()?
        .unwrap_or(0);
    let is_whole = since == 0 || since > version && since != Version::MAX;
    let since = if is_whole { 0 } else { since };
    let projects = conn
        .prepare_cached(
            "SELECT no, id, catalog, created_at FROM projects WHERE deleted_at IS NULL ORDER BY no",
        )?
        .query_map([], project_row)?
        .collect::<rusqlite::Result<_>>()?;
    let keys = conn
        .prepare_cached(
            "SELECT project, id, role, name, prefix, hash, created_at FROM keys ORDER BY project, id",
        )?
        .query_map([], key_row)?
        .collect::<rusqlite::Result<_>>()?;
    let mut subscribers = conn
        .prepare_cached(&format!(
            "SELECT no, project, id, created_at, created_version, version, active, inactive_reason, definition,
                secret, deleted_at IS NOT NULL, backfill_after IS NOT NULL, previous_secret, previous_until,
                failing_since, destination, {}
             FROM subscribers WHERE version > ?1 ORDER BY no",
            verification::COLUMNS
        ))?
        .query_map([since], subscriber_row)?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    former_conditions(conn, since)?.tell(&mut subscribers);
    let types = catalog::load(conn, since)?;
    let gates = gates::load(conn, since)?;
    Ok(Configuration { version, is_whole, projects, keys, subscribers, types, gates })
}

/// Few subscribers ever had one, so few definitions are looked at closely.
fn former_conditions(conn: &Connection, since: Version) -> rusqlite::Result<FormerConditions> {
    let mut statement = conn.prepare_cached(
        "SELECT v.subscriber, v.definition FROM subscribers s
         JOIN subscriber_versions v ON v.project = s.project AND v.subscriber = s.no
         WHERE s.version > ?1 AND s.deleted_at IS NULL AND v.definition LIKE '%\"cancel_on\"%'
         ORDER BY v.subscriber, v.version DESC",
    )?;
    let mut rows = statement.query([since])?;
    let mut former = FormerConditions::default();
    while let Some(row) = rows.next()? {
        former.note(row.get(0)?, row.get_ref(1)?.as_str()?);
    }
    Ok(former)
}

fn project_row(row: &Row<'_>) -> rusqlite::Result<ProjectRow> {
    Ok(ProjectRow {
        no: row.get(0)?,
        id: row.get(1)?,
        catalog: Mode::parse(row.get_ref(2)?.as_str()?).unwrap_or_default(),
        created_at: Timestamp::from_ms(row.get(3)?),
    })
}

fn key_row(row: &Row<'_>) -> rusqlite::Result<KeyRow> {
    Ok(KeyRow {
        project: row.get(0)?,
        id: row.get(1)?,
        role: row.get(2)?,
        name: row.get(3)?,
        prefix: row.get(4)?,
        hash: row.get(5)?,
        created_at: Timestamp::from_ms(row.get(6)?),
    })
}

fn subscriber_row(row: &Row<'_>) -> rusqlite::Result<SubscriberRow> {
    Ok(SubscriberRow {
        no: row.get(0)?,
        project: row.get(1)?,
        id: row.get(2)?,
        created_at: Timestamp::from_ms(row.get(3)?),
        created_version: row.get(4)?,
        version: row.get(5)?,
        active: row.get(6)?,
        inactive_reason: row.get(7)?,
        definition: row.get(8)?,
        former_conditions: Vec::new(),
        secret: row.get(9)?,
        deleted: row.get(10)?,
        backfilling: row.get(11)?,
        failing_since: row.get::<_, Option<i64>>(14)?.map(Timestamp::from_ms),
        previous_secret: row
            .get::<_, Option<Vec<u8>>>(12)?
            .zip(row.get::<_, Option<i64>>(13)?.map(Timestamp::from_ms)),
        destination: row.get(15)?,
        verification: verification::row(row, 16)?,
    })
}
