//! Pages of lists: where one ends and the next begins.
//!
//! A cursor is a position, closed for one list, one project and one set of filters: another project's cursor, one of
//! another query, or one that somebody changed is refused (422). It tells nothing to whoever reads it, least of all how
//! much the installation has accepted. It stays valid over restarts.

use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::StatusCode;
use ring::hmac;
use serde::Serialize;
use serde_json::{Value, json};

use super::auth::Caller;
use super::problem::Problem;
use super::request::Query;
use super::{App, json_answer};

/// The pages of one list, as one caller asks for them.
pub(crate) struct Pages {
    key: hmac::Key,
    context: Vec<u8>,
}

impl Pages {
    /// Of the list called `list`, filtered by `query`, from which nothing has been taken yet.
    pub(crate) fn of(app: &App, caller: &Caller, list: &str, query: &Query) -> Self {
        Self::new(app.parts.store.salt(), caller.project, list, query)
    }

    /// Of the list that a request's body asks for, a JSON object that may have a cursor of its own.
    pub(crate) fn of_body(app: &App, caller: &Caller, list: &str, body: &[u8]) -> Self {
        let mut question: Value = serde_json::from_slice(body).unwrap_or_default();
        for name in ["cursor", "limit"] {
            question.as_object_mut().map(|members| members.remove(name));
        }
        Self::within(app.parts.store.salt(), caller.project, [list, &question.to_string()])
    }

    fn new(salt: &[u8], project: i64, list: &str, query: &Query) -> Self {
        let filters = query.filters().flat_map(|(name, value)| [name, value]);
        Self::within(salt, project, [list].into_iter().chain(filters))
    }

    fn within<'t>(salt: &[u8], project: i64, texts: impl IntoIterator<Item = &'t str>) -> Self {
        let mut context = project.to_be_bytes().to_vec();
        for text in texts {
            context.extend((text.len() as u64).to_be_bytes());
            context.extend(text.as_bytes());
        }
        Self { key: hmac::Key::new(hmac::HMAC_SHA256, salt), context }
    }

    /// Where to go on; `None` is the beginning.
    pub(crate) fn position(&self, query: &mut Query) -> Result<Option<i64>, Problem> {
        query.take("cursor").map(|text| self.read(&text)).transpose()
    }

    /// The position that a cursor stands for.
    pub(crate) fn read(&self, cursor: &str) -> Result<i64, Problem> {
        self.open(cursor).ok_or_else(refused)
    }

    /// `{"items":[…],"next":…}`.
    pub(crate) fn answer(&self, items: &impl Serialize, next: Option<i64>) -> Response {
        let next = next.map(|position| self.cursor(position));
        json_answer(StatusCode::OK, &json!({ "items": items, "next": next }))
    }

    /// A position, as clients see it: a tag of it, and the position hidden by a tag of that tag.
    pub(crate) fn cursor(&self, position: i64) -> String {
        let position = position.cast_unsigned();
        let tag = self.tag(b'p', position);
        format!("c{tag:016x}{:016x}", position ^ self.tag(b'm', tag))
    }

    /// The name after which to go on, in a list by name.
    pub(crate) fn name(&self, query: &mut Query) -> Result<Option<String>, Problem> {
        query.take("cursor").map(|text| self.name_of(&text)).transpose()
    }

    /// The name that a cursor stands for.
    pub(crate) fn name_of(&self, cursor: &str) -> Result<String, Problem> {
        self.open_name(cursor).ok_or_else(refused)
    }

    /// A name in a list, as clients pass it on.
    pub(crate) fn name_cursor(&self, name: &str) -> String {
        format!("n{:016x}{}", self.name_tag(name), URL_SAFE_NO_PAD.encode(name))
    }

    fn open_name(&self, cursor: &str) -> Option<String> {
        let (tag, coded) = cursor.strip_prefix('n')?.split_at_checked(16)?;
        let name = String::from_utf8(URL_SAFE_NO_PAD.decode(coded).ok()?).ok()?;
        (u64::from_str_radix(tag, 16).ok()? == self.name_tag(&name)).then_some(name)
    }

    fn name_tag(&self, name: &str) -> u64 {
        let digest = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
        let number = u64::from_be_bytes(digest.as_ref()[..8].try_into().expect("a digest has 32 bytes"));
        self.tag(b'n', number)
    }

    fn open(&self, cursor: &str) -> Option<i64> {
        let digits = cursor.strip_prefix('c').filter(|digits| digits.len() == 32 && digits.is_ascii())?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let (tag, hidden) = (number(&digits[..16])?, number(&digits[16..])?);
        let position = hidden ^ self.tag(b'm', tag);
        (self.tag(b'p', position) == tag).then_some(position.cast_signed())
    }

    fn tag(&self, purpose: u8, value: u64) -> u64 {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(b"cursor");
        context.update(&[purpose]);
        context.update(&value.to_be_bytes());
        context.update(&self.context);
        let tag = context.sign();
        u64::from_be_bytes(tag.as_ref()[..8].try_into().expect("an HMAC has more than 8 bytes"))
    }
}

