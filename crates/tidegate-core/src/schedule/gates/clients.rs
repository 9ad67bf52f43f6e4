//! Clients in the line of a gate: a ticket each, among the deliveries.

use super::super::meter::Meter;
use super::super::{Schedule, Slot};
use super::{Ticket, Turnaway, Waiter};
use crate::id::GateNo;
use crate::limits::GATE_CLIENTS_MAX;
use crate::time::Timestamp;

impl Schedule {
    /// A client joins a line.
    pub fn queue_client(&mut self, gate: GateNo, now: Timestamp) -> Result<Ticket, Turnaway> {
        self.latest = self.latest.max(now);
        let ticket = self.stamp();
        let line = self.lines.get_mut(&gate).ok_or(Turnaway::Unknown)?;
        if line.clients >= GATE_CLIENTS_MAX {
            return Err(Turnaway::Full);
        }
        line.clients += 1;
        line.waiting.insert((ticket, Waiter::Client), now);
        self.wake(gate);
        Ok(ticket)
    }

    /// A client has left a line; whether it was still in it.
    pub fn leave_line(&mut self, gate: GateNo, ticket: Ticket) -> bool {
        let Some(line) = self.lines.get_mut(&gate) else { return false };
        let was_there = line.waiting.remove(&(ticket, Waiter::Client)).is_some();
        line.clients -= usize::from(was_there);
        self.desert(gate);
        was_there
    }

    /// There is no such gate any more; who waited there.
    pub(super) fn remove_line(&mut self, gate: GateNo) -> Vec<Ticket> {
        self.forget_slot(Slot::Gate(gate));
        let waiting = self.lines.remove(&gate).map(|line| line.waiting).unwrap_or_default();
        let clients = waiting.into_keys().filter(|(_, waiter)| *waiter == Waiter::Client);
        clients.map(|(ticket, _)| ticket).collect()
    }

    /// Serves the clients at the head of a line; deliveries wait for their turn.
    pub fn serve_clients(&mut self, gate: GateNo, now: Timestamp) {
        while let Some(line) = self.lines.get_mut(&gate) {
            match line.waiting.first_key_value() {
                Some((place @ (ticket, Waiter::Client), _)) if now >= line.closed_until => {
                    let (place, ticket) = (*place, *ticket);
                    if !matches!(line.meter, Meter::Own(_))
                        || line.meter.peek(now).is_err()
                        || line.is_kept_until(now).is_some()
                    {
                        return;
                    }
                    self.let_pass(gate, place, Some(ticket), now);
                }
                _ => return,
            }
        }
    }
}
