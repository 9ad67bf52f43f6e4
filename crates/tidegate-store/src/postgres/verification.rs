//! Whether a subscriber's endpoint has agreed to be sent to. Each change is part of the change of its subscriber.

use tidegate_core::id::SubscriberNo;
use tidegate_core::time::Timestamp;
use tidegate_core::verification::{Consent, VerificationStatus};
use tokio_postgres::Row;

use super::db::{Asked, Conn};
use super::quarantine::storable;
use crate::{Error, VerificationRow, VerificationUpdate};

/// What [`row`] reads, from the given column on.
pub(super) const COLUMNS: &str =
    "verification, verification_round, verification_tries, verification_detail, allowed_rate";

pub(super) fn row(row: &Row, first: usize) -> Option<VerificationRow> {
    let status: Option<&str> = row.get(first);
    Some(VerificationRow {
        status: status.and_then(VerificationStatus::parse)?,
        round: row.get(first + 1),
        tries: row.get::<_, i32>(first + 2).cast_unsigned(),
        detail: row.get(first + 3),
        consent: Consent { per_minute: row.get::<_, Option<i32>>(first + 4).map(i32::cast_unsigned) },
    })
}

const BEGIN: &str =
    "UPDATE subscribers SET verification = 'pending', verification_round = verification_round + 1,
        verification_tries = 0, verification_detail = NULL, allowed_rate = NULL,
        inactive_reason = CASE WHEN active THEN 'unverified' ELSE inactive_reason END, active = FALSE,
        inactive_at = coalesce(inactive_at, $2), failing_since = NULL
    WHERE no = $1";

const END: &str = "UPDATE subscribers SET verification = NULL, verification_round = verification_round + 1,
        verification_tries = 0, verification_detail = NULL, allowed_rate = NULL,
        active = active OR coalesce(inactive_reason = 'unverified', FALSE),
        inactive_at = CASE WHEN inactive_reason = 'unverified' THEN NULL ELSE inactive_at END,
        inactive_reason = nullif(inactive_reason, 'unverified')
    WHERE no = $1";

const AGREED: &str =
    "UPDATE subscribers SET verification = 'verified', verification_tries = verification_tries + 1,
        verification_detail = NULL, allowed_rate = $3,
        active = active OR coalesce(inactive_reason = 'unverified', FALSE),
        inactive_at = CASE WHEN inactive_reason = 'unverified' THEN NULL ELSE inactive_at END,
        inactive_reason = nullif(inactive_reason, 'unverified')
    WHERE no = $1 AND verification_round = $2 AND verification = 'pending'";

const REFUSED: &str = "UPDATE subscribers SET verification = $3, verification_tries = verification_tries + 1,
        verification_detail = $4
    WHERE no = $1 AND verification_round = $2 AND verification = 'pending'";

pub(super) async fn update(
    conn: &Conn,
    no: SubscriberNo,
    update: &VerificationUpdate,
    now: Timestamp,
) -> Asked<()> {
    let changed = match update {
        VerificationUpdate::Begin => conn.execute(BEGIN, &[&no, &now.as_ms()]).await?,
        VerificationUpdate::End => conn.execute(END, &[&no]).await?,
        VerificationUpdate::Tried { round, outcome: Ok(consent), .. } => {
            let per_minute = consent.per_minute.map(|count| i32::try_from(count).unwrap_or(i32::MAX));
            conn.execute(AGREED, &[&no, round, &per_minute]).await?
        }
        VerificationUpdate::Tried { round, outcome: Err(detail), is_last } => {
            let status = if *is_last { VerificationStatus::Failed } else { VerificationStatus::Pending };
            conn.execute(REFUSED, &[&no, round, &status.name(), &storable(detail)]).await?
        }
    };
    if changed == 0 {
        return Err(Error::Conflict("the verification has begun anew or is over".to_owned()).into());
    }
    Ok(())
}

/// Whoever is resumed without its endpoint's consent stays inactive, for that reason.
pub(super) async fn hold_back(conn: &Conn, no: SubscriberNo, now: Timestamp) -> Asked<()> {
    conn.execute(
        "UPDATE subscribers SET active = FALSE, inactive_reason = 'unverified', inactive_at = $2
         WHERE no = $1 AND active AND verification IS NOT NULL AND verification <> 'verified'",
        &[&no, &now.as_ms()],
    )
    .await?;
    Ok(())
}
