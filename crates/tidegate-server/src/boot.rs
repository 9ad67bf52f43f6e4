//! From settings to a running server, and from a signal to a clean end.
//!
//! Four threads do the work: ingest here, the group commit with its database, delivery and the heartbeat on loops of their own. The end goes in order: no new connections, requests under way end, no new picks, attempts under way end,
//! their results are written, the unsent goes back; then the process exits. Which store it is, and what follows from that,
//! stands in [`store`].

mod logging;
mod store;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::id::prefixed;
use tidegate_core::key::{self, Role};
use tidegate_core::seal::Keyring;
use tidegate_destinations::{HttpTransport, SystemResolver, Transport};
use tidegate_store::{Change, NewKey};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{oneshot, watch};

use crate::api::{self, App};
use crate::disk::Disk;
use crate::entropy::Entropy;
use crate::listen::tls::{Certificate, TlsProblem};
use crate::listen::{self, Door, open_files_max};
use crate::master_key::{self, MasterKey, Origin};
use crate::metrics::Metrics;
use crate::observing;
use crate::pipeline::{Loops, Parts, Pipeline};
use crate::roster::Rosters;
use crate::settings::store::StoreAt;
use crate::settings::{Settings, Unsettled};
use crate::spans::Spans;
use store::Opened;

/// Why the server could not start.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The settings can not be used.
    #[error(transparent)]
    Settings(#[from] Unsettled),
    /// The store can not be used.
    #[error(transparent)]
    Store(#[from] tidegate_store::Error),
    /// The address can not be listened at.
    #[error("cannot listen at {0}: {1}; choose another with --listen")]
    Listen(SocketAddr, std::io::Error),
    /// A key file can not be read or written.
    #[error("cannot use {0}: {1}")]
    File(String, std::io::Error),
    /// Anything else that the system refused.
    #[error(transparent)]
    System(#[from] std::io::Error),
    /// The certificate can not be used.
    #[error(transparent)]
    Tls(#[from] TlsProblem),
    /// The door would be open to everybody.
    #[error(
        "{0} can be reached from outside, and no key exists yet: set TIDEGATE_ADMIN_KEY, or start once on 127.0.0.1"
    )]
    Open(SocketAddr),
}

/// Runs the server until it is told to stop. `announce` is given the address and, once, the first admin key.
pub fn run(settings: Settings, announce: impl FnOnce(SocketAddr, Option<&str>)) -> Result<(), BootError> {
    logging::start(settings.log_format);
    let ingest = Builder::new_current_thread().enable_all().build()?;
    let persist = Loop::start("persist")?;
    let deliver = Loop::start("deliver")?;
    let beat = Loop::start("beat")?;
    let loops = Loops { persist: persist.handle(), deliver: deliver.handle(), beat: beat.handle() };
    let result = ingest.block_on(serve(settings, loops, announce));
    deliver.end();
    persist.end();
    beat.end();
    result
}

/// A loop on a thread of its own, so that no stage waits for another one's work.
struct Loop {
    runtime: Arc<Runtime>,
    thread: std::thread::JoinHandle<()>,
    end: oneshot::Sender<()>,
}

impl Loop {
    fn start(name: &str) -> Result<Self, BootError> {
        let runtime = Arc::new(Builder::new_current_thread().enable_all().build()?);
        let (end, ended) = oneshot::channel();
        let driver = Arc::clone(&runtime);
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            // An error means that the other side is gone, which ends the loop as well.
            let _ = driver.block_on(ended);
        })?;
        Ok(Self { runtime, thread, end })
    }

    fn handle(&self) -> Handle {
        self.runtime.handle().clone()
    }

    fn end(self) {
        // The loop may have ended on its own; either way it is over.
        let _ = self.end.send(());
        let _ = self.thread.join();
    }
}

async fn serve(
    mut settings: Settings,
    loops: Loops,
    announce: impl FnOnce(SocketAddr, Option<&str>),
) -> Result<(), BootError> {
    let entropy = Entropy::system();
    let (opened, origin, keys) = open(&settings, &entropy, &loops.beat).await?;
    let Opened { store, clock, standing, coordination } = opened;
    let listener = TcpListener::bind(settings.listen)
        .await
        .map_err(|error| BootError::Listen(settings.listen, error))?;
    let address = listener.local_addr()?;
    // Nothing is ever sent to this server itself, whatever ranges are allowed.
    settings.policy = settings.policy.except(address);
    let rosters = Rosters::load(Arc::clone(&store), keys, settings.policy.clone()).await?;
    observing::settle(&rosters, &*store, settings.observing.switches, clock.now()).await?;
    let master_key = MasterKey::new(origin, Arc::clone(&rosters), entropy.clone());
    let spans = match settings.collector.clone() {
        Some(collector) => Spans::to(collector, &clock, &entropy),
        None => Spans::default(),
    };
    let parts = Parts {
        store,
        rosters,
        transport: transport(&settings),
        clock,
        entropy,
        metrics: Arc::new(Metrics::default()),
        watch: Arc::default(),
        origin: settings.origin.clone(),
        spans: Arc::new(spans),
        retention: settings.retention,
        observing: settings.observing,
        standing,
        coordination,
    };
    refuse_open_door(&settings, &parts)?;
    let certificate = settings.tls.clone().map(Certificate::load).transpose()?;
    let pipeline = start_pipeline(&settings, &parts, &loops).await?;
    let signals = Signals::listen(certificate.clone())?;
    // Made when nothing can fail any more: it is shown once, and a start that fails shows nothing.
    let first_key = ensure_admin_key(&settings, &parts).await?;
    let mut app = App::new(pipeline, parts);
    app.certificate = certificate;
    app.master_key = Some(Arc::clone(&master_key));
    tokio::spawn(master_key.settle());
    app.delivers = settings.delivers;
    app.redis = settings.store.redis().cloned();
    app.disk = disk(&settings);
    let app = Arc::new(app);
    let (stop, stopping) = watch::channel(false);
    let door = tokio::spawn(listen::serve(listener, door(&settings, &app), stopping));
    announce(address, first_key.as_deref());
    signals.stop().await;
    tracing::info!("stopping: finishing what is under way");
    app.is_stopping.store(true, Ordering::Relaxed);
    app.parts.watch.close();
    // The door's task can only have ended before; then there is nothing to stop.
    let _ = stop.send(true);
    let _ = door.await;
    app.pipeline.stop().await;
    app.parts.spans.flush().await;
    tracing::info!("stopped");
    Ok(())
}

