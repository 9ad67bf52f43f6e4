//! Looking names up.
//!
//! The transport asks once for every new connection and judges the answer itself; nothing here decides what may be
//! dialled. The default asks the operating system, so that `/etc/hosts` and the like work as people expect.
//! Promises: one name that is slow to resolve occupies one thread, however many deliveries wait for it, and all
//! look-ups together occupy [`LOOKUPS_IN_FLIGHT_MAX`]: the threads are shared with the store.
//! Does not: cache. A connection lives for minutes, so names are seldom asked for.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use tidegate_core::limits::LOOKUPS_IN_FLIGHT_MAX;
use tokio::sync::{Semaphore, watch};

/// Turns a name into addresses. Tests have their own, whose answers change.
#[async_trait]
pub trait Resolve: Send + Sync + 'static {
    /// Every address of `name`, each with `port`.
    async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>>;
}

/// Asks the operating system.
pub struct SystemResolver {
    shared: Arc<Shared>,
}

struct Shared {
    under_way: Mutex<BTreeMap<String, watch::Receiver<Lookup>>>,
    permits: Semaphore,
}

/// `None` until the answer is there. Errors are all the same to callers.
type Lookup = Option<Result<Vec<IpAddr>, ()>>;

impl Default for SystemResolver {
    fn default() -> Self {
        let permits = Semaphore::new(LOOKUPS_IN_FLIGHT_MAX);
        Self { shared: Arc::new(Shared { under_way: Mutex::default(), permits }) }
    }
}

#[async_trait]
impl Resolve for SystemResolver {
    async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let mut lookup = self.shared.join(name);
        let answer = match lookup.wait_for(Option::is_some).await {
            Ok(answer) => answer.clone().unwrap_or(Err(())),
            Err(_) => Err(()),
        };
        let addresses = answer.map_err(|()| io::Error::other("the name did not resolve"))?;
        Ok(addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect())
    }
}

impl Shared {
    /// The look-up of this name that is under way, or a new one.
    fn join(self: &Arc<Self>, name: &str) -> watch::Receiver<Lookup> {
        let mut under_way = self.lock();
        if let Some(lookup) = under_way.get(name) {
            return lookup.clone();
        }
        let (sender, receiver) = watch::channel(None);
        under_way.insert(name.to_owned(), receiver.clone());
        tokio::spawn(Arc::clone(self).look_up(name.to_owned(), sender));
        receiver
    }

    async fn look_up(self: Arc<Self>, name: String, sender: watch::Sender<Lookup>) {
        let permit = self.permits.acquire().await;
        let asked = name.clone();
        let answer = tokio::task::spawn_blocking(move || ask_system(&asked)).await;
        drop(permit);
        self.lock().remove(&name);
        let _ = sender.send(Some(answer.unwrap_or(Err(()))));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, watch::Receiver<Lookup>>> {
        // No step under the lock can leave the map half changed.
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ask_system(name: &str) -> Result<Vec<IpAddr>, ()> {
    let addresses = (name, 0).to_socket_addrs().map_err(|_| ())?;
    Ok(addresses.map(|address| address.ip()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_name_is_looked_up_once_at_a_time() {
        let resolver = SystemResolver::default();
        let first = resolver.shared.join("localhost");
        assert!(first.same_channel(&resolver.shared.join("localhost")));
        assert!(!first.same_channel(&resolver.shared.join("127.0.0.1")));
        let addresses = resolver.resolve("localhost", 7).await.unwrap();
        assert!(addresses.iter().all(|address| address.ip().is_loopback() && address.port() == 7));
        assert!(!addresses.is_empty());
        assert!(!first.same_channel(&resolver.shared.join("localhost")), "the answer was not kept");
    }
}
