//! Redis: whether it can be reached and understood. It holds nothing that matters, so nothing here is worse than a
//! warning, unless it can not be used at all.

use std::time::Duration;

use super::Symptom;
use crate::coordination::redis_client as client;

/// How long to wait for a server that does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The oldest server that speaks RESP3.
const MAJOR_MIN: u32 = 6;

/// Looks at a Redis.
pub async fn examine(url: &str) -> Vec<Symptom> {
    // As the server would reach it.
    let client = match client(url) {
        Ok(client) => client,
        Err(error) => return vec![Symptom::failing("redis", error.to_string(), "correct redis.url")],
    };
    let asked = async {
        let mut connection = client.get_multiplexed_async_connection().await?;
        redis::cmd("INFO").query_async::<String>(&mut connection).await
    };
    let remedy = "start it or correct redis.url; until then PostgreSQL does its part, a little more slowly";
    match tokio::time::timeout(ANSWER_TIMEOUT, asked).await {
        Err(_) => vec![Symptom::warning("redis", "it does not answer", remedy)],
        Ok(Err(error)) => vec![Symptom::warning("redis", error.to_string(), remedy)],
        Ok(Ok(info)) => judge(&info),
    }
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
        return vec![Symptom::failing("redis", format!("Redis {version}"), "use Redis 6 or newer")];
    }
    if value("cluster_enabled") == "1" {
        let remedy = "name a single server: nothing here needs more than one";
        return vec![Symptom::failing("redis", format!("Redis {version} is a cluster"), remedy)];
    }
    if value("role") == "slave" {
        let remedy = "name the primary in redis.url";
        return vec![Symptom::failing("redis", format!("Redis {version} is a replica"), remedy)];
    }
    let mut symptoms = vec![Symptom::fine("redis", format!("Redis {version}"))];
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
    use crate::doctor::Severity;

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
