//! Who is who right now: projects, keys and subscribers, compiled for use.
//!
//! A [`Roster`] is an immutable snapshot of one configuration version; [`Rosters`] holds the newest and makes the
//! next from what changed. Whoever routes, authenticates or sends takes a snapshot and works with it to the end; the
//! store refuses groups that were routed by an old one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_core::egress::{Policy, Url};
use tidegate_core::id::{ProjectNo, SubscriberNo, Version};
use tidegate_core::key::Role;
use tidegate_core::route::{Router, Subscriber};
use tidegate_core::schedule::Terms;
use tidegate_core::seal::{SealProblem, Sealer};
use tidegate_core::sign::Signer;
use tidegate_core::subscriber::Definition;
use tidegate_core::time::Timestamp;
use tidegate_destinations::Target;
use tidegate_destinations::webhook::Letterhead;
use tidegate_store::{Change, Changed, KeyRow, ProjectRow, Store, SubscriberRow};
use tokio::sync::Notify;

/// One configuration version, ready for use.
#[derive(Default)]
pub struct Roster {
    /// Which version.
    pub version: Version,
    /// By public id.
    pub projects: BTreeMap<String, ProjectRow>,
    /// All keys, for lists.
    pub keys: Vec<KeyRow>,
    holders: HashMap<[u8; 32], Holder>,
    endpoints: BTreeMap<SubscriberNo, Arc<Endpoint>>,
    by_id: BTreeMap<(ProjectNo, String), SubscriberNo>,
    routers: BTreeMap<ProjectNo, Arc<Router>>,
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
    /// Whether it is sent to.
    pub active: bool,
    /// Why not.
    pub inactive_reason: Option<String>,
    /// It had done nothing but fail since, when this snapshot was made.
    pub failing_since: Option<Timestamp>,
    /// A backfill was under way when this snapshot was made.
    pub backfilling: bool,
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
}

/// Holds the newest roster.
pub struct Rosters {
    store: Arc<dyn Store>,
    sealer: Sealer,
    policy: Policy,
    current: ArcSwap<Roster>,
    refreshing: tokio::sync::Mutex<()>,
    changed: Notify,
}

impl Rosters {
    /// Reads the whole configuration.
    pub async fn load(
        store: Arc<dyn Store>,
        sealer: Sealer,
        policy: Policy,
    ) -> tidegate_store::Result<Arc<Self>> {
        let rosters = Self {
            store,
            sealer,
            policy,
            current: ArcSwap::from_pointee(Roster::default()),
            refreshing: tokio::sync::Mutex::new(()),
            changed: Notify::new(),
        };
        rosters.refresh().await?;
        Ok(Arc::new(rosters))
    }

    /// The newest snapshot.
    pub fn current(&self) -> Arc<Roster> {
        self.current.load_full()
    }

    /// Where deliveries may go.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Seals a subscriber's secret.
    pub fn seal(&self, project: ProjectNo, id: &str, secret: &str, nonce: [u8; 24]) -> Vec<u8> {
        self.sealer.seal(secret.as_bytes(), &row_name(project, id), nonce)
    }

    /// Changes the configuration. When this returns, every later event is routed by it. What was begun comes to its
    /// end even if the caller goes away, as a client that hangs up does.
    pub async fn change(self: &Arc<Self>, change: Change, now: Timestamp) -> tidegate_store::Result<Changed> {
        let rosters = Arc::clone(self);
        let changing = tokio::spawn(async move {
            let changed = rosters.store.change(change, now).await?;
            rosters.changed.notify_one();
            rosters.refresh().await?;
            Ok(changed)
        });
        changing.await.unwrap_or_else(|error| {
            Err(tidegate_store::Error::Unavailable(format!("the change ended early: {error}")))
        })
    }

