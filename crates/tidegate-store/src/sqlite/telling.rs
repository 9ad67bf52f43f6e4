//! Telling: the rows of open windows are brought up to date, a few with every commit.
//!
//! While a window gathers, only memory and the members know what it holds; a start counts the members again, from the
//! oldest state on that any row may be in. So that this is not as old as the oldest window, rows are told in rounds: with
//! every commit some more, in the order in which they lie, as many as the events of the commit are a part of a round.
//! When a round is over, every row knows at least what there was when it began, and the mark is moved there. A start tells
//! all that it had to count again, so that lives shorter than a round do not add up.
//!
//! Promises: a start reads the events of two rounds at most. Does nothing while no window is open.

use std::collections::BTreeSet;

use rusqlite::{CachedStatement, Connection, OptionalExtension};
use tidegate_core::fold::{Book, Window};
use tidegate_core::id::{ProjectNo, Seq, WindowNo};
use tidegate_core::limits::{TELLING_EVENTS_MIN, TELLING_EVENTS_PER_WINDOW};

use super::folds;

/// Before the first window of a book.
const BEGIN: (ProjectNo, WindowNo) = (ProjectNo::MIN, WindowNo::MIN);

/// How far the rows of open windows have been told.
#[derive(Clone, Debug)]
pub(super) struct Telling {
    /// Every row knows what there was up to here.
    mark: Seq,
    /// The same when this round is over.
    through: Seq,
    /// The window that was told last in this round.
    after: (ProjectNo, WindowNo),
    /// Part of a step that the commits so far have earned: events times steps of a round.
    earned: u64,
    /// Events in a round, if there are not too many windows; a test makes it shorter.
    pub(super) events_min: u64,
}

impl Telling {
    /// After a start: tells what joined windows that their rows did not know of. `last_no` is the last number in use.
    pub(super) fn start(
        conn: &Connection,
        book: &Book,
        joined: &BTreeSet<WindowNo>,
        last_no: i64,
    ) -> rusqlite::Result<Self> {
        let (mark, events_min) = (mark(conn)?, TELLING_EVENTS_MIN as u64);
        let mut telling = Self { mark, through: last_no, after: BEGIN, earned: 0, events_min };
        if !joined.is_empty() {
            let tx = conn.unchecked_transaction()?;
            let mut lagging = book.behind(BEGIN).filter(|window| joined.contains(&window.no));
            let mut tell = tx.prepare_cached(folds::TELL)?;
            lagging.try_for_each(|window| folds::tell(&mut tell, window))?;
            drop(tell);
            telling.end_round(&tx, last_no)?;
            tx.commit()?;
        }
        Ok(telling)
    }

    /// A commit of so many events begins, on top of what the book knows. `last_no` is the last number in use.
    pub(super) fn step(
        &mut self,
        conn: &Connection,
        book: &Book,
        events: usize,
        last_no: i64,
    ) -> rusqlite::Result<()> {
        if events == 0 || book.is_empty() {
            return Ok(());
        }
        // One for each window, and one to end the round.
        let steps = book.len() as u64 + 1;
        let round = self.events_min.max(steps * TELLING_EVENTS_PER_WINDOW as u64);
        self.earned += events as u64 * steps;
        let due = self.earned / round;
        self.earned %= round;
        if due == 0 {
            return Ok(());
        }
        let mut tell = conn.prepare_cached(folds::TELL)?;
        let mut windows = book.behind(self.after);
        for _ in 0..due {
            if let Some(window) = windows.next() {
                self.tell(&mut tell, window)?;
            } else {
                self.end_round(conn, last_no)?;
                windows = book.behind(BEGIN);
            }
        }
        Ok(())
    }

    /// What opened since the round began has its members behind the mark anyway, and what nobody joined is told already.
    fn tell(&mut self, tell: &mut CachedStatement<'_>, window: &Window) -> rusqlite::Result<()> {
        self.after = (window.project, window.no);
        let is_behind = window.no <= self.through && window.last.is_some_and(|last| last > self.mark);
        if is_behind { folds::tell(tell, window) } else { Ok(()) }
    }

    fn end_round(&mut self, conn: &Connection, last_no: i64) -> rusqlite::Result<()> {
        self.mark = self.through;
        self.through = last_no;
        self.after = BEGIN;
        conn.prepare_cached("INSERT OR REPLACE INTO meta VALUES ('windows_told', ?1)")?
            .execute([self.mark])?;
        Ok(())
    }
}

/// Up to here, every row of an open window knows its members.
pub(super) fn mark(conn: &Connection) -> rusqlite::Result<Seq> {
    let mut statement = conn.prepare_cached("SELECT value FROM meta WHERE name = 'windows_told'")?;
    Ok(statement.query_row([], |row| row.get(0)).optional()?.unwrap_or(0))
}
