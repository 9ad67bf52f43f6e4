//! The master key: where it comes from, and how it is changed under traffic.
//!
//! The operator gives it (`TIDEGATE_MASTER_KEY`, and `TIDEGATE_MASTER_KEY_PREVIOUS` while it changes), or it is the file
//! `master.key` beside the data. To change the file's key, the new one is written above the old one, on disk before it
//! is used; then everything sealed is moved, row by row; then the old one is taken out. A process that ends in between
//! finds both lines at its next start and goes on. Secrets can be opened with either key all the while, so no delivery
//! waits and none is signed wrongly.
//!
//! Processes that share a store share the key, which only the operator can give to all of them. The store keeps a proof,
//! a text sealed with it, so that one with another key is refused at its start. To change the key, first all are
//! given the new one as `TIDEGATE_MASTER_KEY_NEXT`, which they open with; then it becomes `TIDEGATE_MASTER_KEY`, with the old
//! one as the previous, and everything is moved, at last the proof.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use tidegate_core::seal::{Keyring, Sealer};
use tidegate_store::Store;

use crate::boot::BootError;
use crate::entropy::Entropy;
use crate::roster::Rosters;
use crate::settings::store::StoreAt;
use crate::settings::{Settings, Unsettled, parse_master_key};

type Key = [u8; 32];

/// Where the key comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The operator's environment.
    Environment,
    /// A file of the operator's.
    Given(PathBuf),
    /// A file of our own.
    File(PathBuf),
}

/// Why the key was not changed.
#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    /// Only the operator can change it.
    #[error("the master key comes from the environment")]
    External,
    /// The file can not be read or written.
    #[error("cannot use the file of the master key: {0}")]
    File(String),
    /// The store failed; what was moved is moved, and the rest follows at the next try or start.
    #[error(transparent)]
    Store(#[from] tidegate_store::Error),
}

/// The key of a running server.
pub struct MasterKey {
    origin: Origin,
    rosters: Arc<Rosters>,
    entropy: Entropy,
    rotating: tokio::sync::Mutex<()>,
}

/// Finds the key, or makes one at the first start.
pub(crate) fn load(settings: &Settings, entropy: &Entropy) -> Result<(Origin, Keyring), BootError> {
    let given = &settings.master_key;
    if let Some(key) = given.current {
        let keys = Keyring::new(&key, given.previous.as_ref()).expecting(given.next.as_ref());
        return Ok((Origin::Environment, keys));
    }
    if let Some(path) = &given.file {
        let text =
            fs::read_to_string(path).map_err(|error| BootError::File(path.display().to_string(), error))?;
        let (key, previous) = parse(&text)?;
        return Ok((Origin::Given(path.clone()), Keyring::new(&key, previous.as_ref())));
    }
    if settings.store != StoreAt::Embedded {
        return Err(Unsettled(
            "all processes that share a store need one master key: make it once with `openssl rand -base64 32`, keep a \
             copy, and set TIDEGATE_MASTER_KEY (or master_key_file) for each of them"
                .to_owned(),
        )
        .into());
    }
    let path = settings.data_dir.join("master.key");
    let failed = |error| BootError::File(path.display().to_string(), error);
    let keys = match fs::read_to_string(&path) {
        Ok(text) => parse(&text)?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let key = entropy.bytes();
            write(&path, &[key]).map_err(failed)?;
            (key, None)
        }
        Err(error) => return Err(failed(error)),
    };
    Ok((Origin::File(path), Keyring::new(&keys.0, keys.1.as_ref())))
}

/// What the proof says.
const PROOF: &[u8] = b"tidegate";
/// What it is bound to.
const PROOF_ROW: &str = "proof";

/// Refuses a key that is not the one of the store. A store that is new keeps this one's proof.
pub(crate) async fn prove(store: &dyn Store, keys: &Keyring, entropy: &Entropy) -> Result<(), BootError> {
    let kept = store.proof(keys.current().seal(PROOF, PROOF_ROW, entropy.bytes())).await?;
    match keys.open(&kept, PROOF_ROW) {
        Ok(text) if text == PROOF => Ok(()),
        _ => Err(Unsettled(format!(
            "this is not the master key of the store: it was made with the key {}, and this is {}; set \
             TIDEGATE_MASTER_KEY to that one (or TIDEGATE_MASTER_KEY_PREVIOUS, to change it)",
            Sealer::id_in(&kept).unwrap_or_default(),
            keys.current().id(),
        ))
        .into()),
    }
}

/// Moves the proof to the current key.
async fn prove_anew(store: &dyn Store, keys: &Keyring, entropy: &Entropy) -> Result<(), RotationError> {
    let kept = store.proof(keys.current().seal(PROOF, PROOF_ROW, entropy.bytes())).await?;
    if let Ok(Some(anew)) = keys.reseal(&kept, PROOF_ROW) {
        store.prove_anew(kept, anew).await?;
    }
    Ok(())
}