    /// Returns when the store may hold another configuration than was last followed. For one listener.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Takes over what changed in the store since the current snapshot.
    pub async fn refresh(&self) -> tidegate_store::Result<()> {
        let _one_at_a_time = self.refreshing.lock().await;
        let old = self.current();
        let news = self.store.configuration(old.version).await?;
        let mut roster = Roster {
            version: news.version,
            holders: news.keys.iter().filter_map(holder).collect(),
            keys: news.keys,
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
        let is_newer = roster.version != old.version;
        self.current.store(Arc::new(roster));
        if is_newer {
            self.changed.notify_one();
        }
        Ok(())
    }

    /// Takes over one row. Only a wrong master key is an error: going on with it would lose deliveries one by one.
    fn apply(&self, roster: &mut Roster, row: SubscriberRow) -> tidegate_store::Result<()> {
        let (no, key) = (row.no, (row.project, row.id.clone()));
        roster.endpoints.remove(&no);
        roster.by_id.remove(&key);
        if row.deleted {
            return Ok(());
        }
        let secrets = self.open_secrets(&row);
        if secrets == Err(SealProblem::OtherKey) {
            return Err(tidegate_store::Error::Unusable(format!(
                "the secret of subscriber {} was sealed with another master key: set TIDEGATE_MASTER_KEY to that key, \
                 or put its file master.key back beside the data",
                key.1
            )));
        }
        match compile(row, secrets) {
            Ok(endpoint) => {
                roster.endpoints.insert(no, Arc::new(endpoint));
                roster.by_id.insert(key, no);
            }
            // One damaged row must not keep all the others from their events.
            Err(problem) => tracing::error!(subscriber = key.1, problem, "a subscriber can not be used"),
        }
        Ok(())
    }

    /// The newest first.
    fn open_secrets(&self, row: &SubscriberRow) -> Result<Vec<Vec<u8>>, SealProblem> {
        let previous = row.previous_secret.as_ref().map(|(sealed, _)| sealed);
        let name = row_name(row.project, &row.id);
        std::iter::once(&row.secret).chain(previous).map(|sealed| self.sealer.open(sealed, &name)).collect()
    }
}

fn compile(row: SubscriberRow, secrets: Result<Vec<Vec<u8>>, SealProblem>) -> Result<Endpoint, String> {
    let definition: Definition = serde_json::from_str(&row.definition).map_err(|error| error.to_string())?;
    let secrets = secrets.map_err(|problem| problem.to_string())?;
    let signers = secrets.into_iter().map(signer).collect::<Result<_, _>>()?;
    let url = Url::parse(&definition.destination.url).map_err(|error| error.to_string())?;
    let letterhead = Letterhead::new(&definition.destination.headers, &definition.signing)
        .map_err(|error| error.to_string())?;
    let rule = Subscriber::compile(row.no, row.project, row.id, definition)
        .map_err(|problem| problem.to_string())?;
    let limits = &rule.definition.limits;
    Ok(Endpoint {
        created_at: row.created_at,
        active: row.active,
        inactive_reason: row.inactive_reason,
        failing_since: row.failing_since,
        backfilling: row.backfilling,
        target: Target::new(url),
        letterhead,
        signers,
        grace_until: row.previous_secret.map(|(_, until)| until),
        timeout: limits.timeout.0,
        terms: Terms {
            concurrency: limits.concurrency,
            rate: limits.rate,
            breaker: rule.definition.breaker.terms(),
            disable_after: rule.definition.disable_after.terms(),
        },
        rule: Arc::new(rule),
    })
}

fn signer(secret: Vec<u8>) -> Result<Signer, String> {
    let secret = String::from_utf8(secret).map_err(|_| "the secret is not text".to_owned())?;
    Signer::parse(&secret).map_err(|problem| problem.to_string())
}

/// What a sealed secret is bound to.
fn row_name(project: ProjectNo, id: &str) -> String {
    format!("{project}/{id}")
}

fn holder(key: &KeyRow) -> Option<([u8; 32], Holder)> {
    let hash = key.hash.as_slice().try_into().ok()?;
    let project = (key.project != 0).then_some(key.project);
    Some((hash, Holder { project, role: Role::parse(&key.role)? }))
}
