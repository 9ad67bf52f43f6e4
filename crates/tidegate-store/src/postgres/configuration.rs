//! Projects, keys and subscribers: few rows, changed seldom, each change one version.
//!
//! A change holds the configuration alone, groups hold it together: no group is under way while it changes, and a group
//! that comes after it was routed by it or is refused.

use std::sync::Arc;

use tidegate_core::catalog::Mode;
use tidegate_core::id::{ProjectNo, SubscriberNo, Version};
use tidegate_core::limits::{KEYS_PER_PROJECT_MAX, PROJECTS_MAX, SUBSCRIBERS_PER_PROJECT_MAX};
use tidegate_core::time::Timestamp;
use tidegate_core::verification::VerificationStatus;
use tokio_postgres::Row;

use super::catalog::Declaration;
use super::db::{Asked, Conn, Pool};
use super::open::CONFIGURATION;
use super::quarantine::storable;
use super::{catalog, deliveries, gates, lanes, rebuilds, verification, windows};
use crate::configuration::FormerConditions;
use crate::{
    Change, Changed, Configuration, Error, KeyRow, NewKey, NewSecret, NewSubscriber, ProjectRow,
    SubscriberRow, SubscriberUpdate,
};

/// How far the version steps at most. With this, numbers last for half a billion changes before JSON could not show them
/// exactly.
const STEP_MAX: i64 = 1 << 24;

/// How many earlier versions are kept. A process that knows an older one reads the whole configuration again.
const VERSIONS_KEPT: i32 = 256;

/// Waits for the groups that are under way and keeps others out until the change is made.
pub(super) async fn change(conn: &Conn, space: i32, change: Change, now: Timestamp) -> Asked<Changed> {
    hold_alone(conn, space).await?;
    let row =
        conn.only("SELECT version, ((last_value + 1) << 20) - 1 FROM installation, numbers", &[]).await?;
    let version = after(conn, row.get(0)).await?;
    let (no, created) = Applying { conn, space, version, last: row.get(1), now }.apply(&change).await?;
    if change.is_about_counting() {
        rebuilds::stop_vain(conn, now).await?;
    }
    set_version(conn, version, now).await?;
    Ok(Changed { version, no, created })
}

/// The version after this one. By chance it steps further than by one: a database that goes back in time would else give a
/// lost version to another configuration, and whoever knows the lost one would not notice.
pub(super) async fn after(conn: &Conn, version: Version) -> Asked<Version> {
    let step = format!("SELECT 1 + floor(random() * {STEP_MAX})::bigint");
    Ok(version + conn.only(&step, &[]).await?.get::<_, i64>(0))
}

/// Puts another version in force. Nobody else holds the configuration.
pub(super) async fn set_version(conn: &Conn, version: Version, now: Timestamp) -> Asked<()> {
    let sql = "UPDATE installation SET version = $1, versions = (version || versions)[:$3::int], at = greatest(at, $2)";
    conn.execute(sql, &[&version, &now.as_ms(), &VERSIONS_KEPT]).await?;
    Ok(())
}

/// Whether the version in force came out of this one. It did not if that one was lost, or is very old.
pub(super) async fn descends_from(conn: &Conn, version: Version) -> Asked<bool> {
    let sql = "SELECT version = $1 OR $1 = ANY(versions) FROM installation";
    Ok(conn.only(sql, &[&version]).await?.get(0))
}

/// Holds the configuration while no group is under way.
pub(super) async fn hold_alone(conn: &Conn, space: i32) -> Asked<()> {
    conn.execute("SELECT pg_advisory_xact_lock($1, $2)", &[&space, &CONFIGURATION]).await?;
    Ok(())
}

/// Holds the configuration as it is, and says its version.
pub(super) async fn hold(conn: &Conn, space: i32) -> Asked<Version> {
    conn.execute("SELECT pg_advisory_xact_lock_shared($1, $2)", &[&space, &CONFIGURATION]).await?;
    version(conn).await
}

/// The version in force; it stays, for whoever holds the configuration.
pub(super) async fn version(conn: &Conn) -> Asked<Version> {
    Ok(conn.only("SELECT version FROM installation", &[]).await?.get(0))
}

pub(super) async fn count(conn: &Conn, sql: &str, project: ProjectNo) -> Asked<usize> {
    Ok(usize::try_from(conn.only(sql, &[&project]).await?.get::<_, i64>(0)).unwrap_or(usize::MAX))
}

