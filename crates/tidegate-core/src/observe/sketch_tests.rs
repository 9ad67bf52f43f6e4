//! Goal: every quantile is within the accuracy's share of the exact one, and sketches add up in any way. Method: random
//! values from distributions that are unkind to bins, cut into parts at random and merged in a random tree, against the sorted values.

use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

const QUANTILES: [f64; 9] = [0.0, 0.001, 0.1, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0];

fn accuracy(share: f64) -> Accuracy {
    Accuracy::new(share).unwrap()
}

fn sketch_of(accuracy: Accuracy, values: &[f64]) -> Sketch {
    let mut sketch = Sketch::default();
    values.iter().for_each(|value| sketch.add(accuracy, *value));
    sketch
}

/// Heavy tails, one value only, two far modes, both signs, nearly nothing, and far too much.
fn values() -> impl Strategy<Value = Vec<f64>> {
    let many = |value: BoxedStrategy<f64>| proptest::collection::vec(value, 1..120).boxed();
    prop_oneof![
        many((0.0..1.0_f64).prop_map(|u| (1.0 - u).powf(-4.0)).boxed()),
        (any::<f64>(), 1_usize..50)
            .prop_map(|(value, n)| vec![if value.is_nan() { 1.0 } else { value }; n])
            .boxed(),
        many(prop_oneof![1e-6..1.1e-6, 1e12..1.1e12].boxed()),
        many((-1e6..1e6).boxed()),
        many((-40.0..20.0_f64).prop_map(f64::exp).boxed()),
        many(prop_oneof![Just(0.0), Just(-0.0), -1e-8..1e-8, Just(1e-9), Just(-1e-9)].boxed()),
        many(prop_oneof![Just(f64::INFINITY), Just(f64::NEG_INFINITY), Just(f64::MAX), -1e19..1e19].boxed()),
        many((-3000_i32..3000).prop_map(|bin| accuracy(0.01).value(bin) / 0.99).boxed()),
        many(any::<f64>().prop_filter("a number", |value| !value.is_nan()).boxed()),
    ]
}

fn as_counted(value: f64) -> f64 {
    if value.abs() < 1e-9 { 0.0 } else { value.clamp(-1e18, 1e18) }
}

#[test]
fn quantiles_have_the_lower_rank() {
    let accuracy = accuracy(0.01);
    let sketch = sketch_of(accuracy, &[4.0, -2.0, 0.0, 10.0]);
    let near = |q| sketch.quantile(accuracy, q).unwrap().round();
    assert_eq!([near(0.0), near(0.3), near(0.34), near(0.99), near(1.0)], [-2.0, -2.0, 0.0, 4.0, 10.0]);
    assert_eq!((sketch.min(), sketch.max(), sketch.mean()), (Some(-2.0), Some(10.0), Some(3.0)));
    assert_eq!((sketch.count(), sketch.sum()), (4, 12_000_000_000));
    let empty = Sketch::default();
    assert_eq!((empty.quantile(accuracy, 0.5), empty.mean(), empty.min()), (None, None, None));
}

#[test]
fn what_is_not_a_number_is_left_out_and_accuracies_have_bounds() {
    assert_eq!(sketch_of(accuracy(0.01), &[f64::NAN]), Sketch::default());
    for share in [0.0, -0.1, 1.0, 2.0, f64::NAN, 1e-5] {
        assert_eq!(Accuracy::new(share), None, "{share}");
    }
}

#[test]
fn the_logarithm_is_one() {
    for value in [1e-9, 0.1, 0.5, 0.999_999, 1.0, 1.414, 1.4143, 2.0, 1e18, 1.0002] {
        let error = (ln(value) - f64::ln(value)).abs();
        assert!(error <= f64::ln(value).abs() * 4e-16, "{value}: {error}");
    }
}

proptest! {
    #[test]
    fn quantiles_are_within_the_accuracy(mut values in values(), share in prop_oneof![Just(0.001), Just(0.01), 0.002..0.3]) {
        let accuracy = accuracy(share);
        let sketch = sketch_of(accuracy, &values);
        values.iter_mut().for_each(|value| *value = as_counted(*value));
        values.sort_by(f64::total_cmp);
        for q in QUANTILES {
            let exact = values[(q * (values.len() - 1) as f64).floor() as usize];
            let found = sketch.quantile(accuracy, q).unwrap();
            let error = (found - exact).abs();
            prop_assert!(error <= exact.abs() * share * (1.0 + 1e-9), "{} of {:?}: {} for {}", q, values, found, exact);
        }
        prop_assert_eq!(sketch.count(), values.len() as u64);
        prop_assert_eq!(sketch.min(), values.first().copied());
        prop_assert_eq!(sketch.max(), values.last().copied());
        let units = |value: &f64| fixed(*value).clamp(-UNITS_MAX, UNITS_MAX);
        prop_assert_eq!(sketch.sum(), values.iter().map(units).sum::<i128>());
    }

    #[test]
    fn merged_in_any_way_it_is_the_same(
        values in values(),
        order in any::<u64>(),
        parts in proptest::collection::vec(0_usize..5, 120),
        tree in proptest::collection::vec((any::<Index>(), any::<Index>()), 5),
    ) {
        let accuracy = accuracy(0.01);
        let whole = sketch_of(accuracy, &values);
        let mut shuffled: Vec<_> = values.iter().zip(&parts).enumerate().collect();
        shuffled.sort_by_key(|(place, _)| (*place as u64 ^ order).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let mut sketches = vec![Sketch::default(); 5];
        for (_, (value, part)) in shuffled {
            sketches[*part].add(accuracy, *value);
        }
        for (taken, into) in tree {
            if sketches.len() > 1 {
                let taken = sketches.swap_remove(taken.index(sketches.len()));
                let place = into.index(sketches.len());
                sketches[place].merge(&taken);
            }
        }
        let mut merged = Sketch::default();
        sketches.iter().for_each(|sketch| merged.merge(sketch));
        prop_assert_eq!(merged, whole);
    }

    #[test]
    fn what_is_written_is_read(values in values(), before in values()) {
        let sketch = sketch_of(accuracy(0.01), &values);
        let mut bytes = Vec::new();
        sketch.encode(&mut bytes);
        let mut read = sketch_of(accuracy(0.01), &before);
        prop_assert_eq!(read.decode(&bytes), Ok(()));
        prop_assert_eq!(&read, &sketch);
        for end in 0..bytes.len() {
            prop_assert_eq!(read.decode(&bytes[..end]), Err(Torn));
        }
    }
}
