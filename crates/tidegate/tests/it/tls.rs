//! The TLS listener: who may speak, what a renewal does, and what a broken one does not.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{
    self, ClientConfig, ClientConnection, RootCertStore, SupportedProtocolVersion, crypto, version,
};

use crate::client::{PATIENCE, within_patience};
use crate::server::{ADMIN_KEY, Folder, Server, Setup};

/// An authority of our own, and where its files are.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: Folder,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).expect("no names");
        params.distinguished_name.push(DnType::CommonName, "test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer =
            CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("a certificate");
        let authority = Self { issuer, folder: Folder::new() };
        fs::write(authority.file("ca.pem"), pem("CERTIFICATE", authority.issuer.der())).expect("written");
        authority
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Writes a certificate for this machine; returns it.
    fn issue(&self) -> CertificateDer<'static> {
        let key = KeyPair::generate().expect("a key");
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let params = CertificateParams::new(names).expect("names");
        let certificate = params.signed_by(&key, &self.issuer).expect("signed").der().clone();
        write_private(&self.file("key.pem"), &pem("PRIVATE KEY", &key.serialize_der()));
        fs::write(self.file("cert.pem"), pem("CERTIFICATE", &certificate)).expect("written");
        certificate
    }

    /// A server with what was issued, and more variables.
    fn start(&self, more: &[(&'static str, &str)]) -> Server {
        let mut setup = Setup::usual();
        let own = [("TIDEGATE_TLS_CERT", "cert.pem"), ("TIDEGATE_TLS_KEY", "key.pem")];
        setup.variables = own.map(|(name, file)| (name, self.file(file).display().to_string())).to_vec();
        setup.variables.extend(more.iter().map(|(name, value)| (*name, (*value).to_owned())));
        Server::start_with(&setup)
    }

    /// Shakes hands and asks one thing. Says what was presented, agreed on and answered.
    fn ask(&self, server: &Server, path: &str, offer: &Offer) -> Result<Seen, String> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).expect("an authority");
        let mut config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_protocol_versions(&[offer.version])
            .expect("a version")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![offer.protocol.to_vec()];
        let name = ServerName::try_from("localhost").expect("a name");
        let session = ClientConnection::new(Arc::new(config), name).expect("a session");
        let socket = TcpStream::connect(server.address).expect("the server listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let mut stream = rustls::StreamOwned::new(session, socket);
        let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map_err(|error| error.to_string())?;
        let presented = stream.conn.peer_certificates().expect("a certificate")[0].clone().into_owned();
        Ok(Seen { presented, protocol: stream.conn.alpn_protocol().map(<[u8]>::to_vec), text })
    }
}

struct Offer {
    version: &'static SupportedProtocolVersion,
    protocol: &'static [u8],
}

const USUAL: Offer = Offer { version: &version::TLS13, protocol: b"http/1.1" };

struct Seen {
    presented: CertificateDer<'static>,
    protocol: Option<Vec<u8>>,
    text: String,
}

fn pem(label: &str, der: &[u8]) -> String {
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der))
}

fn write_private(path: &Path, text: &str) {
    fs::write(path, text).expect("written");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("private");
}

fn send(server: &Server, ca: Option<&Path>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.env_clear().env("TIDEGATE_KEY", ADMIN_KEY);
    let url = format!("https://localhost:{}", server.address.port());
    command.args(["send", "--source", "s", "--type", "t", "--data", "{}", "--url", &url]);
    if let Some(path) = ca {
        command.arg("--ca").arg(path);
    }
    command.output().expect("the binary runs")
}

