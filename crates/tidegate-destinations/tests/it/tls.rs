//! Goal: a receiver must prove that it is the host of the URL. Method: certificates made for the test, each wrong in
//! one way, beside a right one.

use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_core::attempt::ErrorClass;
use tidegate_destinations::{HttpTransport, Transport};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::support::*;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::new(vec![]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key.
struct Identity(CertificateDer<'static>, PrivateKeyDer<'static>);

fn identity(authority: Option<&Authority>, name: &str, change: impl Fn(&mut CertificateParams)) -> Identity {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
    change(&mut params);
    let certificate = match authority {
        Some(authority) => params.signed_by(&key, authority),
        None => params.self_signed(&key),
    };
    Identity(certificate.unwrap().der().clone(), PrivateKeyDer::try_from(key.serialize_der()).unwrap())
}

/// What the receiver saw of a handshake: the name asked for and the protocol agreed on.
type Seen = Option<(Option<String>, Option<Vec<u8>>)>;

/// A receiver for one connection, and what it saw.
async fn receiver(identity: Identity, protocols: &[&[u8]]) -> (u16, tokio::task::JoinHandle<Seen>) {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![identity.0], identity.1)
        .unwrap();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let serve = async move {
        let (stream, _) = listener.accept().await.unwrap();
        let mut stream = acceptor.accept(stream).await.ok()?;
        stream.write_all(OK).await.ok()?;
        let session = stream.get_ref().1;
        let seen = (session.server_name().map(str::to_owned), session.alpn_protocol().map(<[u8]>::to_vec));
        Some(seen)
    };
    (port, tokio::spawn(serve))
}

fn trusting(authority: &Authority, port: u16) -> HttpTransport {
    let names = Names::new("receiver.test", vec![vec![([127, 0, 0, 1], port).into()]]);
    HttpTransport::with_roots(policy(&["127.0.0.0/8"]), names, &[authority.der().clone()]).unwrap()
}

#[tokio::test]
async fn a_right_certificate_is_accepted() {
    let authority = authority("trusted");
    for (host, name) in [("receiver.test", Some("receiver.test")), ("127.0.0.1", None)] {
        let (port, seen) = receiver(identity(Some(&authority), host, |_| {}), &[b"http/1.1"]).await;
        let receiver_target = target(&format!("https://{host}:{port}/"));
        let exchange = trusting(&authority, port).send(post(&receiver_target, PLENTY)).await;
        assert!(exchange.phases.tls_us.is_some());
        assert_eq!(exchange.result.unwrap().status, 200);
        assert_eq!(seen.await.unwrap(), Some((name.map(str::to_owned), Some(b"http/1.1".to_vec()))));
    }
}

#[tokio::test]
async fn a_wrong_certificate_is_refused() {
    let (trusted, stranger) = (authority("trusted"), authority("stranger"));
    let expired = |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2020, 2, 1);
    };
    let early = |params: &mut CertificateParams| params.not_before = date_time_ymd(4000, 1, 1);
    let unknown = "the certificate is not signed by a trusted authority";
    let table = [
        (identity(Some(&trusted), "other.test", |_| {}), "the certificate is for another name"),
        (identity(Some(&trusted), "127.0.0.1", |_| {}), "the certificate is for another name"),
        (identity(Some(&trusted), "receiver.test", expired), "the certificate has expired"),
        (identity(Some(&trusted), "receiver.test", early), "the certificate is not valid yet"),
        (identity(Some(&stranger), "receiver.test", |_| {}), unknown),
        (identity(None, "receiver.test", |_| {}), unknown),
    ];
    for (identity, detail) in table {
        let (port, seen) = receiver(identity, &[b"http/1.1"]).await;
        let receiver_target = target(&format!("https://receiver.test:{port}/"));
        let failure = failure(&trusting(&trusted, port), &receiver_target, PLENTY).await;
        assert_eq!((failure.class, failure.detail.as_str()), (ErrorClass::Tls, detail));
        assert_eq!(seen.await.unwrap(), None, "the handshake was not finished");
    }
}

#[tokio::test]
async fn added_authorities_are_trusted_by_their_transport_only() {
    let authority = authority("trusted");
    let (port, _seen) = receiver(identity(Some(&authority), "127.0.0.1", |_| {}), &[]).await;
    let failure = failure(&loopback(), &target(&format!("https://127.0.0.1:{port}/")), PLENTY).await;
    assert_eq!(failure.class, ErrorClass::Tls);
}

#[tokio::test]
async fn other_trouble_of_tls_is_named() {
    let authority = authority("trusted");
    let (port, _seen) = receiver(identity(Some(&authority), "receiver.test", |_| {}), &[b"h2"]).await;
    let transport = trusting(&authority, port);
    let refused = failure(&transport, &target(&format!("https://receiver.test:{port}/")), PLENTY).await;
    assert_eq!(refused.detail, "the receiver refused the TLS handshake");

    let plain = Receiver::start(|_, mut peer| async move { peer.stream.write_all(OK).await }).await;
    let garbage = failure(&loopback(), &target(&format!("https://{}/", plain.address)), PLENTY).await;
    assert_eq!((garbage.class, garbage.detail.as_str()), (ErrorClass::Tls, "the TLS handshake failed"));

    let silent = Receiver::start(|_, peer| async move {
        let _open = peer;
        std::future::pending().await
    })
    .await;
    let late = failure(&loopback(), &target(&format!("https://{}/", silent.address)), SHORT).await;
    assert_eq!(late.detail, "the deadline of 200ms passed while in the TLS handshake");
}
