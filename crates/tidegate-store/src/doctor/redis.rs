//! Redis: whether it can be reached and understood. It holds nothing that matters, so nothing here is worse than a
//! warning, unless it can not be used at all.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisError, RedisResult};

use super::{Severity, Symptom};
use crate::coordination::redis_client as client;

/// How long to wait for a server that does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The same for somebody who is asked in turn.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);
/// `redis` alone is what a server tells of its own connection.
const CHECK: &str = "redis server";
/// The oldest server that speaks RESP3.
const MAJOR_MIN: u32 = 6;

/// Looks at a Redis.
pub async fn examine(url: &str) -> Vec<Symptom> {
    // As the server would reach it.
    let client = match client(url) {
        Ok(client) => client,
        Err(error) => return vec![Symptom::failing(CHECK, error.to_string(), "correct redis.url")],
    };
    let asked = async {
        let mut connection = client.get_multiplexed_async_connection().await?;
        let info = redis::cmd("INFO").query_async::<String>(&mut connection).await?;
        Ok((info, keep(&mut connection).await))
    };
    match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
        Err(_) => vec![trouble(None)],
        Ok(Err(error)) => vec![trouble(Some(&error))],
        Ok(Ok((info, kept))) => {
            let mut symptoms = judge(&info);
            // A replica or a cluster has been told of, and refuses for that reason.
            if let (Err(error), Severity::Fine) = (kept, symptoms[0].severity) {
                symptoms[0] = trouble(Some(&error));
            }
            symptoms
        }
    }
}

/// Why a Redis can not be used, for those who found that it can not; nothing if it can by now.
pub async fn refusal(url: &str) -> Option<Symptom> {
    let client = client(url).ok()?;
    let asked = async { keep(&mut client.get_multiplexed_async_connection().await?).await };
    match tokio::time::timeout(REFUSAL_TIMEOUT, asked).await {
        Err(_) => Some(trouble(None)),
        Ok(kept) => kept.err().map(|error| trouble(Some(&error))),
    }
}

/// Writes a key, gone in a second: a server that is full or may only be read says so only then.
async fn keep(connection: &mut MultiplexedConnection) -> RedisResult<()> {
    redis::cmd("SET").arg("tidegate:probe").arg(1).arg("PX").arg(1000).query_async(connection).await
}

/// What Redis said, and what to do about it. It says nothing of a password.
fn trouble(error: Option<&RedisError>) -> Symptom {
    let detail = error.map_or_else(|| "it does not answer".to_owned(), ToString::to_string);
    let remedy = match error.and_then(RedisError::code).unwrap_or_default() {
        "OOM" => "it is full: CONFIG SET maxmemory-policy volatile-ttl, or raise maxmemory",
        "NOAUTH" | "WRONGPASS" => "correct the user and the password in redis.url",
        "NOPERM" => "let the user have the keys and channels tidegate:*, and all commands on them",
        "READONLY" => "name the primary in redis.url",
        "LOADING" => "wait until it has read its data",
        "MISCONF" => "mend its disk, or CONFIG SET stop-writes-on-bgsave-error no",
        _ => "start it or correct redis.url",
    };
    Symptom::warning(
        CHECK,
        detail,
        format!("{remedy}; until then PostgreSQL does its part, a little more slowly"),
    )
}

/// What the answer to INFO says.
fn judge(info: &str) -> Vec<Symptom> {
    let value = |name: &str| {
        let mut lines = info.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(key, _)| *key == name).map_or("", |(_, value)| value.trim())
    };
    let version = value("redis_version");
    let major: u32 = version.split('.').next().and_then(|major| major.parse().ok()).unwrap_or(0);
    if major < MAJOR_MIN {
        return vec![Symptom::failing(CHECK, format!("Redis {version}"), "use Redis 6 or newer")];
    }
    if value("cluster_enabled") == "1" {
        let remedy = "name a single server: nothing here needs more than one";
        return vec![Symptom::failing(CHECK, format!("Redis {version} is a cluster"), remedy)];
    }
    if value("role") == "slave" {
        let remedy = "name the primary in redis.url";
        return vec![Symptom::failing(CHECK, format!("Redis {version} is a replica"), remedy)];
    }
    let mut symptoms = vec![Symptom::fine(CHECK, format!("Redis {version}"))];
    let (policy, limit) = (value("maxmemory_policy"), value("maxmemory"));
    if policy == "noeviction" && limit != "0" && !limit.is_empty() {
        let detail =
            "maxmemory is set and the policy is noeviction: when it is full, PostgreSQL must do its part";
        let remedy =
            "CONFIG SET maxmemory-policy volatile-ttl: every key here expires, and any may be evicted";
        symptoms.push(Symptom::warning("eviction", detail, remedy));
    } else {
        symptoms.push(Symptom::fine("eviction", format!("{policy}: any policy will do")));
    }
    let is_kept = value("aof_enabled") == "1" || value("rdb_last_save_time") != value("") && has_saves(info);
    let detail = if is_kept { "on, and not needed by this" } else { "off, and not needed" };
    symptoms.push(Symptom::fine("persistence", detail));
    symptoms
}

/// Snapshots were made in this life of the server.
fn has_saves(info: &str) -> bool {
    info.lines().any(|line| line.strip_prefix("rdb_saves:").is_some_and(|count| count.trim() != "0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_redis_said_decides_what_to_do() {
        let told = |text: &str| {
            let (code, detail) = text.split_once(' ').expect("a code and words");
            trouble(Some(&redis::make_extension_error(code.to_owned(), Some(detail.to_owned()))))
        };
        for (text, words) in [
            ("OOM command not allowed when used memory > 'maxmemory'.", "maxmemory"),
            ("NOAUTH Authentication required.", "password"),
            ("READONLY You can't write against a read only replica.", "primary"),
        ] {
            let symptom = told(text);
            let remedy = symptom.remedy.as_deref().unwrap_or_default();
            assert!(remedy.contains(words) && symptom.detail.contains(&text[9..]), "{symptom:?}");
        }
        assert_eq!(trouble(None).detail, "it does not answer");
    }

    #[tokio::test]
    async fn it_is_asked_the_way_the_server_would() {
        let found = examine("rediss://127.0.0.1:1/?sslrootcert=/nowhere/at/all.pem").await;
        assert_eq!(found[0].severity, Severity::Failing);
        assert!(found[0].detail.contains("cannot read the certificates in /nowhere/at/all.pem"), "{found:?}");
    }

    #[test]
    fn what_redis_says_of_itself_is_judged() {
        let fine = "# Server\r\nredis_version:7.0.15\r\nrole:master\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n";
        assert!(judge(fine).iter().all(|symptom| symptom.severity == Severity::Fine));
        let full = fine.replace("maxmemory:0", "maxmemory:1000000");
        assert!(judge(&full).iter().any(|symptom| symptom.check == "eviction" && symptom.remedy.is_some()));
        for (from, to) in
            [("7.0.15", "5.0.7"), ("role:master", "role:slave"), ("# Server", "cluster_enabled:1")]
        {
            let found = judge(&fine.replace(from, to));
            assert_eq!(found[0].severity, Severity::Failing, "{found:?}");
        }
    }
}
