//! An endpoint's URL as it may be shown: without the secrets that many of them carry.
//!
//! The values of the query, the fragment, and path segments that look like tokens become `***`. Whoever sends the
//! result back means the URL that is stored.

use super::hidden::MASK;

/// What is shorter is no secret that could last.
const TOKEN_LEN_MIN: usize = 8;
/// A run of letters or of digits up to this long is a word or a number.
const WORD_LEN_MAX: usize = 15;

/// The URL with everything masked that may be a secret.
pub fn mask_url(url: &str) -> String {
    let (rest, has_fragment) = match url.split_once('#') {
        Some((rest, _)) => (rest, true),
        None => (url, false),
    };
    let (rest, query) = match rest.split_once('?') {
        Some((rest, query)) => (rest, Some(query)),
        None => (rest, None),
    };
    let mut masked = mask_path(rest);
    if let Some(query) = query {
        let pairs: Vec<String> = query.split('&').map(mask_pair).collect();
        masked.push('?');
        masked.push_str(&pairs.join("&"));
    }
    if has_fragment {
        masked.push('#');
        masked.push_str(MASK);
    }
    masked
}

fn mask_path(url: &str) -> String {
    let (origin, path) =
        match url.find("://").and_then(|at| url[at + 3..].find('/').map(|slash| at + 3 + slash)) {
            Some(slash) => url.split_at(slash),
            None => (url, ""),
        };
    let segments: Vec<&str> =
        path.split('/').map(|segment| if is_token(segment) { MASK } else { segment }).collect();
    format!("{origin}{}", segments.join("/"))
}

fn mask_pair(pair: &str) -> String {
    match pair.split_once('=') {
        Some((name, "")) => format!("{name}="),
        Some((name, _)) => format!("{name}={MASK}"),
        None if is_token(pair) => MASK.to_owned(),
        None => pair.to_owned(),
    }
}

/// Not short, and not a few words and numbers joined by punctuation.
fn is_token(segment: &str) -> bool {
    let is_word = |piece: &str| {
        let is_plain = piece.bytes().all(|byte| byte.is_ascii_lowercase())
            || piece.bytes().all(|byte| byte.is_ascii_digit())
            || piece.strip_prefix('v').is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
        piece.len() <= WORD_LEN_MAX && is_plain
    };
    segment.len() >= TOKEN_LEN_MIN && !segment.split(['-', '_', '.']).all(is_word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_secret_is_masked_and_the_rest_is_not() {
        for url in [
            "https://example.com",
            "https://example.com/",
            "https://example.com:8443/v1/hooks/order-events",
            "https://a-very-long-host-name-with-0123456789abcdef.example.com/hook",
            "https://example.com/team-alpha/order-processing-2024-v2-webhook.json",
            "https://example.com/hook?",
            "https://example.com/hook?flag&empty=",
        ] {
            assert_eq!(mask_url(url), url);
        }
        for (url, masked) in [
            ("https://e.com/h?token=s3cret&a=b", "https://e.com/h?token=***&a=***"),
            ("https://e.com/h?0123456789abcdef0123", "https://e.com/h?***"),
            ("https://e.com/h#secret", "https://e.com/h#***"),
            (
                "https://hooks.example.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
                "https://hooks.example.com/services/***/***/***",
            ),
            ("https://e.com/in/550e8400-e29b-41d4-a716-446655440000/x", "https://e.com/in/***/x"),
            ("https://e.com/0123456789abcdef", "https://e.com/***"),
            ("https://e.com/hook/s3cr3t-token", "https://e.com/hook/***"),
            ("https://e.com/supercalifragilisticexpialidocious", "https://e.com/***"),
        ] {
            assert_eq!(mask_url(url), masked);
            assert_eq!(mask_url(masked), masked, "masking again changes nothing");
        }
    }
}
