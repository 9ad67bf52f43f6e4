//! The server's certificate: read at the start, and again when its files change.
//!
//! A new connection looks whether the files changed, at most once in [`LOOK_EVERY`]; SIGHUP looks at once. Nothing
//! looks while nobody comes. New files that can not be used, as in the middle of a renewal, change nothing: the old
//! certificate stays, the log and `/readyz` say so, and the next look may find them whole.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, crypto};

/// How often new connections look at the files.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Where the certificate is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and those between it and the authority, PEM.
    pub cert: PathBuf,
    /// Its private key, PEM.
    pub key: PathBuf,
}

/// Why the files can not be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsProblem {
    /// The certificate can not be read.
    #[error("tls.cert: cannot use {0}: {1}")]
    Cert(String, String),
    /// The key can not be read.
    #[error("tls.key: cannot use {0}: {1}")]
    Key(String, String),
    /// They do not belong together, or ring does not know the algorithm.
    #[error("tls: the certificate and the key can not be used together: {0}")]
    Pair(String),
}

/// The certificate in use.
pub struct Certificate {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
    looked_ms: AtomicU64,
    /// What the files looked like when they were last read, well or not.
    seen: Mutex<Option<[Stamp; 2]>>,
    is_current: AtomicBool,
}

/// What changes when a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

impl Certificate {
    /// Reads the files, which must be usable.
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, TlsProblem> {
        let seen = stamps(&files);
        let config = read(&files)?;
        warn_of_readers(&files.key);
        Ok(Arc::new(Self {
            files,
            config: ArcSwap::new(config),
            looked_ms: AtomicU64::new(0),
            seen: Mutex::new(seen),
            is_current: AtomicBool::new(true),
        }))
    }

    /// What a handshake that begins now needs. `now` is the clock's measure.
    pub async fn current(self: &Arc<Self>, now: Duration) -> Arc<ServerConfig> {
        let now_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let looked = self.looked_ms.load(Ordering::Relaxed);
        let is_time = now_ms.saturating_sub(looked) >= LOOK_EVERY.as_millis() as u64;
        // Of many connections at once, one looks.
        let order = Ordering::Relaxed;
        if is_time && self.looked_ms.compare_exchange(looked, now_ms, order, order).is_ok() {
            self.look(false).await;
        }
        self.config.load_full()
    }

    /// Reads the files again, changed or not.
    pub async fn reload(self: &Arc<Self>) {
        self.look(true).await;
    }

    /// Whether the files on disk are the ones in use.
    pub fn is_current(&self) -> bool {
        self.is_current.load(Ordering::Relaxed)
    }

    /// A slow disk must not stop the door, so another thread looks.
    async fn look(self: &Arc<Self>, is_asked: bool) {
        let own = Arc::clone(self);
        // Cancelled only when the process ends.
        let _ = tokio::task::spawn_blocking(move || own.look_now(is_asked)).await;
    }

    fn look_now(&self, is_asked: bool) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = stamps(&self.files);
        if stamps == *seen && !is_asked {
            return;
        }
        *seen = stamps;
        match read(&self.files) {
            Ok(config) => {
                self.config.store(config);
                self.is_current.store(true, Ordering::Relaxed);
                warn_of_readers(&self.files.key);
                tracing::info!("the certificate was read again");
            }
            Err(problem) => {
                self.is_current.store(false, Ordering::Relaxed);
                tracing::error!(%problem, "the new certificate can not be used: the old one stays");
            }
        }
    }
}

fn read(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsProblem> {
    let shown = |path: &Path| path.display().to_string();
    let cert = |error: String| TlsProblem::Cert(shown(&files.cert), error);
    let chain = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| cert(error.to_string()))?;
    if chain.is_empty() {
        return Err(cert("it holds no certificate in PEM".to_owned()));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| TlsProblem::Key(shown(&files.key), error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring speaks TLS 1.2 and 1.3")
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| TlsProblem::Pair(error.to_string()))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Absent while a file is; then reading says why.
fn stamps(files: &TlsFiles) -> Option<[Stamp; 2]> {
    Some([stamp(&files.cert)?, stamp(&files.key)?])
}

fn stamp(path: &Path) -> Option<Stamp> {
    let found = std::fs::metadata(path).ok()?;
    let modified = (found.mtime(), found.mtime_nsec());
    Some(Stamp { inode: found.ino(), size: found.size(), modified })
}

fn warn_of_readers(key: &Path) {
    const OTHERS: u32 = 0o007;
    if std::fs::metadata(key).is_ok_and(|found| found.mode() & OTHERS != 0) {
        tracing::warn!(file = %key.display(), "every user of this machine can use tls.key: chmod 600 it");
    }
}
