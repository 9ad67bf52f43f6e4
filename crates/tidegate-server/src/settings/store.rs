//! Where the store is, and what opens it.

use std::fmt;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use tidegate_core::limits::DISK_RESERVE_DEFAULT_BYTES;
use tidegate_store::postgres::connect::Target;

use super::Unsettled;

/// `store:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StoreSection {
    /// `postgres://…`; absent means embedded.
    pub url: Option<Address>,
    /// Space on the disk that new events must leave: `256MiB`, or `off`.
    pub disk_reserve: Option<String>,
}

/// `redis:`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RedisSection {
    /// Absent means none.
    pub url: Option<Address>,
}

/// An address that may hold a password, and is never shown.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Address(pub String);

impl Address {
    fn scheme(&self) -> &str {
        self.0.split_once(':').map_or("this", |(scheme, _)| scheme)
    }
}

impl Address {
    /// The server and the database of a PostgreSQL, for people; without a secret.
    pub(super) fn place(&self) -> String {
        Target::parse(&self.0)
            .map_or_else(|_| format!("{self:?}"), |target| format!("PostgreSQL at {}", target.place()))
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:…", self.scheme())
    }
}

/// Where the store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreAt {
    /// SQLite in the data directory.
    Embedded,
    /// A PostgreSQL that any number of processes share, with Redis beside it or not.
    Postgres {
        /// Where it is.
        url: Address,
        /// Where Redis is.
        redis: Option<Address>,
    },
}

impl StoreAt {
    /// Where Redis is.
    pub(crate) fn redis(&self) -> Option<&Address> {
        match self {
            Self::Embedded => None,
            Self::Postgres { redis, .. } => redis.as_ref(),
        }
    }
}

/// What opens things. From the environment only, so that no file and no process list shows it.
#[derive(Clone, Default)]
pub struct Secrets {
    /// The first admin key.
    pub admin_key: Option<String>,
    /// What secrets are sealed with, in base64.
    pub master_key: Option<String>,
    /// The one before it, while it changes.
    pub master_key_previous: Option<String>,
    /// The one after it, while it changes: something may be sealed with it already.
    pub master_key_next: Option<String>,
}

/// The master key as the operator gives it.
#[derive(Clone, Default)]
pub struct GivenKeys {
    /// Absent means that it is in a file.
    pub current: Option<[u8; 32]>,
    /// The one before it.
    pub previous: Option<[u8; 32]>,
    /// The one after it.
    pub next: Option<[u8; 32]>,
    /// The file of the operator's choice.
    pub file: Option<PathBuf>,
}

impl fmt::Debug for GivenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GivenKeys").field("file", &self.file).finish_non_exhaustive()
    }
}

impl GivenKeys {
    pub(super) fn settle(secrets: &Secrets, file: Option<PathBuf>) -> Result<Self, Unsettled> {
        let key = |text: &Option<String>| text.as_deref().map(parse_master_key).transpose();
        let given = Self {
            current: key(&secrets.master_key)?,
            previous: key(&secrets.master_key_previous)?,
            next: key(&secrets.master_key_next)?,
            file,
        };
        let refuse = |text: &str| Err(Unsettled(text.to_owned()));
        match given {
            Self { previous: Some(_), current: None, .. } => {
                refuse("TIDEGATE_MASTER_KEY_PREVIOUS needs TIDEGATE_MASTER_KEY, the key that takes its place")
            }
            Self { next: Some(_), current: None, .. } => {
                refuse("TIDEGATE_MASTER_KEY_NEXT needs TIDEGATE_MASTER_KEY, the key that is still in use")
            }
            Self { next: Some(_), previous: Some(_), .. } => refuse(
                "TIDEGATE_MASTER_KEY_NEXT and TIDEGATE_MASTER_KEY_PREVIOUS are two steps of one change: set one of them",
            ),
            Self { file: Some(_), current: Some(_), .. } => {
                refuse("master_key_file: TIDEGATE_MASTER_KEY is set too; keep one of them")
            }
            given => Ok(given),
        }
    }
}

/// Which store is meant, and which directory, if the address of the store names one.
pub fn store_at(
    store: Option<Address>,
    redis: Option<Address>,
) -> Result<(StoreAt, Option<PathBuf>), Unsettled> {
    let redis = redis.filter(|url| !url.0.is_empty());
    if let Some(url) = redis.as_ref().filter(|url| !matches!(url.scheme(), "redis" | "rediss")) {
        let scheme = url.scheme();
        return Err(Unsettled(format!("redis.url: {scheme} is not redis:// or rediss://")));
    }
    let url = store.filter(|url| !url.0.is_empty());
    let scheme = url.as_ref().map_or("sqlite", Address::scheme).to_owned();
    match (scheme.as_str(), url) {
        ("postgres" | "postgresql", Some(url)) => {
            Target::parse(&url.0).map_err(|problem| Unsettled(format!("store.url: {problem}")))?;
            Ok((StoreAt::Postgres { url, redis }, None))
        }
        ("sqlite", _) if redis.is_some() => Err(Unsettled(
            "redis.url: the embedded store is of one process, which has nobody to talk to: remove it, or set \
             store.url to a postgres:// address"
                .to_owned(),
        )),
        ("sqlite", url) => {
            let folder = url.map(|url| url.0["sqlite:".len()..].to_owned()).filter(|path| !path.is_empty());
            let folder = folder.map(|path| path.strip_prefix("//").map(str::to_owned).unwrap_or(path));
            Ok((StoreAt::Embedded, folder.map(PathBuf::from)))
        }
        _ => Err(Unsettled(format!(
            "store.url: {scheme} is not a kind of store: use postgres://…, or leave it out for SQLite in --data-dir"
        ))),
    }
}

