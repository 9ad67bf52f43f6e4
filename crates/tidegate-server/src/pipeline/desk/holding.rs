//! Holding back: while what became of deliveries can not be written, no more of them begin. If the process ended then, all
//! whose results were not written would be sent again.

use std::sync::atomic::Ordering;

use super::Desk;

impl Desk {
    /// Lets no more deliveries begin until [`Desk::go_on`].
    pub(in super::super) fn hold_back(&self) {
        self.is_held_back.store(true, Ordering::Release);
    }

    /// They may again: something was written.
    pub(in super::super) fn go_on(&self) {
        if self.is_held_back.load(Ordering::Acquire) {
            self.is_held_back.store(false, Ordering::Release);
            self.ring();
        }
    }

    /// Whether somebody may begin now.
    pub(in super::super) fn may_begin(&self) -> bool {
        self.standing.may_act() && !self.is_held_back.load(Ordering::Acquire)
    }
}
