//! Who calls, and for which project.
//!
//! A project's key acts on its own project only; the installation's keys act on the project named by the header
//! `x-tidegate-project`, else on `default`. What belongs to another project does not exist for the caller. Where others
//! share the store, a request that is not about events is answered by what is true everywhere.

use std::sync::Arc;

use axum::extract::FromRequestParts;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use tidegate_core::id::ProjectNo;
use tidegate_core::key::{self, Role};

use super::App;
use super::problem::Problem;
use crate::roster::{Holder, Roster};

const PROJECT_HEADER: &str = "x-tidegate-project";
const PROJECT_DEFAULT: &str = "default";

/// Whoever sent a request, known by its key.
pub(crate) struct Caller {
    /// Whose things it acts on.
    pub(crate) project: ProjectNo,
    /// Its key opens the whole installation.
    pub(crate) is_operator: bool,
    /// The header named a project.
    pub(crate) named_project: bool,
    role: Role,
    key: [u8; 32],
}

impl Caller {
    /// Whoever brings events. That needs no look at what is true everywhere, for the store refuses what is out of date;
    /// only a caller that is not known here is looked for.
    pub(crate) async fn with_events(parts: &Parts, app: &App) -> Result<Self, Problem> {
        match Self::of(parts, app) {
            Err(_) if !app.parts.standing.is_alone() => {
                catch_up(app).await;
                Self::of(parts, app)
            }
            known => known,
        }
    }

    fn of(parts: &Parts, app: &App) -> Result<Self, Problem> {
        let roster = app.parts.rosters.current();
        let (key, holder) = holder(parts, &roster).ok_or_else(|| {
            let detail = "send `authorization: Bearer tgk_…` with a valid key";
            Problem::new(StatusCode::UNAUTHORIZED, "key_invalid", detail)
        })?;
        let named = parts.headers.get(PROJECT_HEADER).map(|value| value.to_str().unwrap_or_default());
        let project = project(&roster, holder, named).ok_or_else(|| Problem::not_found("project"))?;
        Ok(Self {
            project,
            is_operator: holder.project.is_none(),
            named_project: named.is_some(),
            role: holder.role,
            key,
        })
    }

    /// Whether its key and its project are still there, for those who stay longer than one request.
    pub(crate) fn is_known(&self, roster: &Roster) -> bool {
        let holds = |holder: Holder| holder.project.is_none_or(|own| own == self.project);
        roster.holder(&self.key).is_some_and(holds)
            && roster.projects.values().any(|project| project.no == self.project)
    }

    pub(crate) fn must_publish(&self) -> Result<(), Problem> {
        self.must(self.role.may_publish(), "publish events: use a publisher or admin key")
    }

    /// Who publishes also passes gates.
    pub(crate) fn must_pass(&self, what: &str) -> Result<(), Problem> {
        self.must(self.role.may_publish(), &format!("{what}: use a publisher or admin key"))
    }

    pub(crate) fn must_read(&self) -> Result<(), Problem> {
        self.must(self.role.may_read(), "read: use a viewer or admin key")
    }

    pub(crate) fn must_change(&self) -> Result<(), Problem> {
        self.must(self.role.may_change(), "change anything: use an admin key")
    }

    pub(crate) fn must_operate(&self) -> Result<(), Problem> {
        self.must(
            self.is_operator && self.role.may_change(),
            "manage projects: use the installation's admin key",
        )
    }

    fn must(&self, may: bool, what: &str) -> Result<(), Problem> {
        if may {
            return Ok(());
        }
        let detail = format!("a {} key may not {what}", self.role.name());
        Err(Problem::new(StatusCode::FORBIDDEN, "role_insufficient", detail))
    }
}

impl FromRequestParts<Arc<App>> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Problem> {
        catch_up(app).await;
        Self::of(parts, app)
    }
}

/// Others that share the store may have changed who is who a moment ago: whoever asks is answered by what is true now.
async fn catch_up(app: &App) {
    let (standing, rosters) = (&app.parts.standing, &app.parts.rosters);
    if standing.is_alone() || !standing.is_heard() {
        return;
    }
    if let Err(error) = rosters.catch_up().await {
        tracing::warn!(%error, "what others changed is not known yet");
    }
}

fn holder(parts: &Parts, roster: &Roster) -> Option<([u8; 32], Holder)> {
    let key = presented(&parts.headers)?;
    roster.holder(&key).map(|holder| (key, holder))
}

/// The hash of the key that a request shows.
pub(super) fn presented(headers: &HeaderMap) -> Option<[u8; 32]> {
    let header = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key::hash(token.trim()))
}

fn project(roster: &Roster, holder: Holder, named: Option<&str>) -> Option<ProjectNo> {
    let named_no = |id: &str| roster.projects.get(id).map(|project| project.no);
    match (holder.project, named) {
        (None, named) => named_no(named.unwrap_or(PROJECT_DEFAULT)),
        (Some(own), None) => Some(own),
        (Some(own), Some(id)) => named_no(id).filter(|no| *no == own),
    }
}
