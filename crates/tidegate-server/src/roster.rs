//! Who is who right now: projects, keys and subscribers, compiled for use.
//!
//! A [`Roster`] is an immutable snapshot of one configuration version; [`Rosters`] holds the newest and makes the
//! next from what changed. Whoever routes, authenticates or sends takes a snapshot and works with it to the end; the
//! store refuses groups that were routed by an old one.

mod compile;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_core::catalog::Catalog;
use tidegate_core::egress::Policy;
use tidegate_core::id::{ProjectNo, SubscriberNo, Version};
use tidegate_core::key::Role;
use tidegate_core::route::{Router, Subscriber};
use tidegate_core::schedule::Terms;
use tidegate_core::seal::{Keyring, SealProblem};
use tidegate_core::sign::Signer;
use tidegate_core::subscriber::{self, Definition};
use tidegate_core::time::Timestamp;
use tidegate_destinations::Target;
use tidegate_destinations::webhook::Letterhead;
use tidegate_store::{
    Change, Changed, KeyRow, ProjectRow, Reseal, SealedRow, SecretKind, Store, SubscriberRow, VerificationRow,
};
use tokio::sync::{Notify, RwLock};

/// Secrets moved to another master key in one transaction: others write in between.
const RESEALED_AT_ONCE: usize = 256;

use crate::catalogs::{self, Catalogs};
use crate::gates::{self, Gates};
use compile::compile;

/// One configuration version, ready for use.
#[derive(Default)]
pub struct Roster {
    /// Which version.
    pub version: Version,
    /// How many there were before it in this process: versions may go back with a database.
    pub(crate) order: u64,
    /// By public id.
    pub projects: BTreeMap<String, ProjectRow>,
    /// All keys, for lists.
    pub keys: Vec<KeyRow>,
    holders: HashMap<[u8; 32], Holder>,
    endpoints: BTreeMap<SubscriberNo, Arc<Endpoint>>,
    by_id: BTreeMap<(ProjectNo, String), SubscriberNo>,
    routers: BTreeMap<ProjectNo, Arc<Router>>,
    catalogs: Catalogs,
    pub(crate) gates: Gates,
}

/// Whoever shows a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its project; `None` for the installation's own keys.
    pub project: Option<ProjectNo>,
    /// What it may do there.
    pub role: Role,
}

/// A subscriber with everything prepared that does not change between its deliveries.
pub struct Endpoint {
    /// What it wants.
    pub rule: Arc<Subscriber>,
    /// Since when.
    pub created_at: Timestamp,
    /// The configuration that last changed it.
    pub version: Version,
    /// Whether it is sent to.
    pub active: bool,
    /// Why not.
    pub inactive_reason: Option<String>,
    /// It had done nothing but fail since, when this snapshot was made.
    pub failing_since: Option<Timestamp>,
    /// A backfill was under way when this snapshot was made.
    pub backfilling: bool,
    /// What its `fold.cancel_on` was before.
    pub former_conditions: Vec<String>,
    /// How far the verification of its endpoint has come.
    pub verification: Option<VerificationRow>,
    /// Where to, with its connections.
    pub target: Arc<Target>,
    /// What the headers of every attempt have in common.
    pub letterhead: Letterhead,
    /// Its secrets, the newest first.
    signers: Vec<Signer>,
    /// Until when the older one signs too.
    pub grace_until: Option<Timestamp>,
    /// Total deadline of an attempt.
    pub timeout: Duration,
    /// What it allows.
    pub terms: Terms,
    /// When it last took a delivery, in this life of the process; 0 is never.
    pub delivered_at_ms: Arc<AtomicI64>,
}

impl Endpoint {
    /// Its definition.
    pub fn definition(&self) -> &Definition {
        &self.rule.definition
    }

    /// Who signs now, the newest first. A grace ends by the time of the attempt; nothing has to happen for that.
    pub fn signers(&self, now: Timestamp) -> &[Signer] {
        match self.grace_until {
            Some(until) if now < until => &self.signers,
            _ => &self.signers[..1],
        }
    }

    /// The key its receiver checks with, when that is not the secret itself.
    pub fn public_key(&self) -> Option<String> {
        self.signers[0].public_key()
    }
}