/// A change on its way in.
struct Applying<'a> {
    conn: &'a Conn,
    /// Its locks.
    space: i32,
    /// The version that it leads to.
    version: Version,
    /// The last number that was drawn.
    last: i64,
    now: Timestamp,
}

impl Applying<'_> {
    /// What was created or changed, and whether it was created.
    async fn apply(&self, change: &Change) -> Asked<(i64, bool)> {
        let (conn, version, now) = (self.conn, self.version, self.now);
        let no = match change {
            Change::CreateProject { id, catalog } => self.create_project(id, *catalog).await,
            Change::UpdateProject { no, catalog } => self.update_project(*no, *catalog).await,
            Change::DeleteProject { no } => self.delete_project(*no).await,
            Change::PutType { project, service, type_name, definition, metrics, keep_ms } => {
                self.check_project(*project).await?;
                let name = (*project, service.as_str(), type_name.as_str());
                let declared = Declaration { definition, metrics, keep_ms: *keep_ms, last: self.last };
                return Ok((*project, catalog::put(conn, name, &declared, version, now).await?));
            }
            Change::SwitchObserving(switches) => catalog::switch(conn, *switches, version).await,
            Change::DeleteType { project, service, type_name } => {
                catalog::delete(conn, (*project, service, type_name), version, now).await
            }
            Change::PutGate { project, name, definition } => {
                self.check_project(*project).await?;
                return gates::put(conn, (*project, name), definition, version, now).await;
            }
            Change::DeleteGate { project, name } => gates::delete(conn, (*project, name), version, now).await,
            Change::CreateKey(new) => self.create_key(new).await,
            Change::DeleteKey { project, id } => self.delete_key(*project, id).await,
            Change::CreateSubscriber(new) => self.create_subscriber(new).await,
            Change::UpdateSubscriber { project, no, update } => {
                self.update_subscriber(*project, *no, update).await
            }
            Change::DeleteSubscriber { project, no } => self.delete_subscriber(*project, *no).await,
        }?;
        let created = matches!(
            change,
            Change::CreateProject { .. } | Change::CreateKey(_) | Change::CreateSubscriber(_)
        );
        Ok((no, created))
    }

    async fn check_project(&self, no: ProjectNo) -> Asked<()> {
        let living = "SELECT 1 FROM projects WHERE no = $1 AND deleted_at IS NULL";
        if self.conn.exists(living, &[&no]).await? { Ok(()) } else { Err(Error::NotFound.into()) }
    }

    async fn create_project(&self, id: &str, catalog: Mode) -> Asked<i64> {
        let taken = "SELECT 1 FROM projects WHERE id = $1 AND deleted_at IS NULL";
        if self.conn.exists(taken, &[&id]).await? {
            return Err(Error::Conflict(format!("the project {id} exists already")).into());
        }
        let living = "SELECT count(*) FROM projects WHERE deleted_at IS NULL AND no <> $1";
        if count(self.conn, living, 0).await? >= PROJECTS_MAX {
            return Err(Error::Quota(format!("an installation has at most {PROJECTS_MAX} projects")).into());
        }
        let insert = "INSERT INTO projects (id, catalog, created_at) VALUES ($1, $2, $3) RETURNING no";
        Ok(self.conn.only(insert, &[&id, &catalog.name(), &self.now.as_ms()]).await?.get(0))
    }

    async fn update_project(&self, no: ProjectNo, catalog: Mode) -> Asked<i64> {
        let update = "UPDATE projects SET catalog = $2 WHERE no = $1 AND deleted_at IS NULL";
        found(self.conn.execute(update, &[&no, &catalog.name()]).await?, no)
    }

    async fn delete_project(&self, no: ProjectNo) -> Asked<i64> {
        let living = "SELECT count(*) FROM subscribers WHERE project = $1 AND deleted_at IS NULL";
        if count(self.conn, living, no).await? > 0 {
            let still = "the project still has subscribers: delete them first".to_owned();
            return Err(Error::Conflict(still).into());
        }
        let end = "UPDATE projects SET deleted_at = $2 WHERE no = $1 AND deleted_at IS NULL";
        let changed = self.conn.execute(end, &[&no, &self.now.as_ms()]).await?;
        self.conn.execute("DELETE FROM keys WHERE project = $1", &[&no]).await?;
        catalog::delete_all(self.conn, no, self.version, self.now).await?;
        gates::delete_all(self.conn, no, self.version, self.now).await?;
        found(changed, no)
    }

    async fn create_key(&self, new: &NewKey) -> Asked<i64> {
        if self.conn.exists("SELECT 1 FROM keys WHERE hash = $1", &[&new.hash]).await? {
            return Ok(new.project);
        }
        if new.project != 0 {
            self.check_project(new.project).await?;
        }
        let taken = "SELECT 1 FROM keys WHERE project = $1 AND id = $2";
        if self.conn.exists(taken, &[&new.project, &new.id]).await? {
            return Err(Error::Conflict(format!("the key {} exists already", new.id)).into());
        }
        let all = "SELECT count(*) FROM keys WHERE project = $1";
        if count(self.conn, all, new.project).await? >= KEYS_PER_PROJECT_MAX {
            let many = format!("a project has at most {KEYS_PER_PROJECT_MAX} keys: delete unused ones");
            return Err(Error::Quota(many).into());
        }
        self.conn
            .execute(
                "INSERT INTO keys (project, id, role, name, prefix, hash, created_at)
                 VALUES ($1, $2, $3, $4, $5, $6, $7)",
                &[&new.project, &new.id, &new.role, &new.name, &new.prefix, &new.hash, &self.now.as_ms()],
            )
            .await?;
        Ok(new.project)
    }

    async fn delete_key(&self, project: ProjectNo, id: &str) -> Asked<i64> {
        let delete = "DELETE FROM keys WHERE project = $1 AND id = $2";
        found(self.conn.execute(delete, &[&project, &storable(id)]).await?, project)
    }

    async fn create_subscriber(&self, new: &NewSubscriber) -> Asked<i64> {
        self.check_project(new.project).await?;
        let taken = "SELECT 1 FROM subscribers WHERE project = $1 AND id = $2 AND deleted_at IS NULL";
        if self.conn.exists(taken, &[&new.project, &new.id]).await? {
            return Err(Error::Conflict(format!("the subscriber {} exists already", new.id)).into());
        }
        let living = "SELECT count(*) FROM subscribers WHERE project = $1 AND deleted_at IS NULL";
        if count(self.conn, living, new.project).await? >= SUBSCRIBERS_PER_PROJECT_MAX {
            let many = format!("a project has at most {SUBSCRIBERS_PER_PROJECT_MAX} subscribers");
            return Err(Error::Quota(many).into());
        }
        gates::check(self.conn, new.project, &new.definition).await?;
        let no = self.insert_subscriber(new).await?;
        self.remember(new.project, no, Some(&new.definition)).await?;
        Ok(no)
    }

    async fn insert_subscriber(&self, new: &NewSubscriber) -> Asked<SubscriberNo> {
        let active = new.active && !new.unverified;
        let backfill = new.backfill_from.map(Timestamp::as_ms);
        let row = self
            .conn
            .only(
                "INSERT INTO subscribers (project, id, created_at, created_version, version, active,
                    inactive_reason, definition, secret, backfill_after, backfill_until, backfill_from,
                    destination, verification, inactive_at)
                 VALUES ($1, $2, $3, $4, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) RETURNING no",
                &[
                    &new.project,
                    &new.id,
                    &self.now.as_ms(),
                    &self.version,
                    &active,
                    &inactive_reason(new),
                    &new.definition,
                    &new.secret,
                    &backfill.map(|_| 0_i64),
                    &backfill.map(|_| self.last),
                    &backfill,
                    &new.destination,
                    &new.unverified.then_some(VerificationStatus::Pending.name()),
                    &(!active).then_some(self.now.as_ms()),
                ],
            )
            .await?;
        Ok(row.get(0))
    }

    /// Keeps what a subscriber wanted from this version on.
    async fn remember(&self, project: ProjectNo, no: SubscriberNo, definition: Option<&str>) -> Asked<()> {
        let insert = "INSERT INTO subscriber_versions (project, subscriber, version, definition)
            VALUES ($1, $2, $3, $4)";
        self.conn.execute(insert, &[&project, &no, &self.version, &definition]).await?;
        Ok(())
    }

    async fn update_subscriber(
        &self,
        project: ProjectNo,
        no: SubscriberNo,
        update: &SubscriberUpdate,
    ) -> Asked<i64> {
        self.check_base(project, no, update.based_on).await?;
        self.write_update(project, no, update).await?;
        if update.reorders && deliveries::any_unfinished(self.conn, no).await? {
            return Err(Error::Unfinished.into());
        }
        if let Some(failures) = update.skip_after {
            lanes::let_pass(self.conn, self.space, no, failures, self.now).await?;
        }
        if let Some(change) = &update.verification {
            verification::update(self.conn, no, change, self.now).await?;
        }
        if update.active == Some(Ok(())) {
            verification::hold_back(self.conn, no, self.now).await?;
        }
        if let Some(secret) = &update.secret {
            self.replace_secret(no, secret).await?;
        }
        if let Some(definition) = &update.definition {
            gates::check(self.conn, project, definition).await?;
            self.remember(project, no, Some(definition)).await?;
        }
        Ok(no)
    }

    /// Refuses a change of something that others have changed since it was read.
    async fn check_base(&self, project: ProjectNo, no: SubscriberNo, based_on: Option<Version>) -> Asked<()> {
        let Some(routed) = based_on else { return Ok(()) };
        let sql = "SELECT version FROM subscribers WHERE project = $1 AND no = $2 AND deleted_at IS NULL";
        match self.conn.row(sql, &[&project, &no]).await?.map(|row| row.get(0)) {
            Some(current) if current != routed => Err(Error::Stale { routed, current }.into()),
            _ => Ok(()),
        }
    }

    async fn write_update(
        &self,
        project: ProjectNo,
        no: SubscriberNo,
        update: &SubscriberUpdate,
    ) -> Asked<i64> {
        let changed = self
            .conn
            .execute(
                "UPDATE subscribers SET version = $3, definition = coalesce($4, definition),
                    active = coalesce($5, active),
                    inactive_reason = CASE WHEN $5::boolean IS NULL THEN inactive_reason ELSE $6 END,
                    failing_since = CASE WHEN $5 THEN NULL ELSE failing_since END,
                    destination = CASE WHEN $4::text IS NULL THEN destination ELSE $7 END,
                    inactive_at = CASE WHEN $5 THEN NULL WHEN NOT $5 THEN coalesce(inactive_at, $8)
                        ELSE inactive_at END
                 WHERE project = $1 AND no = $2 AND deleted_at IS NULL",
                &[
                    &project,
                    &no,
                    &self.version,
                    &update.definition,
                    &update.active.as_ref().map(std::result::Result::is_ok),
                    &update.active.as_ref().and_then(|active| active.as_ref().err()),
                    &update.destination,
                    &self.now.as_ms(),
                ],
            )
            .await?;
        found(changed, no)
    }

    /// What is replaced becomes the previous one here and not in memory: of two rotations at once none is lost.
    async fn replace_secret(&self, no: SubscriberNo, secret: &NewSecret) -> Asked<()> {
        let sql = "UPDATE subscribers SET secret = $2, previous_until = $3::bigint,
                previous_secret = CASE WHEN $3::bigint IS NULL THEN NULL ELSE secret END
            WHERE no = $1";
        self.conn.execute(sql, &[&no, &secret.sealed, &secret.grace_until.map(Timestamp::as_ms)]).await?;
        Ok(())
    }

    async fn delete_subscriber(&self, project: ProjectNo, no: SubscriberNo) -> Asked<i64> {
        let end = "UPDATE subscribers SET version = $3, deleted_at = $4, backfill_after = NULL, secret = '',
                previous_secret = NULL, previous_until = NULL, destination = NULL
            WHERE project = $1 AND no = $2 AND deleted_at IS NULL";
        let changed = self.conn.execute(end, &[&project, &no, &self.version, &self.now.as_ms()]).await?;
        found(changed, no)?;
        windows::leave(self.conn, no, self.now).await?;
        self.remember(project, no, None).await?;
        Ok(no)
    }
}