impl MasterKey {
    /// For a running server.
    pub fn new(origin: Origin, rosters: Arc<Rosters>, entropy: Entropy) -> Arc<Self> {
        Arc::new(Self { origin, rosters, entropy, rotating: tokio::sync::Mutex::default() })
    }

    /// Where it comes from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Changes the key of the file and moves everything to the new one. Says how much was moved. What was begun comes to
    /// its end even if the caller goes away.
    pub async fn rotate(self: &Arc<Self>) -> Result<usize, RotationError> {
        let own = Arc::clone(self);
        let rotating = tokio::spawn(async move {
            let _one_at_a_time = own.rotating.lock().await;
            let Origin::File(path) = own.origin.clone() else {
                // Only the operator can give another key; what the last one still holds is moved.
                let is_changing = own.rosters.keys().previous().is_some();
                return if is_changing { own.settle_now().await } else { Err(RotationError::External) };
            };
            own.settle_now().await?;
            let (old, new) = (read(&path)?.0, own.entropy.bytes());
            store(&path, vec![new, old]).await?;
            own.rosters.set_keys(Keyring::new(&new, Some(&old))).await;
            tracing::info!(key = Sealer::new(&new).id(), "the master key changes");
            own.settle_now().await
        });
        rotating.await.unwrap_or_else(|error| Err(RotationError::File(error.to_string())))
    }

    /// Brings a change to its end that was begun before this start.
    pub async fn settle(self: Arc<Self>) {
        let _one_at_a_time = self.rotating.lock().await;
        if let Err(error) = self.settle_now().await {
            tracing::error!(%error, "not everything is sealed with the new master key yet: keep the old one");
        }
    }

    async fn settle_now(&self) -> Result<usize, RotationError> {
        if self.rosters.keys().previous().is_none() {
            return Ok(0);
        }
        // The last look finds nothing: only then is the old key of no use.
        let mut moved = 0;
        loop {
            match self.rosters.reseal().await? {
                0 => break,
                some => moved += some,
            }
        }
        prove_anew(&**self.rosters.store(), &self.rosters.keys(), &self.entropy).await?;
        let key = self.rosters.keys().current().id();
        let Origin::File(path) = &self.origin else {
            tracing::info!(
                moved,
                key,
                "everything is sealed with the new master key: the previous one (TIDEGATE_MASTER_KEY_PREVIOUS can be removed) is \
                 of use only while another process still seals with it"
            );
            return Ok(moved);
        };
        let current = read(path)?.0;
        store(path, vec![current]).await?;
        self.rosters.set_keys(Keyring::new(&current, None)).await;
        tracing::info!(moved, key, "everything is sealed with the new master key");
        Ok(moved)
    }
}

fn read(path: &Path) -> Result<(Key, Option<Key>), RotationError> {
    let text = fs::read_to_string(path).map_err(|error| RotationError::File(error.to_string()))?;
    parse(&text).map_err(|error| RotationError::File(error.to_string()))
}

/// Writing waits for the disk: another thread does that.
async fn store(path: &Path, keys: Vec<Key>) -> Result<(), RotationError> {
    let path = path.to_owned();
    let written = tokio::task::spawn_blocking(move || write(&path, &keys)).await;
    let written = written.unwrap_or_else(|error| Err(std::io::Error::other(error)));
    written.map_err(|error| RotationError::File(error.to_string()))
}

/// One line, or while it changes two: the key and the one before it.
fn parse(text: &str) -> Result<(Key, Option<Key>), Unsettled> {
    let mut lines = text.lines();
    let key = parse_master_key(lines.next().unwrap_or_default())?;
    Ok((key, lines.next().map(parse_master_key).transpose()?))
}

/// Readable by its owner only, whole or not at all, and on disk before it is used: what is sealed with a lost key is
/// lost.
fn write(path: &Path, keys: &[Key]) -> std::io::Result<()> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let text: String = keys.iter().map(|key| STANDARD.encode(key) + "\n").collect();
    let new = path.with_extension("key.new");
    // What a former process left behind in the middle of this.
    let _ = fs::remove_file(&new);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_has_one_key_or_two() {
        let (a, b) = (STANDARD.encode([1; 32]), STANDARD.encode([2; 32]));
        assert_eq!(parse(&format!("{a}\n")).unwrap(), ([1; 32], None));
        assert_eq!(parse(&format!("{a}\n{b}\n")).unwrap(), ([1; 32], Some([2; 32])));
        assert!(parse("").is_err() && parse(&format!("{a}\nnonsense\n")).is_err());
    }
}