impl Roster {
    /// Who holds the key with this hash.
    pub fn holder(&self, hash: &[u8; 32]) -> Option<Holder> {
        self.holders.get(hash).copied()
    }

    /// A subscriber.
    pub fn endpoint(&self, subscriber: SubscriberNo) -> Option<&Arc<Endpoint>> {
        self.endpoints.get(&subscriber)
    }

    /// A project's subscriber.
    pub fn endpoint_by_id(&self, project: ProjectNo, id: &str) -> Option<&Arc<Endpoint>> {
        self.by_id.get(&(project, id.to_owned())).and_then(|no| self.endpoints.get(no))
    }

    /// Every subscriber, oldest first.
    pub fn endpoints(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        self.endpoints.values()
    }

    /// Who gets a project's events; `None` when nobody does.
    pub fn router(&self, project: ProjectNo) -> Option<&Arc<Router>> {
        self.routers.get(&project)
    }

    /// What a project's events are judged by; `None` when it takes everything.
    pub fn catalog(&self, project: ProjectNo) -> Option<&Arc<Catalog>> {
        self.catalogs.get(&project)
    }
}

/// Holds the newest roster.
pub struct Rosters {
    store: Arc<dyn Store>,
    keys: ArcSwap<Keyring>,
    /// Read while something sealed is on its way into the store, written when the master key changes: what was sealed
    /// with a key that is going away must not arrive after its last look around.
    sealing: RwLock<()>,
    policy: Policy,
    current: ArcSwap<Roster>,
    refreshing: tokio::sync::Mutex<()>,
    changed: Notify,
    /// Changed by this process.
    changed_here: Notify,
    catching_up: tokio::sync::Mutex<()>,
    /// How often it was looked whether there is something to catch up with.
    looks: AtomicU64,
}

impl Rosters {
    /// Reads the whole configuration.
    pub async fn load(
        store: Arc<dyn Store>,
        keys: impl Into<Keyring>,
        policy: Policy,
    ) -> tidegate_store::Result<Arc<Self>> {
        let rosters = Self {
            store,
            keys: ArcSwap::from_pointee(keys.into()),
            sealing: RwLock::new(()),
            policy,
            current: ArcSwap::from_pointee(Roster::default()),
            refreshing: tokio::sync::Mutex::new(()),
            changed: Notify::new(),
            changed_here: Notify::new(),
            catching_up: tokio::sync::Mutex::new(()),
            looks: AtomicU64::new(0),
        };
        rosters.refresh().await?;
        Ok(Arc::new(rosters))
    }

    /// The newest snapshot.
    pub fn current(&self) -> Arc<Roster> {
        self.current.load_full()
    }

    /// What it is read from.
    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// Where deliveries may go.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Seals a subscriber's secret.
    pub fn seal(&self, project: ProjectNo, id: &str, secret: &str, nonce: [u8; 24]) -> Vec<u8> {
        let row = row_name(project, id, SecretKind::Signing);
        self.keys.load().current().seal(secret.as_bytes(), &row, nonce)
    }

    /// A definition as the store keeps it: without its secrets, and these sealed.
    pub fn part(
        &self,
        project: ProjectNo,
        id: &str,
        definition: &Definition,
        nonce: [u8; 24],
    ) -> (String, Vec<u8>) {
        let (open, hidden) = subscriber::part(definition);
        let row = row_name(project, id, SecretKind::Destination);
        (open, self.keys.load().current().seal(&hidden, &row, nonce))
    }

    /// The master key, and the one before it while something may be sealed with it.
    pub fn keys(&self) -> Arc<Keyring> {
        self.keys.load_full()
    }

    /// Seals with other keys from now on. When this returns, nothing sealed with former ones is under way.
    pub async fn set_keys(&self, keys: Keyring) {
        let _nothing_under_way = self.sealing.write().await;
        self.keys.store(Arc::new(keys));
    }

