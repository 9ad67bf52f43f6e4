//! How deep the source of a CEL condition nests, before a parser whose stack grows with it sees it.

/// The deepest of: brackets open at once with the unary operators before them, and ternaries.
pub(super) fn depth(source: &str) -> usize {
    let text = source.as_bytes();
    let (mut open, mut deepest, mut unary, mut ternaries) = (0usize, 0usize, 0usize, 0usize);
    let mut at = 0;
    while let Some(byte) = text.get(at) {
        match byte {
            b'"' | b'\'' => {
                at = string_end(text, at);
                unary = 0;
                continue;
            }
            b'/' if text.get(at + 1) == Some(&b'/') => {
                at = text[at..].iter().position(|byte| *byte == b'\n').map_or(text.len(), |end| at + end);
                continue;
            }
            b'(' | b'[' | b'{' => {
                // Unary operators before a bracket are open as long as the bracket is; forgetting them with the
                // bracket would let them add up unseen, so they are counted as if never closed.
                open += 1 + unary;
                unary = 0;
            }
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            b'!' | b'-' => unary += 1,
            b'?' => ternaries += 1,
            byte if byte.is_ascii_whitespace() => {}
            _ => unary = 0,
        }
        deepest = deepest.max(open + unary).max(ternaries);
        at += 1;
    }
    deepest
}

/// The index after the string literal that begins with the quote at `at`; the end of an unclosed one.
fn string_end(text: &[u8], at: usize) -> usize {
    let quote = text[at];
    let triple = text[at..].starts_with(&[quote; 3]);
    let raw = at > 0 && matches!(text[at - 1], b'r' | b'R');
    let width = if triple { 3 } else { 1 };
    let mut at = at + width;
    while at < text.len() {
        if text[at] == b'\\' && !raw {
            at += 2;
        } else if text[at] == quote && (!triple || text[at..].starts_with(&[quote; 3])) {
            return at + width;
        } else {
            at += 1;
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::depth;

    #[test]
    fn nesting_is_counted_outside_strings_and_comments() {
        for (source, expected) in [
            ("", 0),
            ("data.a == 1", 0),
            ("((1))", 2),
            ("[{'a': (1)}]", 3),
            ("'((((' == \"[[[\"", 0),
            ("'\\'(((' == 'x'", 0),
            ("r'\\' == '(('", 0),
            ("'''it's (((''' == 'x'", 0),
            ("a // ((((\n == (b)", 1),
            ("!!!a", 3),
            ("! ! !a", 3),
            ("a - b - c - d", 1),
            ("-(-(-(1)))", 6),
            ("a ? b : c ? d : e", 2),
            ("'unclosed (((", 0),
        ] {
            assert_eq!(depth(source), expected, "{source}");
        }
    }
}