#[test]
fn https_is_spoken_to_whoever_knows_the_authority() {
    let authority = Authority::new();
    let certificate = authority.issue();
    let mut server = authority.start(&[]);
    let sent = send(&server, Some(&authority.file("ca.pem")));
    assert!(sent.status.success(), "{sent:?}");
    let refused = send(&server, None);
    assert_eq!(refused.status.code(), Some(5), "{refused:?}");
    assert!(String::from_utf8_lossy(&refused.stderr).contains("--ca"), "{refused:?}");
    let nonsense = send(&server, Some(&authority.file("key.pem")));
    assert_eq!(nonsense.status.code(), Some(2), "{nonsense:?}");
    for version in [&version::TLS12, &version::TLS13] {
        let seen = authority.ask(&server, "/livez", &Offer { version, ..USUAL }).expect("an answer");
        assert_eq!((&seen.presented, seen.protocol.as_deref()), (&certificate, Some(&b"http/1.1"[..])));
        assert!(seen.text.starts_with("HTTP/1.1 200"), "{}", seen.text);
    }
    assert!(authority.ask(&server, "/livez", &Offer { protocol: b"h2", ..USUAL }).is_err());
    let mut plain = server.admin().connect();
    plain.write_all(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n").expect("written");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP/"), "plain http is not answered");
    assert!(!server.log().contains("tls.key"), "a private key is nothing to warn of: {}", server.log());
    server.stop();
}

#[test]
fn a_renewed_certificate_is_taken_up_and_a_broken_one_is_not() {
    let authority = Authority::new();
    let first = authority.issue();
    let server = authority.start(&[]);
    let presented = |wanted: &CertificateDer<'_>| {
        within_patience(|| {
            authority.ask(&server, "/livez", &USUAL).is_ok_and(|seen| seen.presented == *wanted)
        })
    };
    assert!(presented(&first));
    let second = authority.issue();
    assert!(presented(&second), "new connections look at the files");

    fs::write(authority.file("cert.pem"), "-----BEGIN CERTIFICATE-----\nAAAA\n").expect("written");
    server.signal("-HUP");
    server.until_logged("the old one stays");
    let ready = authority.ask(&server, "/readyz", &USUAL).expect("an answer");
    assert_eq!(ready.presented, second, "the old certificate stays");
    assert!(ready.text.starts_with("HTTP/1.1 200"), "events are accepted: {}", ready.text);
    assert!(ready.text.contains("degraded") && ready.text.contains(r#""tls":{"#), "{}", ready.text);

    let third = authority.issue();
    fs::set_permissions(authority.file("key.pem"), fs::Permissions::from_mode(0o644)).expect("public");
    server.signal("-HUP");
    assert!(presented(&third), "a whole one is taken up again");
    let ready = authority.ask(&server, "/readyz", &USUAL).expect("an answer");
    assert!(ready.text.contains(r#""ready""#), "{}", ready.text);
    server.until_logged("every user of this machine can use tls.key");
}

#[test]
fn what_can_not_be_used_is_refused_at_the_start() {
    let (authority, other) = (Authority::new(), Authority::new());
    authority.issue();
    other.issue();
    let refusal = |cert: PathBuf, key: Option<PathBuf>| {
        let shown = |path: PathBuf| path.display().to_string();
        let mut variables = vec![("TIDEGATE_TLS_CERT", shown(cert))];
        variables.extend(key.map(|key| ("TIDEGATE_TLS_KEY", shown(key))));
        Setup { variables, ..Setup::usual() }.refusal(&Folder::new())
    };
    for (text, part) in [
        (refusal(authority.file("cert.pem"), None), "tls.key"),
        (refusal(authority.file("nowhere"), Some(authority.file("key.pem"))), "tls.cert"),
        (refusal(authority.file("cert.pem"), Some(authority.file("cert.pem"))), "tls.key"),
        (refusal(authority.file("key.pem"), Some(authority.file("key.pem"))), "no certificate"),
        (refusal(authority.file("cert.pem"), Some(other.file("key.pem"))), "together"),
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_handshake_that_never_ends_is_ended_and_keeps_nobody_out() {
    let authority = Authority::new();
    authority.issue();
    let server =
        authority.start(&[("TIDEGATE_TIMEOUTS_HANDSHAKE", "500ms"), ("TIDEGATE_LIMITS_HANDSHAKES", "64")]);
    let mut silent: Vec<TcpStream> = (0..32).map(|_| server.admin().connect()).collect();
    for stream in silent.iter_mut().step_by(2) {
        stream.write_all(&[0x16, 0x03, 0x01]).expect("the beginning of a handshake");
    }
    authority.ask(&server, "/livez", &USUAL).expect("an answer");
    for mut stream in silent {
        // Closed, or reset because of what was left unread; never silent for long.
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}