pub(super) fn refused() -> Problem {
    let detail = "pass on what `next` of the page before gave, with the same filters";
    Problem::invalid("cursor_invalid", "cursor", detail)
}

/// The items after a name, and the name to go on from.
pub(super) fn page<'a>(
    all: impl Iterator<Item = (&'a String, Value)>,
    limit: usize,
    after: Option<&str>,
    pages: &Pages,
) -> Response {
    let mut rest = all.skip_while(|(name, _)| after.is_some_and(|after| name.as_str() <= after));
    let taken: Vec<(&String, Value)> = rest.by_ref().take(limit).collect();
    let next = taken.last().map(|(name, _)| pages.name_cursor(name)).filter(|_| rest.next().is_some());
    let items: Vec<Value> = taken.into_iter().map(|(_, item)| item).collect();
    json_answer(StatusCode::OK, &json!({ "items": items, "next": next }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pages(project: i64, list: &str, query: &str) -> Pages {
        Pages::new(b"salt", project, list, &Query::parse(Some(query)).unwrap())
    }

    #[test]
    fn a_cursor_opens_its_own_list_only() {
        let own = pages(1, "events", "type=a&limit=5&cursor=x");
        for position in [0, 1, 35, 1_000_000, i64::MAX, -1] {
            let cursor = own.cursor(position);
            assert_eq!(own.open(&cursor), Some(position));
            assert_eq!(pages(1, "events", "type=a&limit=500").open(&cursor), Some(position));
            for other in [
                pages(2, "events", "type=a"),
                pages(1, "deliveries", "type=a"),
                pages(1, "events", "type=b"),
                pages(1, "events", "source=a"),
                pages(1, "events", "type=a&source="),
                pages(1, "events", ""),
            ] {
                assert_eq!(other.open(&cursor), None);
            }
            assert!(
                !cursor.contains(&format!("{position:x}")) || position < 256,
                "{cursor} tells {position}"
            );
        }
        for text in ["", "c", "c1", "x", &format!("c{}", "0".repeat(32)), &format!("c{}", "é".repeat(16))] {
            assert_eq!(own.open(text), None, "{text}");
        }
    }

    #[test]
    fn a_name_opens_its_own_list_only() {
        let own = pages(1, "services", "");
        let cursor = own.name_cursor("a b/é");
        assert_eq!(own.open_name(&cursor).as_deref(), Some("a b/é"));
        assert_eq!(pages(2, "services", "").open_name(&cursor), None);
        assert_eq!(pages(1, "types of s", "").open_name(&cursor), None);
        for text in ["", "n", "c1", "né", &own.cursor(1), &format!("{cursor}A")] {
            assert_eq!(own.open_name(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_changed_cursor_opens(position in any::<i64>(), place in 1..33usize, digit in "[0-9a-f]") {
            let own = pages(1, "events", "");
            let cursor = own.cursor(position);
            let mut changed = cursor.clone();
            changed.replace_range(place..=place, &digit);
            prop_assert_eq!(own.open(&changed).is_some(), changed == cursor);
        }

        #[test]
        fn any_text_is_answered(text in "\\PC{0,40}") {
            prop_assert_eq!(pages(1, "events", "").open(&text), None);
        }
    }
}
