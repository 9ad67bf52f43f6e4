//! Endpoints that want to be asked before they get anything: some agree at once, some refuse first, some are away.
//!
//! The receiver itself knows whether it agreed, and to which edition of its address; so every delivery is judged where
//! it arrives. Whether the product believes it is seen at the store, change by change.

use serde_json::Value;
use tidegate_core::attempt::{ErrorClass, ResponseHead};
use tidegate_core::id::SubscriberNo;
use tidegate_destinations::{Answer, Failure, Grant, Outbound};
use tidegate_store::{SubscriberUpdate, VerificationUpdate};

use super::acts::Site;
use super::dice::Dice;
use super::history::{History, Truth};
use super::plan::{Act, END_T};
use super::receivers::{Mood, Receivers, failure};
use super::spec::Spec;

/// Refusals in a row at most: the product's own tries are few.
const REFUSALS_MAX: u32 = 2;

/// How an endpoint wants to be asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Asked {
    #[default]
    Never,
    Challenge,
    Handshake,
}

impl Asked {
    /// As a definition says it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Never => "none",
            Self::Challenge => "challenge",
            Self::Handshake => "cloudevents",
        }
    }
}

/// Lets some of the subscribers of some runs be asked.
pub(crate) fn plan(seed: u64, acts: &mut [(i64, Act)]) {
    let mut dice = Dice::new(seed, "consent");
    if !dice.percent(35) {
        return;
    }
    for (_, act) in acts {
        if let Act::Create { spec, .. } | Act::Patch { spec, .. } = act
            && spec.id.starts_with('s')
        {
            spec.asked = dice.pick(&[Asked::Never, Asked::Challenge, Asked::Challenge, Asked::Handshake]);
        }
    }
}

/// What the API makes of a new definition: the address of a new edition is another one.
pub(crate) fn update(before: Option<&Spec>, after: &Spec) -> Option<VerificationUpdate> {
    match (before.map(|spec| spec.asked).unwrap_or_default(), after.asked) {
        (Asked::Never, Asked::Never) => None,
        (_, Asked::Never) => Some(VerificationUpdate::End),
        _ => Some(VerificationUpdate::Begin),
    }
}

impl Site {
    /// Somebody asks an endpoint once more.
    pub(crate) async fn ask_again(&self, id: &str) {
        let verification = Some(VerificationUpdate::Begin);
        self.update(id, SubscriberUpdate { verification, ..SubscriberUpdate::default() }).await;
    }
}

impl Receivers {
    /// What an endpoint answers to the question.
    pub(crate) async fn consent(&self, outbound: &Outbound) -> Result<Answer, Failure> {
        let (id, edition) = address(outbound);
        let (before, t) = (self.count_ask(&id, edition), self.life.t());
        let mut dice = Dice::new(self.seed, &format!("consent/{id}/{edition}/{before}"));
        self.wait(dice.between(0, 40)).await;
        match self.mood(&id) {
            Mood::Unreachable => return Err(failure(ErrorClass::Connect)),
            Mood::Hanging => std::future::pending::<()>().await,
            _ => {}
        }
        let question: Value = serde_json::from_slice(&outbound.body).unwrap_or_default();
        let challenge = question["challenge"].as_str().unwrap_or_default().to_owned();
        let mut answer =
            Answer { status: 200, retry_after: None, head: ResponseHead::default(), grant: None };
        if t < END_T && before < REFUSALS_MAX && dice.percent(45) {
            answer.status = dice.pick(&[200, 403, 500]);
            self.note_consent(&id, edition, false);
            return Ok(answer);
        }
        if challenge.is_empty() {
            answer.grant = Some(Box::new(Grant { origin: Some("sim".to_owned()), rate: None }));
        } else {
            answer.head.body = dice.pick(&[challenge.clone(), format!("{{\"challenge\":\"{challenge}\"}}")]);
        }
        self.note_consent(&id, edition, true);
        Ok(answer)
    }

    fn count_ask(&self, id: &str, edition: u32) -> u32 {
        let mut history = self.history.lock();
        let count = history.asks.entry((id.to_owned(), edition)).or_default();
        *count += 1;
        *count - 1
    }

    fn note_consent(&self, id: &str, edition: u32, agrees: bool) {
        let t = self.life.t();
        let mut history = self.history.lock();
        history.line(t, format_args!("{id} is asked at edition {edition} and agrees: {agrees}"));
        if agrees {
            history.consents.insert((id.to_owned(), edition));
            if history.asks[&(id.to_owned(), edition)] > 1 {
                history.reach("an endpoint that agreed later");
            }
        } else {
            history.reach("an endpoint that refused");
        }
    }

    /// Nobody gets anything that he has not agreed to.
    pub(crate) fn check_consent(&self, history: &mut History, subscriber: SubscriberNo, outbound: &Outbound) {
        let (id, edition) = address(outbound);
        let truth = &history.subs[&subscriber];
        let is_asked =
            truth.specs.iter().any(|(_, spec)| spec.edition == edition && spec.asked != Asked::Never);
        if is_asked && !history.consents.contains(&(id.clone(), edition)) {
            history
                .violation(format!("P10 {id} gets something at edition {edition}, and never agreed to it"));
        }
    }
}

/// The subscriber and the edition that an address names.
fn address(outbound: &Outbound) -> (String, u32) {
    let url = outbound.target.url();
    let edition = url.query().and_then(|query| query.strip_prefix("edition=")?.parse().ok());
    (url.path().trim_start_matches('/').to_owned(), edition.expect("addresses name their edition"))
}

/// Takes over what a change means for whether a subscriber is sent to.
pub(crate) fn note_change(truth: &mut Truth, update: &SubscriberUpdate, version: i64, t: i64) {
    if let Some(active) = &update.active {
        truth.is_wanted = active.is_ok();
    }
    match &update.verification {
        Some(VerificationUpdate::Begin) => truth.is_unverified = true,
        Some(VerificationUpdate::End | VerificationUpdate::Tried { outcome: Ok(_), .. }) => {
            truth.is_unverified = false;
        }
        Some(VerificationUpdate::Tried { outcome: Err(_), .. }) | None => {}
    }
    let is_sent_to = truth.is_wanted && !truth.is_unverified;
    if update.active.is_some() || is_sent_to != truth.active {
        truth.set_active(is_sent_to, version, t);
    }
}
