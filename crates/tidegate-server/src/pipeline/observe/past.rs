//! Backfills: what was accepted before a type declared a metric is counted too, a step of each in every pass.
//!
//! A step is a slice like any other, only that the backfill's own mark moves with it. One that counts states anew ends
//! with a step that the store takes while nobody else writes; whoever asks afterwards is shown the new numbers.

use tidegate_core::limits::SLICE_BYTES_MAX;
use tidegate_core::observe::Slab;
use tidegate_store::{Advance, BackfillRow, Error, LastStep, Slice};

use super::Observe;
use crate::observing::{Past, Types};

impl Observe {
    /// Takes a step of each backfill, and comes back soon if there are more.
    pub(super) async fn step_back(&self, types: &mut Types) -> tidegate_store::Result<()> {
        for row in self.store.backfills_running().await? {
            let mut past = Past::new(self.terms, row.clone());
            if !past.is_on() {
                continue;
            }
            let slice = self.store.unbackfilled(row.clone(), self.terms.batch, SLICE_BYTES_MAX).await?;
            if slice.events.iter().any(|(_, event)| event.version > types.version()) {
                types.refresh(&*self.store).await?;
            }
            let slab = self.read(&slice, |_, event, slab| past.observe(types, event, slab)).await;
            let is_done = self.step(&row, &slice, slab).await?;
            if !is_done {
                self.look_again();
            }
        }
        Ok(())
    }

    /// Says whether it was the last one.
    async fn step(&self, row: &BackfillRow, slice: &Slice, slab: Slab) -> tidegate_store::Result<bool> {
        let (no, after, through) = (row.no, row.after, slice.through);
        let (looked, is_last) = (slice.events.len() as u64, slice.is_end && row.rebuild.is_empty());
        let advance = Advance::Backfill { no, after, through, looked, is_last };
        if (is_last || through > after) && !self.flush(advance, slab, slice.events.len()).await? {
            return Ok(false);
        }
        if slice.is_end && !is_last {
            return self.finish(BackfillRow { after: through, ..row.clone() }).await;
        }
        Ok(is_last)
    }

    /// Ends a backfill of states, unless too much has come since it was last looked at.
    async fn finish(&self, row: BackfillRow) -> tidegate_store::Result<bool> {
        let mut types = Types::new(self.terms);
        types.refresh(&*self.store).await?;
        let (mut past, mut slab) = (Past::new(self.terms, row.clone()), Slab::new(self.entropy.u64()));
        let last: LastStep = Box::new(move |slice| {
            if slice.events.iter().any(|(_, event)| event.version > types.version()) {
                return None;
            }
            slice.events.iter().for_each(|(_, event)| past.observe(&mut types, event, &mut slab));
            Some(slab.into_delta())
        });
        match self.store.finish_rebuild(row, last, self.clock.now()).await {
            Ok(false) | Err(Error::Conflict(_)) => return Ok(false),
            Ok(true) => {}
            Err(error) => return Err(error),
        }
        self.rosters.changed_in_store().await?;
        Ok(true)
    }
}
