//! The truth against liars: whatever is counted wrong is a difference.

use super::sales::{Calendar, Sale, invent};
use super::truth::{Cell, DAY, LENGTHS, Subject, WEEK, difference, parcels, start};
use crate::prng::Prng;

/// A Wednesday.
const NOW: i64 = 1_790_000_000_000 - 1_790_000_000_000 % DAY + DAY / 2;

fn sold(requests: usize) -> (Calendar, Vec<Sale>) {
    let calendar = Calendar::before(NOW);
    let sales = invent(requests, &calendar, &mut Prng::new(1));
    (calendar, sales)
}

#[test]
fn every_sale_is_in_one_bucket_of_each_length() {
    let (calendar, sales) = sold(20);
    assert_eq!(sales.len(), 1_000);
    for (_, every) in LENGTHS {
        let sum = |table: &super::truth::Table| table.values().map(|cell| cell.count).sum::<i64>();
        assert_eq!(sum(&Subject::Sold.expected(&sales, &calendar, every)), 1_000);
        assert_eq!(sum(&Subject::Amounts.expected(&sales, &calendar, every)), 1_000);
        let ranges = Subject::ranges(&calendar, every);
        let is_asked = |at: i64| ranges.iter().any(|(from, to)| (*from..*to).contains(&at));
        assert!(sales.iter().all(|sale| is_asked(sale.time)), "{every}");
    }
    assert!(calendar.spans.iter().any(|(from, to)| start(*from, WEEK) < start(*to, WEEK)));
}

#[test]
fn liars_are_found() {
    let (calendar, sales) = sold(20);
    for subject in Subject::ALL {
        for (_, every) in LENGTHS {
            let truth = subject.expected(&sales, &calendar, every);
            assert_eq!(difference(&truth, &truth), 0);
            let twice = [sales.clone(), sales[..50].to_vec()].concat();
            let (lost, twice) = (
                subject.expected(&sales[50..], &calendar, every),
                subject.expected(&twice, &calendar, every),
            );
            assert!(difference(&truth, &lost) > 0, "{subject:?} {every}");
            // Who lives the same life twice ends where he ended before.
            assert!(subject == Subject::Orders || difference(&truth, &twice) > 0, "{subject:?} {every}");
        }
    }
    let table = |cell: Cell| [((0, String::new()), cell)].into();
    let (right, wrong) = (Cell { low: 1, ..Cell::default() }, Cell { low: 2, ..Cell::default() });
    assert_eq!(difference(&table(right), &table(wrong)), 1);
}

#[test]
fn parcels_are_where_they_were_last_seen() {
    let (_, sales) = sold(40);
    let mut backwards = sales.clone();
    backwards.reverse();
    assert_eq!(parcels(&sales), parcels(&backwards));
}
