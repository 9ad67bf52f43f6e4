//! A running product, put together for the simulation the way the server puts it together at its start.

use std::sync::Arc;

use tidegate_core::catalog::Mode;
use tidegate_core::egress::Policy;
use tidegate_core::id::Mint;
use tidegate_core::seal::Sealer;
use tidegate_server::entropy::Entropy;
use tidegate_server::metrics::Metrics;
use tidegate_server::pipeline::{Loops, Parts, Pipeline};
use tidegate_server::roster::Rosters;
use tidegate_server::standing::Standing;
use tidegate_store::coordination::Coordination;
use tidegate_store::{Change, Store};
use tokio::runtime::Handle;

use super::acts::Site;
use super::plan::Plan;
use super::receivers::Receivers;
use super::store::FaultyStore;

/// How it stands among others, and how it reaches them.
pub(crate) type Ties = (Arc<Standing>, Option<Arc<dyn Coordination>>);

impl Site {
    /// Starts everything; the projects of the plan are there when it returns.
    pub(crate) async fn open(
        plan: &Plan,
        store: FaultyStore,
        (standing, coordination): Ties,
    ) -> tidegate_store::Result<Self> {
        let (mint, life) = (Mint::new(store.salt()), Arc::clone(&store.life));
        let history = store.history.clone();
        let store: Arc<dyn Store> = Arc::new(store);
        let rosters = Rosters::load(Arc::clone(&store), Sealer::new(&[7; 32]), Policy::public_only()).await?;
        let parts = Parts {
            store,
            rosters,
            transport: Arc::new(Receivers {
                seed: plan.seed,
                moods: Arc::new(plan.moods.clone()),
                life: Arc::clone(&life),
                history: history.clone(),
                mint,
                fold_bytes: plan.bounds.fold_bytes,
            }),
            clock: life.clock.clone(),
            entropy: Entropy::seeded(plan.seed.wrapping_mul(31).wrapping_add(life.no() as u64)),
            metrics: Arc::new(Metrics::default()),
            retention: plan.terms.unwrap_or_default(),
            observing: plan.counting,
            watch: Arc::default(),
            origin: http::HeaderValue::from_static("sim"),
            spans: Arc::default(),
            standing,
            coordination,
        };
        let here = Handle::current();
        let loops = Loops { persist: here.clone(), deliver: here.clone(), beat: here };
        let pipeline = Pipeline::start_within(&parts, &loops, plan.bounds).await?;
        let site = Self { pipeline, parts, life, history };
        for project in &plan.projects {
            if !site.parts.rosters.current().projects.contains_key(*project) {
                site.change(Change::CreateProject { id: (*project).to_owned(), catalog: Mode::Open }).await;
            }
            let no = site.parts.rosters.current().projects.get(*project).map(|row| row.no);
            if let (Some(no), Some(terms)) = (no, plan.gate) {
                site.open_gate(no, terms).await;
            }
        }
        Ok(site)
    }
}
