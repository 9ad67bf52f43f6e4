//! The configuration as the store keeps it, and the ways to change it.

use std::collections::BTreeMap;

use serde::Deserialize;
use tidegate_core::catalog::Mode;
use tidegate_core::id::{GateNo, ProjectNo, SubscriberNo, Version};
use tidegate_core::limits::FORMER_CONDITIONS_MAX;
use tidegate_core::observe::{Spec, Switches};
use tidegate_core::time::Timestamp;
use tidegate_core::verification::{Consent, VerificationStatus};

use crate::{Error, Metric};

/// Everything the pipeline and the API need to know about who is who.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// Counts every change.
    pub version: Version,
    /// It is all of it: everything was asked for, or the version in force did not come out of the one asked for, as in
    /// a database that went back in time.
    pub is_whole: bool,
    /// All projects.
    pub projects: Vec<ProjectRow>,
    /// All keys.
    pub keys: Vec<KeyRow>,
    /// Subscribers changed since the version asked for, the deleted ones among them.
    pub subscribers: Vec<SubscriberRow>,
    /// Declared types changed since the version asked for, those taken back among them.
    pub types: Vec<TypeRow>,
    /// Gates changed since the version asked for, the deleted ones among them.
    pub gates: Vec<GateRow>,
}

/// A project.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProjectRow {
    /// Inside.
    pub no: ProjectNo,
    /// Outside.
    pub id: String,
    /// What becomes of types that nobody declared.
    pub catalog: Mode,
    /// Since when.
    pub created_at: Timestamp,
}

/// A declared type of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TypeRow {
    /// Whose.
    pub project: ProjectNo,
    /// The source of such events.
    pub service: String,
    /// Their type.
    pub type_name: String,
    /// Since when.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// What it is, as JSON; absent when it was taken back.
    pub definition: Option<String>,
    /// What is counted of it.
    pub metrics: Vec<Metric>,
}

/// A gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GateRow {
    /// Inside.
    pub no: GateNo,
    /// Whose.
    pub project: ProjectNo,
    /// Outside.
    pub name: String,
    /// Since when.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// What it is, as JSON; absent when it was deleted.
    pub definition: Option<String>,
}

/// An API key, of which only the hash is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRow {
    /// What it opens; 0 is the whole installation.
    pub project: ProjectNo,
    /// Its public name.
    pub id: String,
    /// `admin`, `publisher` or `viewer`.
    pub role: String,
    /// A label.
    pub name: String,
    /// The first characters of the key.
    pub prefix: String,
    /// SHA-256 of the key.
    pub hash: Vec<u8>,
    /// Since when.
    pub created_at: Timestamp,
}

/// A subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubscriberRow {
    /// Inside.
    pub no: SubscriberNo,
    /// Whose.
    pub project: ProjectNo,
    /// Outside.
    pub id: String,
    /// Since when.
    pub created_at: Timestamp,
    /// The configuration that brought it.
    pub created_version: Version,
    /// The configuration that last changed it.
    pub version: Version,
    /// Whether it is sent to.
    pub active: bool,
    /// Why not: `paused`, `gone`, `failing` or `unverified`.
    pub inactive_reason: Option<String>,
    /// What it wants, as JSON without secrets.
    pub definition: String,
    /// What `fold.cancel_on` was before, the last first: windows that opened then keep to it.
    pub former_conditions: Vec<String>,
    /// Its signing secret, sealed.
    pub secret: Vec<u8>,
    /// The secret before that one, sealed, and until when it signs too. It stays here when its time is over.
    pub previous_secret: Option<(Vec<u8>, Timestamp)>,
    /// The secrets of its definition, sealed; absent when the definition itself still has them.
    pub destination: Option<Vec<u8>>,
    /// It was deleted.
    pub deleted: bool,
    /// A backfill is under way.
    pub backfilling: bool,
    /// It has done nothing but fail since; absent when its last attempt succeeded. Becoming active begins anew.
    pub failing_since: Option<Timestamp>,
    /// How far the verification of its endpoint has come; absent when nobody asks.
    pub verification: Option<VerificationRow>,
}

