//! Some processes on one PostgreSQL and one Redis, three unless said otherwise.
//!
//! Each has its port for all its lives. What their metrics counted is added up over those lives.

use std::fs;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::clock;
use crate::server::{PROJECT, Server};
use crate::services::Services;

const REPLICAS: usize = 3;
const MASTER_KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// Processes hear of each other with the next beat.
const MEET_PATIENCE: Duration = Duration::from_secs(20);
/// States of deliveries that must be empty after the drain.
const UNFINISHED: [&str; 4] = ["pending", "sending", "retrying", "exhausted"];

/// What the processes say of themselves.
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    /// Results that came too late and were refused.
    pub(super) stale: u64,
    /// Lives that began because the one before was taken over.
    pub(super) anew: u64,
    /// Deliveries taken over from others.
    pub(super) taken_over: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.stale += other.stale;
        self.anew += other.anew;
        self.taken_over += other.taken_over;
    }
}

/// The processes.
pub(super) struct Cluster<'a> {
    pub(super) services: &'a mut Services,
    pub(super) replicas: Vec<Server>,
    /// Where their tables are.
    pub(super) schema: String,
    /// Of lives that have ended.
    past: Counts,
    deadlocks_before: usize,
}

impl<'a> Cluster<'a> {
    /// Starts them on an empty schema, with these settings, and waits until each knows of all.
    pub(super) fn start(
        services: &'a mut Services,
        binary: &Path,
        folder: &Path,
        settings: &[(&str, &str)],
    ) -> Result<Self> {
        let url = services.postgres_url();
        Self::start_on(services, &url, REPLICAS, binary, folder, settings)
    }

    /// So many of them on the PostgreSQL at this address, or at these.
    pub(super) fn start_on(
        services: &'a mut Services,
        url: &str,
        count: usize,
        binary: &Path,
        folder: &Path,
        settings: &[(&str, &str)],
    ) -> Result<Self> {
        services.flush_redis()?;
        let schema = folder.file_name().context("a folder has a name")?.to_string_lossy().replace('-', "_");
        let store = format!("{url}{}schema={schema}", if url.contains('?') { '&' } else { '?' });
        let mut replicas = Vec::new();
        for index in 0..count {
            let own = folder.join(index.to_string());
            fs::create_dir_all(&own)?;
            let mut server = Server::new(binary, &own, &own.join("data"))?;
            server.set("TIDEGATE_STORE", &store);
            server.set("TIDEGATE_REDIS", &services.redis_url());
            server.set("TIDEGATE_MASTER_KEY", MASTER_KEY);
            settings.iter().for_each(|(name, value)| server.set(name, value));
            server.resume()?;
            replicas.push(server);
        }
        let deadlocks_before = deadlocks(services)?;
        let cluster = Self { services, replicas, schema, past: Counts::default(), deadlocks_before };
        cluster.meet()?;
        Ok(cluster)
    }

    fn meet(&self) -> Result<()> {
        let knows_all = |server: &Server| {
            server.metric("tidegate_replicas_alive").is_ok_and(|alive| alive == self.replicas.len() as u64)
        };
        let met = clock::wait_until(MEET_PATIENCE, || self.replicas.iter().all(knows_all));
        ensure!(met, "the processes do not know of each other");
        Ok(())
    }

    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.replicas.iter().map(|server| server.address).collect()
    }

    /// SIGKILL; what it counted is read just before.
    pub(super) fn kill(&mut self, index: usize) -> Result<()> {
        self.past += counts(&self.replicas[index])?;
        self.replicas[index].kill()
    }

    /// SIGTERM; a process that does not end well is an error.
    pub(super) fn end(&mut self, index: usize) -> Result<()> {
        self.past += counts(&self.replicas[index])?;
        self.replicas[index].stop()
    }

    /// How often one of them has begun anew.
    pub(super) fn lives(&self, index: usize) -> Result<u64> {
        Ok(counts(&self.replicas[index])?.anew)
    }

    /// Whether one of them waits for a receiver's answer.
    pub(super) fn is_busy(&self, index: usize) -> bool {
        self.replicas[index].metric("tidegate_attempts_in_flight").is_ok_and(|count| count > 0)
    }

    /// What all of them counted so far.
    pub(super) fn counts(&self) -> Result<Counts> {
        let mut all = self.past;
        for server in &self.replicas {
            all += counts(server)?;
        }
        Ok(all)
    }

    /// Circles that PostgreSQL had to break since the start.
    pub(super) fn deadlocks(&mut self) -> Result<u64> {
        Ok((deadlocks(self.services)? - self.deadlocks_before) as u64)
    }

    /// How many unfinished deliveries the API still lists.
    pub(super) fn unfinished(&self) -> Result<u64> {
        Ok(self.unfinished_in(PROJECT)?.len() as u64)
    }

    /// Those of a project, in words.
    pub(super) fn unfinished_in(&self, project: &str) -> Result<Vec<String>> {
        let mut told = Vec::new();
        for status in UNFINISHED {
            let path = format!("/v1/deliveries?status={status}&limit=500");
            let page = self.replicas[0].api_in(project, "GET", &path, &Value::Null)?;
            let items = page["items"].as_array().map(Vec::as_slice).unwrap_or_default();
            told.extend(items.iter().map(|item| format!("{} of {} is {status}", item["id"], item["events"])));
        }
        Ok(told)
    }

    /// SIGKILL to all.
    pub(super) fn abandon(&mut self) -> Result<()> {
        self.replicas.iter_mut().try_for_each(Server::kill)
    }

    /// All in good order.
    pub(super) fn stop(&mut self) -> Result<()> {
        for server in &mut self.replicas {
            if server.has_ended() {
                bail!("a process has ended by itself; its log ends:\n{}", server.log_tail());
            }
            server.stop()?;
        }
        Ok(())
    }

    /// The ends of all logs.
    pub(super) fn log_tails(&self) -> String {
        let tails = self.replicas.iter().enumerate();
        tails.map(|(index, server)| format!("process {index}:\n{}\n", server.log_tail())).collect()
    }
}

fn counts(server: &Server) -> Result<Counts> {
    Ok(Counts {
        stale: server.metric("tidegate_results_stale_total")?,
        anew: server.metric("tidegate_lives_begun_anew_total")?,
        taken_over: server.metric("tidegate_takeovers_total")?,
    })
}

fn deadlocks(services: &mut Services) -> Result<usize> {
    Ok(services.postgres_log()?.matches("deadlock detected").count())
}