/// What was to be changed was there.
fn found(changed: u64, no: i64) -> Asked<i64> {
    if changed == 0 { Err(Error::NotFound.into()) } else { Ok(no) }
}

fn inactive_reason(new: &NewSubscriber) -> Option<&'static str> {
    match (new.active, new.unverified) {
        (false, _) => Some("paused"),
        (true, true) => Some("unverified"),
        (true, false) => None,
    }
}

/// Keeps since when a subscriber fails. No change of the configuration: nobody routes by it.
pub(super) async fn keep_streak(
    conn: &Conn,
    subscriber: SubscriberNo,
    since: Option<Timestamp>,
) -> Asked<()> {
    let sql = "UPDATE subscribers SET failing_since = $2 WHERE no = $1";
    conn.execute(sql, &[&subscriber, &since.map(Timestamp::as_ms)]).await?;
    Ok(())
}

/// As of one instant, although it is several tables.
pub(super) async fn load(pool: &Arc<Pool>, since: Version) -> Asked<Configuration> {
    pool.transact(move |conn| {
        Box::pin(async move {
            let one_instant = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY";
            conn.tell(one_instant).await?;
            read(conn, since).await
        })
    })
    .await
}

async fn read(conn: &Conn, since: Version) -> Asked<Configuration> {
    let is_known = since == Version::MAX || since != 0 && descends_from(conn, since).await?;
    let since = if is_known { since } else { 0 };
    let projects = "SELECT no, id, catalog, created_at FROM projects WHERE deleted_at IS NULL ORDER BY no";
    let keys = "SELECT project, id, role, name, prefix, hash, created_at FROM keys ORDER BY project, id";
    let subscribers = format!(
        "SELECT no, project, id, created_at, created_version, version, active, inactive_reason, definition,
            secret, deleted_at IS NOT NULL, backfill_after IS NOT NULL, previous_secret, previous_until,
            failing_since, destination, {}
         FROM subscribers WHERE version > $1 ORDER BY no",
        verification::COLUMNS
    );
    let mut subscribers: Vec<SubscriberRow> =
        conn.rows(&subscribers, &[&since]).await?.iter().map(subscriber_row).collect();
    former_conditions(conn, since).await?.tell(&mut subscribers);
    Ok(Configuration {
        version: version(conn).await?,
        is_whole: !is_known,
        projects: conn.rows(projects, &[]).await?.iter().map(project_row).collect(),
        keys: conn.rows(keys, &[]).await?.iter().map(key_row).collect(),
        subscribers,
        types: catalog::load(conn, since).await?,
        gates: gates::load(conn, since).await?,
    })
}

