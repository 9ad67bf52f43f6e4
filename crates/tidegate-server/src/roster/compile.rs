//! A subscriber, from its row to what is needed to route and send to it.

use std::sync::Arc;

use tidegate_core::egress::Url;
use tidegate_core::route::Subscriber;
use tidegate_core::schedule::Terms;
use tidegate_core::sign::Signer;
use tidegate_core::subscriber::{self, Definition};
use tidegate_destinations::Target;
use tidegate_destinations::webhook::Letterhead;
use tidegate_store::SubscriberRow;

use super::{Endpoint, Opened};
use crate::gates::{self, Gates};

pub(super) fn compile(row: SubscriberRow, opened: Opened, gates: &Gates) -> Result<Endpoint, String> {
    let definition: Definition = match opened.hidden {
        Some(hidden) => subscriber::join(&row.definition, &hidden)?,
        None => serde_json::from_str(&row.definition).map_err(|error| error.to_string())?,
    };
    let signers = opened.secrets.into_iter().map(signer).collect::<Result<_, _>>()?;
    let url = Url::parse(&definition.destination.url).map_err(|error| error.to_string())?;
    let letterhead = Letterhead::new(&definition.destination.headers, &definition.signing)
        .map_err(|error| error.to_string())?;
    let rule = Subscriber::compile(row.no, row.project, row.id, definition)
        .map_err(|problem| problem.to_string())?
        .remembering(&row.former_conditions);
    let former_conditions = row.former_conditions;
    let limits = &rule.definition.limits;
    let consent = row.verification.as_ref().map(|row| row.consent).unwrap_or_default();
    let rate = consent.within(limits.rate);
    let gate = rule.definition.gate.as_ref().map(|name| gates::find(gates, row.project, name)).transpose()?;
    Ok(Endpoint {
        created_at: row.created_at,
        version: row.version,
        active: row.active,
        inactive_reason: row.inactive_reason,
        failing_since: row.failing_since,
        backfilling: row.backfilling,
        former_conditions,
        target: Target::new(url),
        letterhead,
        signers,
        grace_until: row.previous_secret.map(|(_, until)| until),
        timeout: limits.timeout.0,
        delivered_at_ms: Arc::default(),
        terms: Terms {
            concurrency: limits.concurrency,
            rate,
            gate,
            breaker: rule.definition.breaker.terms(),
            disable_after: rule.definition.disable_after.terms(),
        },
        verification: row.verification,
        rule: Arc::new(rule),
    })
}

fn signer(secret: Vec<u8>) -> Result<Signer, String> {
    let secret = String::from_utf8(secret).map_err(|_| "the secret is not text".to_owned())?;
    Signer::parse(&secret).map_err(|problem| problem.to_string())
}
