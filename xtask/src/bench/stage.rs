//! The processes of a measurement: receiver, generator, server, and how they are asked and told.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::generator::{self, Load};
use super::table::Goal;
use super::{bare, process, receiver};
use crate::clock::{self, Stopwatch};
use crate::http;
use crate::server::{ADMIN_KEY, Scratch, Server, Subscriber};
use crate::services::Services;

/// Seals the secrets of throw-away servers that share a store: 32 zero bytes.
const MASTER_KEY: &str = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
/// A run is given up when nothing has arrived for this long.
const STALL_PATIENCE: Duration = Duration::from_secs(30);
/// How often the receiver is asked how far it is: rarely enough not to disturb.
const ASK_EVERY: Duration = Duration::from_millis(20);
/// Events in one request when a database is filled.
pub(super) const FILL_BATCH: u64 = 1_000;
/// Enough to keep parsing and committing busy at once.
pub(super) const FILL_CONNECTIONS: u64 = 4;

/// Another process of this same binary, which prints its port first.
pub(super) struct Part {
    child: Child,
    pub(super) address: SocketAddr,
}

impl Part {
    /// Starts a hidden subcommand that listens.
    pub(super) fn start(subcommand: &str) -> Result<Self> {
        let mut child = this_binary(&[subcommand])?.stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("no standard output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        let port: u16 = line.trim().parse().with_context(|| format!("{subcommand} named no port"))?;
        Ok(Self { child, address: SocketAddr::from(([127, 0, 0, 1], port)) })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Everything a figure needs.
pub(super) struct Stage {
    binary: PathBuf,
    scratch: Scratch,
    receiver: Part,
    filled: Option<Server>,
    /// Where servers keep their events, if not by themselves.
    services: Option<Services>,
    /// Small counts: shows that everything works, not how fast.
    pub(super) quick: bool,
    /// Makes every generator send other ids.
    seed: u64,
}

impl Stage {
    /// A stage with a receiver and no server yet.
    pub(super) fn new(binary: &Path, quick: bool, services: Option<Services>) -> Result<Self> {
        let receiver = Part::start("bench-receiver")?;
        let scratch = Scratch::new("bench")?;
        Ok(Self { binary: binary.to_path_buf(), scratch, receiver, filled: None, services, quick, seed: 0 })
    }

    /// A count, or a twentieth of it when in a hurry.
    pub(super) fn count(&self, full: u64) -> u64 {
        if self.quick { (full / 20).max(FILL_BATCH) } else { full }
    }

    /// How often a cheap measurement is repeated.
    pub(super) fn rounds(&self) -> u32 {
        if self.quick { 1 } else { 3 }
    }

    /// The same for one that a single stall of the disk spoils.
    pub(super) fn many_rounds(&self) -> u32 {
        2 * self.rounds() - 1
    }

    /// A goal that is set for the embedded store alone.
    pub(super) fn embedded(&self, goal: Goal) -> Goal {
        if self.services.is_some() { Goal::None } else { goal }
    }

    /// The folder for everything that is measured, on the disk of the target folder.
    pub(super) fn folder(&self) -> &Path {
        self.scratch.path()
    }

    /// A server on an empty database of its own.
    pub(super) fn empty_server(&self, name: &str) -> Result<Server> {
        self.replica(name, 0)
    }

    /// One of several servers on one database; those of an embedded store have each their own.
    pub(super) fn replica(&self, name: &str, which: usize) -> Result<Server> {
        let folder = self.scratch.path().join(format!("{name}{which}"));
        std::fs::create_dir_all(&folder)?;
        let mut server = Server::new(&self.binary, &folder, &folder.join("data"))?;
        if let Some(services) = &self.services {
            server.set("TIDEGATE_STORE", &format!("{}?schema=bench_{name}", services.postgres_url()));
            server.set("TIDEGATE_REDIS", &services.redis_url());
            server.set("TIDEGATE_MASTER_KEY", MASTER_KEY);
        }
        server.resume()?;
        Ok(server)
    }

    /// CPU seconds of a server and of the databases it uses.
    pub(super) fn cpu_seconds(&self, server: &Server) -> Result<f64> {
        let mut all = process::cpu_seconds(server.pid())?;
        for pid in self.services.iter().flat_map(Services::pids) {
            all += process::cpu_seconds_with_children(pid)?;
        }
        Ok(all)
    }

    /// The databases that servers share.
    pub(super) fn services(&self) -> Result<&Services> {
        self.services.as_ref().context("this figure is of a shared store")
    }

    /// The server whose database already holds a million events; started and filled when first asked for.
    pub(super) fn take_filled(&mut self) -> Result<Server> {
        if let Some(server) = self.filled.take() {
            return Ok(server);
        }
        let events = self.count(1_000_000);
        let server = self.empty_server("filled")?;
        let watch = Stopwatch::start();
        self.fill(&server, events)?;
        if let Some(services) = &self.services {
            bare::settle(&services.postgres_url())?;
        }
        self.settle()?;
        println!("filled a database with {events} events in {:.1} s", watch.seconds());
        Ok(server)
    }

    /// What everybody on this machine has left to be written would be written while something is measured: now it is.
    pub(super) fn settle(&self) -> Result<()> {
        Command::new("sync").status().context("sync")?;
        if !self.quick && !bare::wait_for_calm(self.folder())? {
            eprintln!(
                "the disk stalls now and then for more than it is asked to do: times that wait for it are too long"
            );
        }
        Ok(())
    }

    /// Gives the filled server back for the next figure.
    pub(super) fn give_back(&mut self, server: Server) {
        self.filled = Some(server);
    }

    /// Posts `events` events in large batches.
    pub(super) fn fill(&mut self, server: &Server, events: u64) -> Result<generator::Report> {
        self.fill_keyed(server, events, 0)
    }

    /// The same with so many different keys.
    pub(super) fn fill_keyed(
        &mut self,
        server: &Server,
        events: u64,
        keys: u64,
    ) -> Result<generator::Report> {
        let load = Load {
            keys,
            requests: events / FILL_BATCH,
            batch: usize::try_from(FILL_BATCH)?,
            connections: FILL_CONNECTIONS,
            ..self.load(server, 0)
        };
        let report = self.generate(&load)?;
        ensure!(report.refused == 0, "{} of the filling requests were refused", report.refused);
        Ok(report)
    }

    /// Single events for the server over 64 connections.
    pub(super) fn load(&self, server: &Server, requests: u64) -> Load {
        Load { key: ADMIN_KEY.to_owned(), requests, ..straight(server.address) }
    }

    /// Runs the generator to its end.
    pub(super) fn generate(&mut self, load: &Load) -> Result<generator::Report> {
        let reports = self.generate_all(std::slice::from_ref(load))?;
        reports.into_iter().next().context("a generator reports")
    }

    /// Runs several at once to their ends.
    pub(super) fn generate_all(&mut self, loads: &[Load]) -> Result<Vec<generator::Report>> {
        let children = loads.iter().map(|load| self.start_generator(load)).collect::<Result<Vec<Child>>>()?;
        let report = |child: Child| {
            let output = child.wait_with_output()?;
            ensure!(output.status.success(), "the generator failed ({})", output.status);
            serde_json::from_slice(&output.stdout).context("the generator's report can not be read")
        };
        children.into_iter().map(report).collect()
    }

    fn start_generator(&mut self, load: &Load) -> Result<Child> {
        self.seed += 1;
        let seed = self.seed.wrapping_add(clock::wall_nanos() << 8);
        let mut command = this_binary(&["bench-generator"])?;
        command.args(["--address", &load.address.to_string(), "--path", &load.path, "--key", &load.key]);
        command.args([
            "--connections",
            &load.connections.to_string(),
            "--requests",
            &load.requests.to_string(),
        ]);
        command.args(["--batch", &load.batch.to_string(), "--seed", &seed.to_string()]);
        command.args(["--keys", &load.keys.to_string()]);
        for attribute in &load.attributes {
            command.args(["--attribute", &attribute.to_string()]);
        }
        if let Some(rate) = load.rate {
            command.args(["--rate", &rate.to_string()]);
        }
        Ok(command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn()?)
    }

    /// Requests per second of the generator posting straight to the receiver.
    pub(super) fn loopback_rate(&mut self) -> Result<f64> {
        let requests = self.count(150_000);
        let address = self.receiver.address;
        Ok(self.generate(&Load { requests, ..straight(address) })?.rate())
    }

    /// Requests per second of a bare hyper client posting straight to the receiver.
    pub(super) fn hyper_rate(&self, requests: u64) -> Result<f64> {
        let mut command = this_binary(&["bench-hyper"])?;
        command.args(["--address", &self.receiver.address.to_string(), "--requests", &requests.to_string()]);
        let output = command.stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "the bare client failed ({})", output.status);
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    }

    /// Creates `count` subscribers that deliver everything to the receiver over up to 64 connections each.
    pub(super) fn subscribe(&self, server: &Server, count: usize) -> Result<Vec<Subscriber>> {
        self.subscribe_with(server, count, &json!({"limits": {"concurrency": 64}}))
    }

    /// The same, with other terms.
    pub(super) fn subscribe_with(
        &self,
        server: &Server,
        count: usize,
        rest: &Value,
    ) -> Result<Vec<Subscriber>> {
        let urls = (0..count).map(|index| format!("http://{}/hook/{index}", self.receiver.address));
        urls.map(|url| server.subscribe("bench", &url, rest)).collect()
    }

    /// Creates a subscriber that folds and delivers to the receiver.
    pub(super) fn subscribe_fold(&self, server: &Server, fold: &Value) -> Result<Subscriber> {
        let url = format!("http://{}/fold", self.receiver.address);
        server.subscribe("bench", &url, &json!({"fold": fold, "limits": {"concurrency": 64}}))
    }

    /// Deletes them, so that the next figure starts without.
    pub(super) fn unsubscribe(&self, server: &Server, subscribers: &[Subscriber]) -> Result<()> {
        for subscriber in subscribers {
            server.api("DELETE", &format!("/v1/subscribers/{}", subscriber.id), &Value::Null)?;
        }
        Ok(())
    }

    /// Lets the receiver forget, and remember when the delivery number `mark` comes.
    pub(super) fn reset(&self, mark: u64) -> Result<()> {
        self.ask(&format!("/__reset/{mark}"))?;
        Ok(())
    }

    /// What the receiver has got since.
    pub(super) fn received(&self) -> Result<receiver::Report> {
        serde_json::from_slice(&self.ask("/__report")?).context("the receiver's report can not be read")
    }

    /// Waits until `total` deliveries have come.
    pub(super) fn wait_for(&self, total: u64) -> Result<receiver::Report> {
        let mut stalled = Stopwatch::start();
        let mut seen = 0;
        loop {
            let report = self.received()?;
            if report.total >= total {
                return Ok(report);
            }
            if report.total > seen {
                seen = report.total;
                stalled = Stopwatch::start();
            }
            if stalled.elapsed() > STALL_PATIENCE {
                bail!("only {seen} of {total} deliveries came");
            }
            clock::pause(ASK_EVERY);
        }
    }

    /// Waits until nothing has come for a while.
    pub(super) fn wait_for_calm(&self, calm: Duration) -> Result<()> {
        let mut before = self.received()?.total;
        loop {
            clock::pause(calm);
            let now = self.received()?.total;
            if now == before {
                return Ok(());
            }
            before = now;
        }
    }

    fn ask(&self, path: &str) -> Result<Vec<u8>> {
        let response = http::request(self.receiver.address, "GET", path, &[], b"")?;
        Ok(response.body)
    }
}

/// Single events without a key over 64 connections.
pub(super) fn straight(address: SocketAddr) -> Load {
    Load {
        address,
        path: "/v1/events".to_owned(),
        key: "none".to_owned(),
        connections: 64,
        requests: 0,
        batch: 1,
        rate: None,
        keys: 0,
        attributes: Vec::new(),
        seed: 0,
    }
}

fn this_binary(args: &[&str]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(args);
    Ok(command)
}