/// A new subscriber.
#[derive(Clone, Debug)]
pub struct NewSubscriber {
    /// Whose.
    pub project: ProjectNo,
    /// Outside.
    pub id: String,
    /// What it wants, as JSON without secrets.
    pub definition: String,
    /// Sealed.
    pub secret: Vec<u8>,
    /// The secrets of its definition, sealed.
    pub destination: Option<Vec<u8>>,
    /// Whether it is sent to at once.
    pub active: bool,
    /// Its endpoint must agree first: until then it is inactive as `unverified`.
    pub unverified: bool,
    /// Past events it shall get too: those accepted at or after this time.
    pub backfill_from: Option<Timestamp>,
}

/// What a change of a subscriber sets; what is absent stays.
#[derive(Clone, Debug, Default)]
pub struct SubscriberUpdate {
    /// What it wants, as JSON without secrets.
    pub definition: Option<String>,
    /// The secrets of its definition, sealed.
    pub destination: Option<Vec<u8>>,
    /// Active, or why not.
    pub active: Option<std::result::Result<(), String>>,
    /// A new secret. The one before it is forgotten, or kept beside it until `grace_until`.
    pub secret: Option<NewSecret>,
    /// What becomes of its verification.
    pub verification: Option<VerificationUpdate>,
    /// It was read when this version had last changed it: refused as stale if another one has since.
    pub based_on: Option<Version>,
    /// What puts events in one lane changes: refused while deliveries of the old order are unfinished, since the new could
    /// pass them.
    pub reorders: bool,
    /// Heads of its lanes that have failed so often and wait for another try step aside in the same moment.
    pub skip_after: Option<u32>,
}

/// A secret that takes another one's place.
#[derive(Clone, Debug)]
pub struct NewSecret {
    /// Sealed.
    pub sealed: Vec<u8>,
    /// Until when the one before it signs too; absent means that it ends now.
    pub grace_until: Option<Timestamp>,
}

/// How far the verification of an endpoint has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerificationRow {
    /// Where it stands.
    pub status: VerificationStatus,
    /// Counts the times it was begun.
    pub round: i64,
    /// Tries of this round.
    pub tries: u32,
    /// Why the last of them failed.
    pub detail: Option<String>,
    /// What the endpoint agreed to.
    pub consent: Consent,
}

/// A change of a verification. A subscriber that is not verified is never active.
#[derive(Clone, Debug)]
pub enum VerificationUpdate {
    /// The endpoint is asked anew. An active subscriber becomes inactive as `unverified` with it.
    Begin,
    /// It is not asked any more. A subscriber that was only `unverified` becomes active.
    End,
    /// A try has ended; a conflict if its round has. With consent, a subscriber that was only `unverified` becomes
    /// active.
    Tried {
        /// In which round.
        round: i64,
        /// Consent, or why not.
        outcome: std::result::Result<Consent, String>,
        /// There is no other try.
        is_last: bool,
    },
}

/// A new API key.
#[derive(Clone, Debug)]
pub struct NewKey {
    /// What it opens; 0 is the whole installation.
    pub project: ProjectNo,
    /// Its public name.
    pub id: String,
    /// `admin`, `publisher` or `viewer`.
    pub role: String,
    /// A label.
    pub name: String,
    /// The first characters of the key.
    pub prefix: String,
    /// SHA-256 of the key.
    pub hash: Vec<u8>,
}

/// A change of the configuration.
#[derive(Clone, Debug)]
pub enum Change {
    /// A new tenant.
    CreateProject {
        /// Outside.
        id: String,
        /// What becomes of types that nobody declared.
        catalog: Mode,
    },
    /// Changes a tenant.
    UpdateProject {
        /// Which.
        no: ProjectNo,
        /// What becomes of types that nobody declared.
        catalog: Mode,
    },
    /// Ends a tenant that has no subscribers left.
    DeleteProject {
        /// Which.
        no: ProjectNo,
    },
    /// A new key. Repeating one with the same hash changes nothing.
    CreateKey(NewKey),
    /// Ends a key.
    DeleteKey {
        /// Whose.
        project: ProjectNo,
        /// Which.
        id: String,
    },
    /// A new subscriber.
    CreateSubscriber(NewSubscriber),
    /// Changes a subscriber.
    UpdateSubscriber {
        /// Whose.
        project: ProjectNo,
        /// Which.
        no: SubscriberNo,
        /// To what.
        update: SubscriberUpdate,
    },
    /// Declares a type of events, or declares it anew.
    PutType {
        /// Whose.
        project: ProjectNo,
        /// The source of such events.
        service: String,
        /// Their type.
        type_name: String,
        /// What it is, as JSON.
        definition: String,
        /// What is counted of it.
        metrics: Vec<Spec>,
        /// How long its events are kept, in milliseconds; absent: as long as all others.
        keep_ms: Option<i64>,
    },
    /// Switches kinds of metrics off and on for the whole installation.
    SwitchObserving(Switches),
    /// Takes a type back.
    DeleteType {
        /// Whose.
        project: ProjectNo,
        /// The source of such events.
        service: String,
        /// Their type.
        type_name: String,
    },
    /// Makes a gate, or makes it anew.
    PutGate {
        /// Whose.
        project: ProjectNo,
        /// Which.
        name: String,
        /// What it is, as JSON.
        definition: String,
    },
    /// Ends a gate that no subscriber passes any more.
    DeleteGate {
        /// Whose.
        project: ProjectNo,
        /// Which.
        name: String,
    },
    /// Ends a subscriber; its unsent deliveries are cancelled with it.
    DeleteSubscriber {
        /// Whose.
        project: ProjectNo,
        /// Which.
        no: SubscriberNo,
    },
}

