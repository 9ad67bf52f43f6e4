//! Parcels: folds that are put together to be sent. They are sealed, read and rendered, within the memory there is for them.
//!
//! One that passes a gate is put together in a turn of its own and comes back to its place in the line; the token is taken
//! when it is sent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use tidegate_core::fold;
use tidegate_core::id::WindowNo;
use tidegate_core::limits::FOLD_BYTES_SMALL;
use tidegate_core::schedule::Ended;
use tidegate_core::schedule::breaker::Outcome;
use tidegate_store::{Bundled, Error, Seal};

use super::super::bulk::Held;
use super::super::desk::Pick;
use super::super::lanes::{Leaving, Run};
use super::{Deliver, Place, body, claim, ended};
use crate::roster::Endpoint;

/// A fold under way is in memory as its events and as its body.
const IN_FLIGHT_TIMES: usize = 2;

/// A fold that was put together: what is sent, what is remembered of it, and the memory it takes until this is dropped.
pub(super) struct Parcel {
    body: Bytes,
    leaving: Leaving,
    _held: Held,
}

/// What is sent, and of a fold what is remembered and the memory it takes until the attempt has ended.
pub(super) type Content = (Bytes, Option<Run>, Option<Arc<Parcel>>);

impl Deliver {
    /// Puts a fold together that will pass a gate; or says how its turn ends, when there is nothing to send.
    pub(super) async fn prepare(&self, pick: &Pick, mut place: Place<'_>) -> Result<Parcel, Ended> {
        let mut prepared = match self.begin(pick).await {
            Ok(_) => self.parcel(pick).await,
            Err(ended) => Err(ended),
        };
        place.is_done = true;
        if prepared.is_ok() && self.is_stopping.load(Ordering::Acquire) {
            self.persist.release(vec![claim(&pick.turn.job)]);
            prepared = Err(ended(&pick.turn, Outcome::Unsent));
        }
        if prepared.is_err() {
            self.desk.unprepared(&pick.turn);
        }
        prepared
    }

    /// What is sent; or how the turn ends, when there is nothing to send.
    pub(super) async fn content(&self, pick: &Pick, endpoint: &Endpoint) -> Result<Content, Ended> {
        let job = &pick.turn.job;
        if job.fold.is_none() {
            self.begin_suspect(&pick.turn).await?;
            return Ok((body(job, endpoint), None, None));
        }
        let prepared = pick.turn.luggage.clone().and_then(|luggage| luggage.downcast::<Parcel>().ok());
        let parcel = match prepared {
            Some(parcel) => parcel,
            None => Arc::new(self.parcel(pick).await?),
        };
        self.begin_suspect(&pick.turn).await?;
        let run = self.lanes.started(endpoint, job, &parcel.leaving, self.clock.now());
        Ok((parcel.body.clone(), Some(run), Some(parcel)))
    }

    /// A fold, put together; or how its turn ends.
    async fn parcel(&self, pick: &Pick) -> Result<Parcel, Ended> {
        let (turn, job) = (&pick.turn, &pick.turn.job);
        match self.unfold(pick, job.fold.unwrap_or_default()).await {
            Ok(Some(parcel)) => Ok(parcel),
            Ok(None) => Err(self.give_up(turn, "its events are no longer kept")),
            Err(error) => {
                tracing::warn!(%error, "a folded delivery can not be put together yet");
                self.persist.release(vec![claim(job)]);
                Err(ended(turn, Outcome::Unsent))
            }
        }
    }

    /// What a folded delivery carries. Before it is sent it is sealed, so that what is sent and what is kept can never differ. An
    /// attempt that was counted may have ended before that, so every one asks; sealing twice changes nothing.
    async fn unfold(&self, pick: &Pick, window: WindowNo) -> Result<Option<Parcel>, Error> {
        let job = &pick.turn.job;
        let mut held = self.bulk.hold(job.subscriber, IN_FLIGHT_TIMES * FOLD_BYTES_SMALL).await;
        if job.lane.is_some() && !pick.turn.is_sealed {
            let seal = Seal { project: job.project, window, claim: claim(job) };
            let unsealed = |_| {
                Error::Unavailable("it could not be sealed: it is another's by now, or cancelled".to_owned())
            };
            self.persist.seal(seal).await.map_err(unsealed)?;
        }
        let mut bundled = self.store.bundle(window, job.key(), FOLD_BYTES_SMALL).await?;
        if let Some(Bundled::Larger(bytes)) = bundled {
            drop(held);
            held = self.bulk.hold(job.subscriber, IN_FLIGHT_TIMES * bytes).await;
            bundled = self.store.bundle(window, job.key(), bytes).await?;
        }
        let Some(Bundled::Whole(bundle)) = bundled else { return Ok(None) };
        // All that may have taken a while, the wait for memory above all.
        if !self.desk.may_use(pick).await {
            return Err(Error::Unavailable("it is another's by now".to_owned()));
        }
        if !self.desk.may_begin() {
            return Err(Error::Unavailable("what becomes of it could not be written".to_owned()));
        }
        let body = fold::render(&self.mint.delivery(job.key()), &bundle);
        held.shrink(IN_FLIGHT_TIMES * body.len());
        Ok(Some(Parcel { body, leaving: Leaving::of(&bundle), _held: held }))
    }
}