pub(super) fn disk_reserve(text: Option<&str>) -> Result<Option<u64>, Unsettled> {
    const UNITS: [(&str, u64); 5] =
        [("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40), ("", 1)];
    let text = match text.map(str::trim) {
        None => return Ok(Some(DISK_RESERVE_DEFAULT_BYTES)),
        Some("off") => return Ok(None),
        Some(text) => text,
    };
    let bytes = UNITS.iter().find_map(|(unit, size)| {
        let number = text.strip_suffix(unit)?.trim_end();
        number.parse::<u64>().ok()?.checked_mul(*size).filter(|bytes| *bytes > 0)
    });
    bytes.map(Some).ok_or_else(|| {
        Unsettled(format!(
            "store.disk_reserve: {text} is not a size such as 256MiB, and to keep none free is `off`"
        ))
    })
}

/// 32 bytes in base64.
pub(crate) fn parse_master_key(text: &str) -> Result<[u8; 32], Unsettled> {
    let bytes = STANDARD.decode(text.trim()).ok().and_then(|bytes| bytes.try_into().ok());
    bytes.ok_or_else(|| {
        Unsettled(
            "the master key must be 32 bytes in base64, for example from `openssl rand -base64 32`"
                .to_owned(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(store: &str, redis: &str) -> Result<(StoreAt, Option<PathBuf>), String> {
        let address = |text: &str| (!text.is_empty()).then(|| Address(text.to_owned()));
        store_at(address(store), address(redis)).map_err(|problem| problem.to_string())
    }

    #[test]
    fn an_address_says_which_store_is_meant() {
        assert_eq!(at("", "").unwrap(), (StoreAt::Embedded, None));
        assert_eq!(at("sqlite:", "").unwrap(), (StoreAt::Embedded, None));
        let folder = Some(PathBuf::from("/var/lib/tidegate"));
        assert_eq!(at("sqlite:/var/lib/tidegate", "").unwrap(), (StoreAt::Embedded, folder.clone()));
        assert_eq!(at("sqlite:///var/lib/tidegate", "").unwrap(), (StoreAt::Embedded, folder));
        for url in ["postgres://u:p@h/db", "postgresql://u:p@h/db"] {
            assert!(matches!(at(url, "redis://h").unwrap().0, StoreAt::Postgres { redis: Some(_), .. }));
            assert!(matches!(at(url, "").unwrap().0, StoreAt::Postgres { redis: None, .. }));
        }
    }

    #[test]
    fn a_wrong_address_is_refused_without_its_password() {
        for (store, redis, part) in [
            ("mysql://u:hunter2@h/db", "", "mysql"),
            ("u:hunter2@h", "", "postgres://"),
            ("postgres://u:hunter2@h:port/db", "", "store.url"),
            ("postgres://u:hunter2@h/db?schema=a;b", "", "schema"),
            ("", "redis://u:hunter2@h", "postgres://"),
            ("postgres://h/db", "http://u:hunter2@h", "redis://"),
        ] {
            let problem = at(store, redis).unwrap_err();
            assert!(problem.contains(part) && !problem.contains("hunter2"), "{store} {redis}: {problem}");
        }
        assert_eq!(format!("{:?}", Address("postgres://u:hunter2@h".into())), "postgres:…");
    }

    #[test]
    fn the_steps_of_a_change_of_keys_are_told_apart() {
        let key = || Some(STANDARD.encode([1; 32]));
        let settle = |current, previous, next, file: Option<&str>| {
            let secrets = Secrets {
                admin_key: None,
                master_key: current,
                master_key_previous: previous,
                master_key_next: next,
            };
            GivenKeys::settle(&secrets, file.map(PathBuf::from))
        };
        assert!(settle(key(), key(), None, None).is_ok() && settle(key(), None, key(), None).is_ok());
        assert!(settle(None, None, None, Some("f")).is_ok());
        assert!(settle(None, key(), None, None).is_err() && settle(None, None, key(), None).is_err());
        assert!(settle(key(), key(), key(), None).is_err() && settle(key(), None, None, Some("f")).is_err());
        assert!(settle(Some("short".into()), None, None, None).is_err());
    }
}