impl Change {
    /// Whether it can change what is counted.
    pub(crate) fn is_about_counting(&self) -> bool {
        matches!(
            self,
            Self::PutType { .. }
                | Self::DeleteType { .. }
                | Self::DeleteProject { .. }
                | Self::SwitchObserving(_)
        )
    }
}

/// What a change led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The version now in force.
    pub version: Version,
    /// The project or subscriber that was created or changed.
    pub no: i64,
    /// Whether it was created, where that is not plain from the change itself.
    pub created: bool,
}

/// Which secret of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SecretKind {
    /// What its deliveries are signed with.
    Signing,
    /// Where they go and with which headers.
    Destination,
}

/// Something sealed with a master key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedRow {
    /// Whose, inside.
    pub subscriber: SubscriberNo,
    /// Of which project.
    pub project: ProjectNo,
    /// Whose, outside.
    pub id: String,
    /// What it is.
    pub kind: SecretKind,
    /// Sealed.
    pub value: Vec<u8>,
}

/// The same secret, sealed anew.
#[derive(Clone, Debug)]
pub struct Reseal {
    /// What it was.
    pub row: SealedRow,
    /// What it becomes.
    pub value: Vec<u8>,
}

/// The gate that a subscriber passes, by its definition.
pub(crate) fn gate_of(definition: &str) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Gated {
        gate: Option<String>,
    }
    serde_json::from_str::<Gated>(definition).ok().and_then(|gated| gated.gate)
}

/// The refusal of a subscriber whose gate is not there.
pub(crate) fn gate_unknown(name: &str) -> Error {
    Error::Conflict(format!("there is no gate {name} in this project: make it first"))
}

/// The refusal to end a gate that somebody passes.
pub(crate) fn gate_in_use(name: &str, user: &str) -> Error {
    Error::Conflict(format!("the subscriber {user} passes the gate {name}: change or delete it first"))
}

/// What `fold.cancel_on` was in former definitions of subscribers.
#[derive(Default)]
pub(crate) struct FormerConditions(BTreeMap<SubscriberNo, Vec<String>>);

impl FormerConditions {
    /// A definition that is or was in force; of each subscriber the last comes first.
    pub(crate) fn note(&mut self, subscriber: SubscriberNo, definition: &str) {
        let known = self.0.entry(subscriber).or_default();
        // One of them may be the one in force, which is none of the former.
        if known.len() > FORMER_CONDITIONS_MAX {
            return;
        }
        let Some(condition) = cancel_on(definition) else { return };
        if !known.contains(&condition) {
            known.push(condition);
        }
    }

    /// Tells each subscriber its own.
    pub(crate) fn tell(mut self, subscribers: &mut [SubscriberRow]) {
        for row in subscribers {
            let Some(mut former) = self.0.remove(&row.no) else { continue };
            let present = cancel_on(&row.definition);
            former.retain(|condition| Some(condition) != present.as_ref());
            former.truncate(FORMER_CONDITIONS_MAX);
            row.former_conditions = former;
        }
    }
}

fn cancel_on(definition: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Folding {
        fold: Option<Cancelling>,
    }
    #[derive(Deserialize)]
    struct Cancelling {
        cancel_on: Option<String>,
    }
    serde_json::from_str::<Folding>(definition).ok()?.fold?.cancel_on
}
