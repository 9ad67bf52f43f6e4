//! What a URL of PostgreSQL says, in the forms that libpq knows: one server or several, each with a port of its own.
//!
//! A URL with several servers becomes one URL for each, so that each is tried with a patience of its own. No message tells
//! anything of a URL but names of options, since a password may stand where it does not belong.

use std::borrow::Cow;

use url::form_urlencoded;

use super::connect::unusable;
use crate::Result;

/// A URL taken apart.
pub(super) struct Address {
    /// One URL for each server, with the options that PostgreSQL's own URLs know.
    pub(super) servers: Vec<String>,
    /// What is ours, and what is understood here.
    pub(super) schema: Option<String>,
    pub(super) sslrootcert: Option<String>,
    pub(super) sslmode: Option<String>,
}

/// Takes a URL apart, or says what is wrong with it.
pub(super) fn parse(url: &str) -> Result<Address> {
    let not_one =
        || unusable("the URL of the store is no URL such as postgres://user:password@host/database");
    let (scheme, rest) = url.split_once("://").ok_or_else(not_one)?;
    if !matches!(scheme, "postgres" | "postgresql") {
        return Err(not_one());
    }
    let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut address = Address { servers: Vec::new(), schema: None, sslrootcert: None, sslmode: None };
    let options = address.take_options(query)?;
    let (user, place) = user_and_place(place);
    let (hosts, path) = place.find('/').map_or((place, ""), |slash| place.split_at(slash));
    address.servers =
        hosts.split(',').map(|host| format!("{scheme}://{user}{host}{path}{options}")).collect();
    Ok(address)
}

/// A user and a password may hold an @ as it is; the last one before the path ends them.
fn user_and_place(place: &str) -> (String, &str) {
    let path = place.find('/').unwrap_or(place.len());
    match place[..path].rfind('@').or_else(|| place.find('@')) {
        Some(at) => (format!("{}@", place[..at].replace('@', "%40")), &place[at + 1..]),
        None => (String::new(), place),
    }
}

impl Address {
    /// Keeps what is understood here, and gives back the rest as it stands in a URL.
    fn take_options(&mut self, query: &str) -> Result<String> {
        let mut rest = form_urlencoded::Serializer::new(String::new());
        let mut is_any_left = false;
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            if !name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') {
                return Err(unusable(
                    "behind the ? of the store's URL stands something else than options: in a password write it as %3F",
                ));
            }
            let kept = match &*name {
                "schema" => &mut self.schema,
                "sslrootcert" => &mut self.sslrootcert,
                "sslmode" => &mut self.sslmode,
                _ => {
                    rest.append_pair(&name, &value);
                    is_any_left = true;
                    continue;
                }
            };
            *kept = Some(Cow::into_owned(value));
        }
        // PostgreSQL's URLs know no plus for a space.
        let rest = rest.finish().replace('+', "%20");
        Ok(if is_any_left { format!("?{rest}") } else { String::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_server_has_a_port_of_its_own() {
        let address =
            parse("postgres://u:p@h1:15432,h2,[::1]:15433/tide?target_session_attrs=read-write&schema=s");
        let address = address.unwrap();
        assert_eq!(
            address.servers,
            [
                "postgres://u:p@h1:15432/tide?target_session_attrs=read-write",
                "postgres://u:p@h2/tide?target_session_attrs=read-write",
                "postgres://u:p@[::1]:15433/tide?target_session_attrs=read-write",
            ]
        );
        assert_eq!(address.schema.as_deref(), Some("s"));
    }

    #[test]
    fn a_password_stays_whole_whatever_is_in_it() {
        let servers = |url: &str| parse(url).unwrap().servers;
        assert_eq!(servers("postgres://u:p@ss@h/d"), ["postgres://u:p%40ss@h/d"]);
        assert_eq!(servers("postgres://u:a,b@h1,h2/d"), ["postgres://u:a,b@h1/d", "postgres://u:a,b@h2/d"]);
        assert_eq!(servers("postgres://h/d?options=-c%20x"), ["postgres://h/d?options=-c%20x"]);
        let told = parse("postgres://u:p?ss@h/d").err().unwrap().to_string();
        assert!(told.contains("%3F") && !told.contains("ss@h"), "{told}");
    }
}