/// Few subscribers ever had one, so few definitions are looked at closely.
async fn former_conditions(conn: &Conn, since: Version) -> Asked<FormerConditions> {
    let sql = "SELECT v.subscriber, v.definition FROM subscribers s
        JOIN subscriber_versions v ON v.project = s.project AND v.subscriber = s.no
        WHERE s.version > $1 AND s.deleted_at IS NULL AND v.definition LIKE '%\"cancel_on\"%'
        ORDER BY v.subscriber, v.version DESC";
    let mut former = FormerConditions::default();
    for row in conn.rows(sql, &[&since]).await? {
        former.note(row.get(0), row.get(1));
    }
    Ok(former)
}

fn project_row(row: &Row) -> ProjectRow {
    ProjectRow {
        no: row.get(0),
        id: row.get(1),
        catalog: Mode::parse(row.get(2)).unwrap_or_default(),
        created_at: Timestamp::from_ms(row.get(3)),
    }
}

fn key_row(row: &Row) -> KeyRow {
    KeyRow {
        project: row.get(0),
        id: row.get(1),
        role: row.get(2),
        name: row.get(3),
        prefix: row.get(4),
        hash: row.get(5),
        created_at: Timestamp::from_ms(row.get(6)),
    }
}

fn subscriber_row(row: &Row) -> SubscriberRow {
    let time = |column| row.get::<_, Option<i64>>(column).map(Timestamp::from_ms);
    SubscriberRow {
        no: row.get(0),
        project: row.get(1),
        id: row.get(2),
        created_at: Timestamp::from_ms(row.get(3)),
        created_version: row.get(4),
        version: row.get(5),
        active: row.get(6),
        inactive_reason: row.get(7),
        definition: row.get(8),
        former_conditions: Vec::new(),
        secret: row.get(9),
        deleted: row.get(10),
        backfilling: row.get(11),
        previous_secret: row.get::<_, Option<Vec<u8>>>(12).zip(time(13)),
        failing_since: time(14),
        destination: row.get(15),
        verification: verification::row(row, 16),
    }
}