    /// Moves everything that is sealed to the current master key; says how much that was.
    pub async fn reseal(&self) -> tidegate_store::Result<usize> {
        let keys = self.keys();
        let mut anew = Vec::new();
        for row in self.store.sealed().await? {
            let value = keys.reseal(&row.value, &row_name(row.project, &row.id, row.kind));
            match value {
                Ok(Some(value)) => anew.push(Reseal { row, value }),
                Ok(None) => {}
                Err(SealProblem::OtherKey) => return Err(other_key(&row.id)),
                // It could not be used before, and can not now.
                Err(problem) => tracing::error!(subscriber = row.id, %problem, "a secret can not be moved"),
            }
        }
        for some in anew.chunks(RESEALED_AT_ONCE) {
            self.store.reseal(some.to_vec()).await?;
        }
        Ok(anew.len())
    }

    /// How many secrets are not sealed with the current master key.
    pub async fn unmoved(&self) -> tidegate_store::Result<usize> {
        let keys = self.keys();
        let rows = self.store.sealed().await?;
        let is_unmoved = |row: &SealedRow| {
            !matches!(keys.reseal(&row.value, &row_name(row.project, &row.id, row.kind)), Ok(None))
        };
        Ok(rows.iter().filter(|row| is_unmoved(row)).count())
    }

    /// Changes the configuration. When this returns, every later event is routed by it. What was begun comes to its
    /// end even if the caller goes away, as a client that hangs up does.
    pub async fn change(self: &Arc<Self>, change: Change, now: Timestamp) -> tidegate_store::Result<Changed> {
        let rosters = Arc::clone(self);
        let changing = tokio::spawn(async move {
            let _keys_stay = rosters.sealing.read().await;
            let change = rosters.freshen(change);
            let changed = rosters.store.change(change, now).await?;
            rosters.changed.notify_one();
            rosters.changed_here.notify_one();
            rosters.refresh().await?;
            Ok(changed)
        });
        changing.await.unwrap_or_else(|error| {
            Err(tidegate_store::Error::Unavailable(format!("the change ended early: {error}")))
        })
    }

    /// The store has changed the configuration by itself, on behalf of this process.
    pub(crate) async fn changed_in_store(&self) -> tidegate_store::Result<()> {
        self.changed_here.notify_one();
        self.refresh().await
    }

    /// What was sealed just before the master key changed is moved on its way in.
    fn freshen(&self, mut change: Change) -> Change {
        let keys = self.keys.load();
        let move_on = |value: &mut Vec<u8>, project, id: &str, kind| {
            if let Ok(Some(moved)) = keys.reseal(value, &row_name(project, id, kind)) {
                *value = moved;
            }
        };
        match &mut change {
            Change::CreateSubscriber(new) => {
                move_on(&mut new.secret, new.project, &new.id, SecretKind::Signing);
                if let Some(value) = &mut new.destination {
                    move_on(value, new.project, &new.id, SecretKind::Destination);
                }
            }
            Change::UpdateSubscriber { project, no, update } => {
                let roster = self.current();
                let Some(id) = roster.endpoint(*no).map(|endpoint| &endpoint.rule.id) else { return change };
                if let Some(value) = &mut update.destination {
                    move_on(value, *project, id, SecretKind::Destination);
                }
                if let Some(secret) = &mut update.secret {
                    move_on(&mut secret.sealed, *project, id, SecretKind::Signing);
                }
            }
            _ => {}
        }
        change
    }

    /// Returns when the store may hold another configuration than was last followed. For one listener.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Returns when this process has changed the configuration. For one listener.
    pub async fn changed_here(&self) {
        self.changed_here.notified().await;
    }

    /// Takes over what others changed until now: whatever was answered anywhere before this is called is known here
    /// when it returns. Many that ask at once are one question.
    pub async fn catch_up(&self) -> tidegate_store::Result<()> {
        let asked = self.looks.load(Ordering::Acquire);
        let _one_at_a_time = self.catching_up.lock().await;
        // A look that was begun after this was called is as good as an own one.
        if self.looks.load(Ordering::Acquire) > asked {
            return Ok(());
        }
        self.looks.fetch_add(1, Ordering::AcqRel);
        if self.store.version().await? == self.current().version {
            return Ok(());
        }
        self.refresh().await
    }

