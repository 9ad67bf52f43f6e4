//! A standby that follows our PostgreSQL asynchronously, and takes its place.
//!
//! The two share two ports for all their lives: the one who was killed leaves its port to the next standby, so that an address that
//! names both stays right.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{Either, Services, home};
use crate::clock;

/// How long a standby may take to have what was written, to stop following, and to be promoted.
const PATIENCE: Duration = Duration::from_secs(60);

impl Services {
    /// Makes a standby of what is there now.
    pub(crate) fn add_standby(&mut self) -> Result<()> {
        ensure!(self.standby.is_none(), "there is a standby already");
        let Either::Ours(primary) = &self.postgres else { return not_ours() };
        let home = self._home.as_ref().context("our own servers have a folder")?;
        let port = self.spare_port.take().map_or_else(home::free_port, Ok)?;
        self.standbys += 1;
        let name = format!("standby-{}", self.standbys);
        self.standby = Some(primary.standby(&self.programs.postgres, home, &name, port)?);
        Ok(())
    }

    /// Where both are, for those who look for the one that takes writes.
    pub(crate) fn both_url(&self) -> Result<String> {
        let (Either::Ours(primary), Some(standby)) = (&self.postgres, &self.standby) else {
            return not_ours();
        };
        let (one, other) = (primary.port(), standby.port());
        let url = primary.url().replace(&format!(":{one}/"), &format!(":{one},127.0.0.1:{other}/"));
        Ok(format!("{url}?target_session_attrs=read-write"))
    }

    /// Waits until the standby has everything that was committed before this call.
    pub(crate) fn catch_up_standby(&self) -> Result<()> {
        let (Either::Ours(primary), Some(standby)) = (&self.postgres, &self.standby) else {
            return not_ours();
        };
        let written = primary.ask("SELECT pg_current_wal_flush_lsn()")?.context("no position")?;
        let sql = format!("SELECT pg_last_wal_receive_lsn() >= '{written}'::pg_lsn");
        let has_all = || standby.ask(&sql).is_ok_and(|answer| answer.as_deref() == Some("t"));
        ensure!(clock::wait_until(PATIENCE, has_all), "the standby does not catch up");
        Ok(())
    }

    /// Nothing more reaches the standby from here on.
    pub(crate) fn cut_off_standby(&self) -> Result<()> {
        let standby = self.standby.as_ref().context("there is no standby")?;
        standby.ask("ALTER SYSTEM SET primary_conninfo = ''")?;
        standby.ask("SELECT pg_reload_conf()")?;
        let sql = "SELECT count(*) FROM pg_stat_wal_receiver";
        let is_cut_off = || standby.ask(sql).is_ok_and(|answer| answer.as_deref() == Some("0"));
        ensure!(clock::wait_until(PATIENCE, is_cut_off), "the standby goes on following");
        Ok(())
    }

    /// Promotes the standby. The one before it must have been killed; its data is removed.
    pub(crate) fn promote_standby(&mut self) -> Result<()> {
        let standby = self.standby.take().context("there is no standby")?;
        let promoted = standby.ask("SELECT pg_promote(true, 60)")?;
        ensure!(promoted.as_deref() == Some("t"), "the standby was not promoted");
        let Either::Ours(before) = std::mem::replace(&mut self.postgres, Either::Ours(standby)) else {
            return not_ours();
        };
        self.spare_port = Some(before.port());
        before.retire()
    }
}

fn not_ours<T>() -> Result<T> {
    anyhow::bail!("a failover needs a PostgreSQL that was started here, and its standby")
}
