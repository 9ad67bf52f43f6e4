//! Coordination keeps its contract.

use std::sync::Arc;

use async_trait::async_trait;
use tidegate_store::coordination::conformance::{self, Fixture};
use tidegate_store::coordination::{Coordination, Hub};

/// Replicas in this process.
struct Here(Arc<Hub>);

#[async_trait]
impl Fixture for Here {
    async fn join(&self) -> Arc<dyn Coordination> {
        Arc::new(self.0.join())
    }

    fn has_connections(&self) -> bool {
        false
    }

    async fn cut(&self) {}

    async fn wipe(&self) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local() {
    conformance::run(&Here(Hub::new())).await;
}
