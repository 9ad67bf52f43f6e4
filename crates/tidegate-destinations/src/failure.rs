//! Failures in words: what a library's error means for a try.
//!
//! The words depend on the kind of error and on the step it happened in, never on what the peer sent, on the URL
//! or on an address. So nothing can leak through them, and two blocked addresses can not be told apart.

use std::error::Error;
use std::io;
use std::time::Duration;

use rustls::CertificateError;
use tidegate_core::attempt::ErrorClass;
use tidegate_core::time::Span;

pub(crate) use crate::transport::Failure;

impl Failure {
    pub(crate) fn new(class: ErrorClass, detail: impl Into<String>) -> Self {
        Self { class, detail: detail.into() }
    }

    /// The one answer for every address that may not be dialled.
    pub(crate) fn blocked() -> Self {
        Self::new(ErrorClass::Blocked, "the address is not allowed: see egress.allow")
    }

    pub(crate) fn connect(error: &io::Error) -> Self {
        let detail = match error.kind() {
            io::ErrorKind::ConnectionRefused => "the connection was refused",
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "the host is unreachable",
            io::ErrorKind::TimedOut => "connecting took too long",
            _ => "no connection could be made",
        };
        Self::new(ErrorClass::Connect, detail)
    }

    pub(crate) fn handshake(error: &io::Error) -> Self {
        match cause::<rustls::Error>(error) {
            Some(error) => Self::new(ErrorClass::Tls, tls_detail(error)),
            None => Self::new(ErrorClass::Tls, "the connection broke during the TLS handshake"),
        }
    }
}

/// What was being done when it failed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    Resolve,
    Connect,
    Handshake,
    Send,
    Read,
}

impl Step {
    pub(crate) fn timed_out(self, timeout: Duration) -> Failure {
        let doing = match self {
            Self::Resolve => "looking up the host name",
            Self::Connect => "connecting",
            Self::Handshake => "in the TLS handshake",
            Self::Send => "sending the request or waiting for the answer",
            Self::Read => "reading the answer",
        };
        Failure::new(ErrorClass::Timeout, format!("the deadline of {} passed while {doing}", Span(timeout)))
    }

    /// For errors of an established connection.
    pub(crate) fn failed(self, error: &hyper::Error) -> Failure {
        if let Some(error) = cause::<rustls::Error>(error) {
            return Failure::new(ErrorClass::Tls, tls_detail(error));
        }
        if error.is_parse_too_large() {
            return Failure::new(ErrorClass::Protocol, "the head of the answer is too large");
        }
        if error.is_user() {
            return Failure::new(ErrorClass::Protocol, "the request could not be written");
        }
        let is_broken = match cause::<io::Error>(error) {
            Some(error) => !matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData),
            None => error.is_incomplete_message() || error.is_canceled() || error.is_closed(),
        };
        match (is_broken, self) {
            (false, _) => Failure::new(ErrorClass::Protocol, "the answer is not valid HTTP"),
            (true, Self::Read) => Failure::new(ErrorClass::Reset, "the connection broke inside the answer"),
            (true, _) => Failure::new(ErrorClass::Reset, "the connection broke before the answer"),
        }
    }
}

fn tls_detail(error: &rustls::Error) -> &'static str {
    match error {
        rustls::Error::InvalidCertificate(problem) => match problem {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "the certificate has expired"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "the certificate is not valid yet"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "the certificate is for another name"
            }
            CertificateError::UnknownIssuer => "the certificate is not signed by a trusted authority",
            CertificateError::Revoked => "the certificate is revoked",
            _ => "the certificate is not valid",
        },
        rustls::Error::AlertReceived(_) => "the receiver refused the TLS handshake",
        _ => "the TLS handshake failed",
    }
}

/// The first cause of this type in an error's chain, looking inside the wrappers of `io::Error` too.
fn cause<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<E>() {
            return Some(found);
        }
        // The source of an `io::Error` is the source of what it wraps, so the wrapped error itself is asked for.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = match wrapped {
            Some(inner) => Some(inner as &(dyn Error + 'static)),
            None => error.source(),
        };
    }
    None
}