/// The store, and the keys to what is sealed in it. An embedded store is made before its key, which lies beside it.
async fn open(
    settings: &Settings,
    entropy: &Entropy,
    beat: &Handle,
) -> Result<(Opened, Origin, Keyring), BootError> {
    if settings.store == StoreAt::Embedded {
        let opened = store::open(settings, entropy, beat).await?;
        let (origin, keys) = master_key::load(settings, entropy)?;
        return Ok((opened, origin, keys));
    }
    let (origin, keys) = master_key::load(settings, entropy)?;
    let opened = store::open(settings, entropy, beat).await?;
    master_key::prove(&*opened.store, &keys, entropy).await?;
    Ok((opened, origin, keys))
}

/// Only an embedded store has a disk of ours.
fn disk(settings: &Settings) -> Disk {
    let reserve = settings.disk_reserve.filter(|_| settings.store == StoreAt::Embedded);
    Disk::new(&settings.data_dir, reserve)
}

fn door(settings: &Settings, app: &Arc<App>) -> Door {
    let terms = settings.terms.clone().within(open_files_max());
    if terms.connections < settings.terms.connections {
        tracing::warn!(
            connections = terms.connections,
            wanted = settings.terms.connections,
            "few open files are allowed: raise `ulimit -n` (LimitNOFILE of a systemd unit) for more connections"
        );
    }
    let router = api::router(Arc::clone(app));
    let is_limited = settings.rates.is_any();
    Door {
        router: if is_limited { api::limited(router, app, settings.rates) } else { router },
        tells_peers: settings.rates.per_address.is_some(),
        clock: app.parts.clock.clone(),
        certificate: app.certificate.clone(),
        terms,
        metrics: Arc::clone(&app.parts.metrics),
    }
}

async fn start_pipeline(settings: &Settings, parts: &Parts, loops: &Loops) -> Result<Pipeline, BootError> {
    parts.metrics.delivers(settings.delivers);
    if settings.delivers {
        return Ok(Pipeline::start(parts, loops).await?);
    }
    tracing::warn!("deliver.enabled is false: events are accepted and kept, and nothing is sent");
    Ok(Pipeline::start_silent(parts, loops).await?)
}

fn transport(settings: &Settings) -> Arc<dyn Transport> {
    Arc::new(HttpTransport::new(settings.policy.clone(), Arc::new(SystemResolver::default())))
}

/// The signals a server follows. Listened for before it announces itself, so that none finds it unprepared.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    /// Reads the certificate again. It never ends the process, which would lose what is under way.
    hangup: Signal,
    certificate: Option<Arc<Certificate>>,
}

impl Signals {
    fn listen(certificate: Option<Arc<Certificate>>) -> Result<Self, BootError> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hangup: signal(SignalKind::hangup())?,
            certificate,
        })
    }

    /// Returns when it shall stop.
    async fn stop(self) {
        let Self { mut terminate, mut interrupt, hangup, certificate } = self;
        tokio::select! {
            biased;
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            () = reload_on(hangup, certificate) => {}
        }
    }
}

/// Never returns.
async fn reload_on(mut hangup: Signal, certificate: Option<Arc<Certificate>>) {
    while hangup.recv().await.is_some() {
        match &certificate {
            Some(certificate) => certificate.reload().await,
            None => tracing::info!(
                "SIGHUP: there is no certificate to read again, and nothing else is read while running; SIGTERM stops"
            ),
        }
    }
    std::future::pending::<()>().await;
}

fn has_installation_key(parts: &Parts) -> bool {
    parts.rosters.current().keys.iter().any(|key| key.project == 0)
}

fn refuse_open_door(settings: &Settings, parts: &Parts) -> Result<(), BootError> {
    let is_open = settings.admin_key.is_none() && !has_installation_key(parts);
    if is_open && !settings.listen.ip().is_loopback() {
        return Err(BootError::Open(settings.listen));
    }
    Ok(())
}

/// Makes sure that an installation key exists. Returns the one it had to make up, to be shown once.
async fn ensure_admin_key(settings: &Settings, parts: &Parts) -> Result<Option<String>, BootError> {
    let (key, is_new) = match (&settings.admin_key, has_installation_key(parts)) {
        (Some(given), _) if parts.rosters.current().holder(&key::hash(given)).is_some() => return Ok(None),
        (Some(given), _) => (given.clone(), false),
        (None, true) => return Ok(None),
        (None, false) => (key::generate([parts.entropy.u128(), parts.entropy.u128()]), true),
    };
    let new = NewKey {
        project: 0,
        id: prefixed("key_", parts.entropy.u128()),
        role: Role::Admin.name().to_owned(),
        name: "first admin key".to_owned(),
        prefix: key::shown(&key),
        hash: key::hash(&key).to_vec(),
    };
    // Made again by others that start at the same moment, it changes nothing.
    parts.rosters.change(Change::CreateKey(new), parts.clock.now()).await?;
    Ok(is_new.then_some(key))
}
