//! Opening the store, and everything that depends on which one it is: the clock, how this process stands among those that
//! share it, and how they talk. After this nobody asks any more.

use std::sync::Arc;

use ring::digest;
use rustix::system::uname;
use tidegate_core::schedule::Stance;
use tidegate_core::time::Timestamp;
use tidegate_store::coordination::{Coordination, Postgres, Redis};
use tidegate_store::postgres::connect::Target;
use tidegate_store::postgres::{Periods, PostgresStore, Terms};
use tidegate_store::sqlite::{Calls, SqliteStore};
use tidegate_store::{Beat, Error, Load, Store};
use tokio::runtime::Handle;

use super::BootError;
use crate::clock::Clock;
use crate::entropy::Entropy;
use crate::settings::Settings;
use crate::settings::store::{Address, StoreAt};
use crate::standing::Standing;

/// A store in use.
pub(super) struct Opened {
    pub(super) store: Arc<dyn Store>,
    pub(super) clock: Clock,
    pub(super) standing: Arc<Standing>,
    /// Absent where there is nobody else.
    pub(super) coordination: Option<Arc<dyn Coordination>>,
}

/// Opens the store that the settings name. A shared one is told on the loop `beat` that this process lives.
pub(super) async fn open(settings: &Settings, entropy: &Entropy, beat: &Handle) -> Result<Opened, BootError> {
    match &settings.store {
        StoreAt::Embedded => embedded(settings, entropy),
        StoreAt::Postgres { url, redis } => shared(url, redis.as_ref(), entropy, beat).await,
    }
}

fn embedded(settings: &Settings, entropy: &Entropy) -> Result<Opened, BootError> {
    let early = Clock::system(Timestamp::from_ms(0));
    let salt: [u8; 32] = entropy.bytes();
    let store = SqliteStore::open(&settings.data_dir, &salt, entropy.nonce(), early.now(), Calls::Blocking)?;
    let clock = Clock::system(store.latest());
    Ok(Opened { store: Arc::new(store), standing: Standing::alone(&clock), clock, coordination: None })
}

async fn shared(
    url: &Address,
    redis: Option<&Address>,
    entropy: &Entropy,
    beat: &Handle,
) -> Result<Opened, BootError> {
    let early = Clock::system(Timestamp::from_ms(0));
    let salt: [u8; 32] = entropy.bytes();
    let terms = Terms { name: name(), periods: Periods::default(), salt: salt.to_vec() };
    let store = Arc::new(PostgresStore::open(&url.0, terms, None).await?);
    // The first beat sets the clock by the store's, before anything asks for the time.
    let began = early.steady();
    let beat = first_beat(&store, beat).await?;
    let round_trip = early.steady().saturating_sub(began);
    let now = beat.now.unwrap_or_else(|| early.now()).plus(round_trip / 2);
    let clock = Clock::led(now.max(store.latest()));
    clock.heard(now);
    clock.start_after(store.latest());
    let standing = Standing::shared(&clock);
    standing.renew(began);
    standing.meet(&beat);
    let me = beat.incarnation.unsigned_abs();
    let postgres = Postgres::start(Target::parse(&url.0)?, me);
    let coordination: Arc<dyn Coordination> = match redis {
        Some(redis) => Arc::new(Redis::start(&redis.0, &prefix(store.salt()), me, postgres)?),
        None => Arc::new(postgres),
    };
    Ok(Opened { store, clock, standing, coordination: Some(coordination) })
}

/// On the loop on which all others follow: the store keeps the session that beats, and moves its bytes where it was opened.
async fn first_beat(store: &Arc<PostgresStore>, beat: &Handle) -> tidegate_store::Result<Beat> {
    let (store, load) = (Arc::clone(store), Load { stance: Some(Stance::default()), ..Load::default() });
    let beating = beat.spawn(async move { store.beat(load).await });
    beating.await.map_err(|error| Error::Unavailable(format!("the first beat ended early: {error}")))?
}

/// What people call this process.
fn name() -> String {
    let host = uname().nodename().to_string_lossy().into_owned();
    format!("{host}/{}", std::process::id())
}

/// Tells this installation's keys in Redis from others'; says nothing about the salt.
fn prefix(salt: &[u8]) -> String {
    let hash = digest::digest(&digest::SHA256, salt);
    hash.as_ref()[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
