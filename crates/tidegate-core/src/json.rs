//! What one pass over the bytes of JSON text can tell without parsing it.
//!
//! Ingest asks how deep a body nests before any parser sees it, and whether `data` must be squeezed before it is
//! fingerprinted. The text need not be valid: a parser that reads it afterwards agrees with this scan up to its
//! first error. Nothing here allocates except [`minify`].

/// What [`scan`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// Braces and brackets open at once, outside strings, at most.
    pub depth: usize,
    /// There is white space that means nothing: outside strings.
    pub spaced: bool,
}

/// Measures nesting and finds insignificant white space.
pub fn scan(text: &[u8]) -> Scan {
    let mut found = Scan::default();
    let mut open = 0usize;
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        at += 1;
        match byte {
            b'"' => at = string_end(text, at),
            b'{' | b'[' => {
                open += 1;
                found.depth = found.depth.max(open);
            }
            b'}' | b']' => open = open.saturating_sub(1),
            b' ' | b'\n' | b'\r' | b'\t' => found.spaced = true,
            _ => {}
        }
    }
    found
}

/// The same JSON without insignificant white space. Strings and numbers stay byte for byte.
pub fn minify(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        let end = if *byte == b'"' { string_end(text, at + 1) } else { at + 1 };
        if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
            out.extend_from_slice(&text[at..end]);
        }
        at = end;
    }
    out
}

/// The index after the quote that closes the string whose contents begin at `at`; the end of an unclosed one.
pub(crate) fn string_end(text: &[u8], mut at: usize) -> usize {
    while let Some(offset) = mark(&text[at..]) {
        at += offset;
        if text[at] == b'"' {
            return at + 1;
        }
        // A backslash takes the next byte with it, whatever that is.
        at = text.len().min(at + 2);
    }
    text.len()
}

/// Where the first quote or backslash stands. Strings are most of what is sent, so they are gone through eight bytes at
/// a time.
fn mark(text: &[u8]) -> Option<usize> {
    let (words, rest) = text.as_chunks::<8>();
    for (place, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let hits = zeros(word ^ each(b'"')) | zeros(word ^ each(b'\\'));
        if hits != 0 {
            return Some(place * 8 + hits.trailing_zeros() as usize / 8);
        }
    }
    let offset = rest.iter().position(|byte| matches!(byte, b'"' | b'\\'))?;
    Some(words.len() * 8 + offset)
}

/// A byte, eight times.
const fn each(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Marks the highest bit of the lowest byte that is zero. Bytes above it may be marked without being zero.
const fn zeros(word: u64) -> u64 {
    word.wrapping_sub(each(1)) & !word & each(0x80)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn depth_counts_brackets_outside_strings() {
        for (text, depth, spaced) in [
            ("", 0, false),
            ("1", 0, false),
            ("{}", 1, false),
            (r#"{"a":[{}]}"#, 3, false),
            (r#"{"a":"[[[ {{{"}"#, 1, false),
            (r#"{"a":"\"[["}"#, 1, false),
            (r#"{"a":"\\"} "#, 1, true),
            (r#"[[], [[]]]"#, 3, true),
            ("]]]]", 0, false),
            (r#""unclosed [ "#, 0, false),
            ("\"\\", 0, false),
        ] {
            assert_eq!(scan(text.as_bytes()), Scan { depth, spaced }, "{text}");
        }
    }

    #[test]
    fn minify_keeps_strings_and_numbers() {
        let text = b"{ \"a b\" :\t[ 1.10 , \"\\\" \" ,\r\n null ] }";
        assert_eq!(minify(text), b"{\"a b\":[1.10,\"\\\" \",null]}");
    }

    proptest! {
        #[test]
        fn a_string_ends_where_going_byte_by_byte_ends_it(
            text in proptest::collection::vec(prop_oneof![Just(b'"'), Just(b'\\'), Just(b'!'), Just(b'#'), any::<u8>()], 0..40),
        ) {
            let slowly = text.iter().position(|byte| matches!(byte, b'"' | b'\\'));
            prop_assert_eq!(mark(&text), slowly);
        }

        #[test]
        fn any_bytes_are_scanned_and_minified(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let small = minify(&text);
            prop_assert!(!scan(&small).spaced);
            prop_assert_eq!(scan(&small).depth, scan(&text).depth);
            if !scan(&text).spaced {
                prop_assert_eq!(small, text);
            }
        }
    }
}
