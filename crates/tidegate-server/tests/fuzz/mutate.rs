//! How a case is made: a piece of the corpus, changed a few times.

use crate::chance::Chance;

/// Inputs stay small, so that many are tried.
const INPUT_BYTES_MAX: usize = 64 * 1024;
/// A range that is repeated, at most so often: depth and length are what parsers break on.
const REPEATS_MAX: usize = 300;

/// A new input.
pub(crate) fn mutate(corpus: &[&str], words: &[&str], chance: &mut Chance) -> Vec<u8> {
    let mut input = chance.pick(corpus).as_bytes().to_vec();
    for _ in 0..chance.below(6) {
        change(&mut input, corpus, words, chance);
        input.truncate(INPUT_BYTES_MAX);
    }
    input
}

fn change(input: &mut Vec<u8>, corpus: &[&str], words: &[&str], chance: &mut Chance) {
    let (from, to) = range(input.len(), chance);
    match chance.below(9) {
        0 => insert(input, from, chance.pick(words).as_bytes()),
        1 => replace(input, from, to, chance.pick(words).as_bytes()),
        2 => replace(input, from, to, b""),
        3 => {
            let copy = input[from..to].repeat(1 + chance.below(REPEATS_MAX));
            insert(input, to, &copy[..copy.len().min(INPUT_BYTES_MAX)]);
        }
        4 => {
            let other = chance.pick(corpus).as_bytes();
            let (start, end) = range(other.len(), chance);
            replace(input, from, to, &other[start..end]);
        }
        5 => insert(input, from, &[chance.next().to_le_bytes()[0]]),
        6 => {
            if let Some(byte) = input.get_mut(from) {
                *byte ^= 1 << chance.below(8);
            }
        }
        7 => input.truncate(from),
        _ => {
            let piece = input[from..to].to_vec();
            let at = chance.below(input.len() + 1);
            insert(input, at, &piece);
        }
    }
}

/// Any part of so many bytes, mostly a short one.
fn range(length: usize, chance: &mut Chance) -> (usize, usize) {
    let from = chance.below(length + 1);
    let most = if chance.below(4) == 0 { length } else { 16 };
    (from, (from + chance.below(most + 1)).min(length))
}

fn insert(input: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    replace(input, at, at, bytes);
}

fn replace(input: &mut Vec<u8>, from: usize, to: usize, bytes: &[u8]) {
    input.splice(from..to, bytes.iter().copied());
}
