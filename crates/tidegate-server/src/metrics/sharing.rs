//! What a scrape tells of a store that is shared: who lives, how fresh the lease is, how the store itself is doing.
//!
//! A process is named by the number of its life, which is ours; `/v1/replicas` says whose it is.

use tidegate_store::Vital;

use super::text::{Kind, Text};
use crate::standing::Standing;

/// Adds it all; nothing for a process that is alone.
pub(super) fn add(text: &mut Text, standing: &Standing, vitals: &[Vital]) {
    if standing.is_alone() {
        return;
    }
    if let Some(age) = standing.lease_age() {
        let help = "Age of the heartbeat that this process's lease rests on; from 4 on it sends nothing";
        text.one(Kind::Gauge, "tidegate_lease_age_seconds", help, age.as_secs_f64());
    }
    let fellows = standing.fellows();
    let help = "Processes that share the store and live";
    text.one(Kind::Gauge, "tidegate_replicas_alive", help, fellows.replicas.len());
    let help = "1 for the process that does what only one should";
    text.one(Kind::Gauge, "tidegate_replica_leads", help, u8::from(standing.leads()));
    let families: [Family; 2] = [
        ("tidegate_replica_attempts_in_flight", "Attempts under way in each process", |replica| {
            replica.load.in_flight
        }),
        ("tidegate_replica_deliveries_queued", "Deliveries in the memory of each process", |replica| {
            replica.load.queued
        }),
    ];
    for (name, help, value) in families {
        let samples =
            fellows.replicas.iter().map(|replica| (replica.incarnation.to_string(), value(replica)));
        text.labelled(Kind::Gauge, name, help, "replica", samples);
    }
    add_vitals(text, vitals);
}

/// A name, its help, and which number of a process it shows.
type Family = (&'static str, &'static str, fn(&tidegate_store::Replica) -> u64);

/// Vitals of one name stand together, as the text format asks.
fn add_vitals(text: &mut Text, vitals: &[Vital]) {
    for family in vitals.chunk_by(|one, next| one.name == next.name) {
        let (name, help) = (format!("tidegate_{}", family[0].name), family[0].help);
        match family {
            [Vital { part: None, value, .. }] => text.one(Kind::Gauge, &name, help, value),
            parts => {
                let samples = parts.iter().map(|vital| (vital.part.unwrap_or("all").to_owned(), vital.value));
                text.labelled(Kind::Gauge, &name, help, "part", samples);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::time::Timestamp;

    use super::*;
    use crate::clock::Clock;

    #[test]
    fn vitals_of_one_name_are_one_family() {
        let vital = |name, part, value| Vital { name, help: "Help", part, value };
        let vitals = [
            vital("postgres_dead_rows", Some("deliveries"), 3.0),
            vital("postgres_dead_rows", Some("events"), 4.0),
            vital("postgres_oldest_transaction_seconds", None, 0.5),
        ];
        let clock = Clock::led(Timestamp::from_ms(0));
        let standing = Standing::shared(&clock);
        standing.renew(clock.steady());
        let mut text = Text::new(String::new());
        add(&mut text, &standing, &vitals);
        let text = text.into_prometheus();
        assert_eq!(text.matches("# TYPE tidegate_postgres_dead_rows gauge").count(), 1, "{text}");
        assert!(text.contains("tidegate_postgres_dead_rows{part=\"events\"} 4"), "{text}");
        assert!(text.contains("tidegate_postgres_oldest_transaction_seconds 0.5"), "{text}");
        assert!(text.contains("tidegate_lease_age_seconds 0"), "{text}");
    }
}
