//! Goal: a page is the sum of what was merged into it, and no bytes make reading panic. Method: random cells merged in
//! random portions against a map; random and damaged bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::observe::Accuracy;

const NONE: &[(KeyNo, Cell)] = &[];

fn count(count: i64, sum: i128) -> Cell {
    Cell::Count { count, sum }
}

fn read(page: &[u8]) -> BTreeMap<KeyNo, Cell> {
    cells(page)
        .unwrap()
        .map(|cell| cell.and_then(|(key, cell)| Ok((key, cell.to_cell()?))).unwrap())
        .collect()
}

fn portions(cell: BoxedStrategy<Cell>) -> impl Strategy<Value = Vec<Vec<(KeyNo, Cell)>>> {
    let key = prop_oneof![0_u32..8, 1000_u32..1100, Just(u32::MAX), any::<u32>()];
    proptest::collection::vec(proptest::collection::vec((key, cell), 0..12), 0..6)
}

fn counts() -> BoxedStrategy<Cell> {
    let sum =
        prop_oneof![Just(0_i128), any::<i64>().prop_map(i128::from), (-9_i128..9).prop_map(|n| n << 90)];
    (-3_i64..300, sum).prop_map(|(n, sum)| count(n, sum)).boxed()
}

fn sketches() -> BoxedStrategy<Cell> {
    proptest::collection::vec(-1e6..1e6, 0..6)
        .prop_map(|values| {
            let mut sketch = Sketch::default();
            values.iter().for_each(|value| sketch.add(Accuracy::new(0.02).unwrap(), *value));
            Cell::Sketch(sketch.into())
        })
        .boxed()
}

fn merge_all(portions: &[Vec<(KeyNo, Cell)>]) -> Option<Vec<u8>> {
    let mut page: Option<Vec<u8>> = None;
    for portion in portions.iter().filter(|portion| !portion.is_empty()) {
        let mut more: Vec<_> = portion.iter().map(|(key, cell)| (*key, cell)).collect();
        more.sort_by_key(|(key, _)| *key);
        page = Some(merge(page.as_deref(), &more).unwrap());
    }
    page
}

fn recount(portions: &[Vec<(KeyNo, Cell)>]) -> BTreeMap<KeyNo, Cell> {
    let mut cells = BTreeMap::new();
    for (key, cell) in portions.iter().flatten() {
        cells.entry(*key).or_insert_with(|| Cell::nothing_like(cell)).try_add(cell).unwrap();
    }
    cells.retain(|_, cell| *cell != Cell::nothing_like(cell));
    cells
}

#[test]
fn a_page_of_counts_is_these_bytes() {
    let page = merge(None, &[(1, &count(1, 0)), (3, &count(-2, 0)), (1000, &count(100, -1))]).unwrap();
    assert_eq!(page, [1, 2, 2, 4, 3, 0xcb, 0x0f, 0xc8, 0x01, 1]);
    assert_eq!(merge(Some(&page), NONE).unwrap(), page);
}

#[test]
fn what_is_nothing_goes() {
    let page = merge(None, &[(1, &count(1, 5)), (2, &count(1, 0))]).unwrap();
    let page = merge(Some(&page), &[(1, &count(-1, -5))]).unwrap();
    assert_eq!(read(&page), BTreeMap::from([(2, count(1, 0))]));
    let page = merge(Some(&page), &[(2, &count(-1, 0))]).unwrap();
    assert!(is_empty(&page) && page == merge(None, NONE).unwrap());
}

#[test]
fn pages_have_as_many_keys_as_their_kind_allows() {
    assert_eq!([of(Kind::Counter, 1023), of(Kind::State, 1024)], [0, 1]);
    assert_eq!([of(Kind::Histogram, 63), of(Kind::Histogram, 64)], [0, 1]);
}

#[test]
fn what_is_no_page_is_torn() {
    let sketch = Cell::Sketch(std::sync::Arc::default());
    let page = merge(None, &[(1, &count(1, 0))]).unwrap();
    assert_eq!(merge(Some(&page), &[(1, &sketch)]), Err(Torn));
    assert_eq!(merge(None, &[(1, &count(1, 0)), (2, &sketch)]), Err(Torn));
    assert_eq!(merge(Some(&[]), NONE), Err(Torn));
    assert!(cells(&[]).is_err() && cells(&[9, 2, 2]).is_err());
    for torn in [&[1, 2][..], &[1, 2, 2, 0, 2], &[1, 0xff], &[2, 1, 9, 1], &[1, 3, 2, 0x80]] {
        assert!(cells(torn).unwrap().any(|cell| cell.is_err()), "{torn:?}");
    }
}

proptest! {
    #[test]
    fn a_page_is_the_sum_of_what_was_merged(
        portions in prop_oneof![portions(counts()).boxed(), portions(sketches()).boxed()],
    ) {
        let page = merge_all(&portions);
        prop_assert_eq!(page.as_deref().map(read).unwrap_or_default(), recount(&portions));
        let mut reversed = portions.clone();
        reversed.reverse();
        prop_assert_eq!(merge_all(&reversed), page);
    }

    #[test]
    fn no_bytes_make_reading_panic(
        form in 0_u8..4,
        bytes in proptest::collection::vec(any::<u8>(), 0..80),
        portions in portions(sketches()),
        damage in any::<(proptest::sample::Index, u8)>(),
    ) {
        let mut page = merge_all(&portions).unwrap_or_else(|| vec![2]);
        let place = damage.0.index(page.len());
        page[place] = damage.1;
        for page in [page, [&[form][..], &bytes].concat()] {
            if let Ok(cells) = cells(&page) {
                let read: Vec<_> = cells.map(|cell| cell.and_then(|(_, cell)| cell.to_cell())).collect();
                prop_assert!(read.len() <= page.len());
            }
            let _ = merge(Some(&page), &[(5, &count(1, 1))]);
        }
    }
}