    /// Takes over what changed in the store since the current snapshot.
    pub async fn refresh(&self) -> tidegate_store::Result<()> {
        let _one_at_a_time = self.refreshing.lock().await;
        let old = self.current();
        let news = self.store.configuration(old.version).await?;
        let is_newer = news.version != old.version;
        let order = old.order + u64::from(is_newer);
        // What is not in it is not there any more.
        let old = if news.is_whole { Arc::default() } else { old };
        let mut roster = Roster {
            version: news.version,
            order,
            holders: news.keys.iter().filter_map(holder).collect(),
            keys: news.keys,
            catalogs: catalogs::follow(&old.catalogs, &news.projects, news.types),
            gates: gates::follow(&old.gates, news.gates),
            projects: news.projects.into_iter().map(|project| (project.id.clone(), project)).collect(),
            endpoints: old.endpoints.clone(),
            by_id: old.by_id.clone(),
            routers: old.routers.clone(),
        };
        let touched: BTreeSet<ProjectNo> = news.subscribers.iter().map(|row| row.project).collect();
        for row in news.subscribers {
            self.apply(&mut roster, row)?;
        }
        for project in touched {
            let rules = roster.endpoints.values().filter(|endpoint| endpoint.rule.project == project);
            let router = Router::build(rules.map(|endpoint| Arc::clone(&endpoint.rule)).collect());
            roster.routers.insert(project, Arc::new(router));
        }
        self.current.store(Arc::new(roster));
        if is_newer {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Takes over one row. Only a wrong master key is an error: going on with it would lose deliveries one by one.
    fn apply(&self, roster: &mut Roster, row: SubscriberRow) -> tidegate_store::Result<()> {
        let (no, key) = (row.no, (row.project, row.id.clone()));
        let old = roster.endpoints.remove(&no);
        // The id of one that is gone may be another's by now.
        if roster.by_id.get(&key) == Some(&no) {
            roster.by_id.remove(&key);
        }
        if row.deleted {
            return Ok(());
        }
        let opened = self.open(&row);
        if matches!(opened, Err(SealProblem::OtherKey)) {
            return Err(other_key(&key.1));
        }
        match opened
            .map_err(|problem| problem.to_string())
            .and_then(|opened| compile(row, opened, &roster.gates))
        {
            Ok(mut endpoint) => {
                if let Some(old) = old {
                    endpoint.delivered_at_ms = Arc::clone(&old.delivered_at_ms);
                }
                roster.endpoints.insert(no, Arc::new(endpoint));
                roster.by_id.insert(key, no);
            }
            // One damaged row must not keep all the others from their events.
            Err(problem) => tracing::error!(subscriber = key.1, problem, "a subscriber can not be used"),
        }
        Ok(())
    }

    fn open(&self, row: &SubscriberRow) -> Result<Opened, SealProblem> {
        let keys = self.keys.load();
        let open = |value: &Vec<u8>, kind| keys.open(value, &row_name(row.project, &row.id, kind));
        let previous = row.previous_secret.as_ref().map(|(sealed, _)| sealed);
        let secrets = std::iter::once(&row.secret).chain(previous);
        let secrets = secrets.map(|value| open(value, SecretKind::Signing)).collect::<Result<_, _>>()?;
        let hidden =
            row.destination.as_ref().map(|value| open(value, SecretKind::Destination)).transpose()?;
        Ok(Opened { secrets, hidden })
    }
}

fn other_key(subscriber: &str) -> tidegate_store::Error {
    tidegate_store::Error::Unusable(format!(
        "the secret of subscriber {subscriber} was sealed with another master key: set TIDEGATE_MASTER_KEY to that key \
         (or TIDEGATE_MASTER_KEY_PREVIOUS, to change it), or put its file master.key back beside the data"
    ))
}

/// What was sealed of a subscriber.
struct Opened {
    /// The newest first.
    secrets: Vec<Vec<u8>>,
    /// Absent when the definition itself still has it.
    hidden: Option<Vec<u8>>,
}

/// What a sealed secret is bound to.
fn row_name(project: ProjectNo, id: &str, kind: SecretKind) -> String {
    match kind {
        SecretKind::Signing => format!("{project}/{id}"),
        SecretKind::Destination => format!("{project}/{id}/destination"),
    }
}

fn holder(key: &KeyRow) -> Option<([u8; 32], Holder)> {
    let hash = key.hash.as_slice().try_into().ok()?;
    let project = (key.project != 0).then_some(key.project);
    Some((hash, Holder { project, role: Role::parse(&key.role)? }))
}
