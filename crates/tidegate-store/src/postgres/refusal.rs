//! Why a server lets nobody in, and what to do about it: told alike by a start that fails and by `tidegate doctor`.

use std::io;

use rustls::CertificateError::{
    Expired, ExpiredContext, NotValidForName, NotValidForNameContext, UnknownIssuer,
};
use tokio_postgres::error::SqlState;

use super::connect::root_cause;
use crate::Error;

const UNREACHED: &str = "start it, or correct the address in store.url";
const READ_ONLY: &str =
    "name all servers in store.url (postgres://…@one:5432,two:5432/…), so that the primary is found";
const TLS_OFF: &str =
    "set ssl = on in PostgreSQL, or, in a network that you trust, add sslmode=disable to store.url";
const TLS_UNKNOWN: &str = "add sslrootcert=FILE to store.url, with the certificate of the authority that signed the \
    server's (in PEM), or, in a network that you trust, sslmode=disable";
const TLS_NAME: &str = "connect by a name that stands in the server's certificate, or add sslmode=verify-ca to store.url, \
    which does not look at the name";
const TLS_EXPIRED: &str = "renew the server's certificate";
const TLS_OTHER: &str = "let the server have a certificate that an authority signed and name that one with sslrootcert=FILE \
    in store.url, or, in a network that you trust, add sslmode=disable";

/// Why there is no session.
#[derive(Debug)]
pub(crate) struct Refusal {
    /// What was found.
    pub(crate) detail: String,
    /// What to do about it.
    pub(crate) remedy: &'static str,
}

impl Refusal {
    pub(super) fn silent() -> Self {
        let remedy = "look at its log and at the way to it";
        Self { detail: "the database does not answer".to_owned(), remedy }
    }

    /// Of several servers each is told; what to do is told of the one that could have been the primary, if there is one.
    pub(super) fn of_all(mut refusals: Vec<(String, Self)>) -> Self {
        if refusals.len() == 1 {
            return refusals.remove(0).1;
        }
        let worth_a_look =
            refusals.iter().map(|(_, refusal)| refusal.remedy).find(|remedy| *remedy != READ_ONLY);
        let told: Vec<String> =
            refusals.iter().map(|(host, refusal)| format!("{host}: {}", refusal.detail)).collect();
        Self {
            detail: told.join("; "),
            remedy: worth_a_look.unwrap_or("promote one of them: none is the primary"),
        }
    }

    pub(super) fn of(error: &tokio_postgres::Error) -> Self {
        Self { detail: root_cause(error), remedy: remedy(error) }
    }
}

impl From<Refusal> for Error {
    fn from(Refusal { detail, remedy }: Refusal) -> Self {
        Error::Unavailable(format!("{detail}: {remedy}"))
    }
}

fn remedy(error: &tokio_postgres::Error) -> &'static str {
    if let Some(code) = error.code() {
        return by_code(code);
    }
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(this) = cause {
        if let Some(error) = this.downcast_ref::<io::Error>() {
            let told = error.get_ref().and_then(|told| told.downcast_ref::<rustls::Error>());
            return match told {
                Some(told) => by_certificate(told),
                None if error.kind() == io::ErrorKind::PermissionDenied => READ_ONLY,
                None => UNREACHED,
            };
        }
        cause = this.source();
    }
    // The only thing that is known by its words alone.
    if root_cause(error).contains("TLS") { TLS_OFF } else { UNREACHED }
}

fn by_code(code: &SqlState) -> &'static str {
    match code.code() {
        "53300" => {
            "raise max_connections (or the role's CONNECTION LIMIT), or let fewer others connect: a process takes up to 10"
        }
        "3D000" => "make it with CREATE DATABASE, or correct the database in store.url",
        "28P01" => "correct the user or the password in store.url",
        "28000" => {
            "correct the user in store.url, or let pg_hba.conf allow the connection (if it asks for TLS: sslmode=verify-full)"
        }
        "42501" => "GRANT CONNECT ON DATABASE … TO the role",
        // It starts, stops or recovers.
        "57P03" => "wait until it has started; its log tells how far it is",
        _ => "do what its message says; its log may tell more",
    }
}

fn by_certificate(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(UnknownIssuer) => TLS_UNKNOWN,
        rustls::Error::InvalidCertificate(NotValidForName | NotValidForNameContext { .. }) => TLS_NAME,
        rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. }) => TLS_EXPIRED,
        _ => TLS_OTHER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_trouble_has_a_remedy_of_its_own() {
        let of = |error| by_certificate(&rustls::Error::InvalidCertificate(error));
        assert!(of(UnknownIssuer).contains("sslrootcert=FILE"));
        assert!(of(NotValidForName).contains("verify-ca") && of(Expired).contains("renew"));
        assert!(by_code(&SqlState::TOO_MANY_CONNECTIONS).contains("max_connections"));
        assert!(by_code(&SqlState::INVALID_CATALOG_NAME).contains("CREATE DATABASE"));
        assert!(by_code(&SqlState::INVALID_PASSWORD).contains("password"));
        assert!(by_code(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION).contains("pg_hba.conf"));
    }
}
