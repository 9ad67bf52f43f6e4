//! Connecting: from a target to an open connection, past the guard.
//!
//! The name is looked up once, every answer is judged, and only judged addresses are dialled: what the name system
//! says a moment later does not matter. One refused answer refuses all, since a mixture is an attack or a mistake.
//! Literal addresses take the same way. Anything doubtful (no answer, an error) fails closed.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use tidegate_core::attempt::ErrorClass;
use tidegate_core::egress::Policy;
use tidegate_core::limits::{CONNECT_ADDRESSES_MAX, RESPONSE_HEAD_BYTES_MAX};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio_rustls::TlsConnector;

use crate::failure::{Failure, Step};
use crate::pool::Connection;
use crate::resolve::Resolve;
use crate::target::{Host, Target};
use crate::transport::{Progress, micros_since, now};

/// How long a dropped connection may take to say goodbye before its socket is closed regardless.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

/// Opens connections that the policy allows.
pub(crate) struct Connector {
    policy: Policy,
    resolver: Arc<dyn Resolve>,
    tls: TlsConnector,
    http: http1::Builder,
}

impl Connector {
    pub(crate) fn new(
        policy: Policy,
        resolver: Arc<dyn Resolve>,
        roots: &[CertificateDer<'static>],
    ) -> Result<Self, rustls::Error> {
        let tls = TlsConnector::from(Arc::new(tls_config(roots)?));
        let mut http = http1::Builder::new();
        // The number of headers stays at the library's 100: naming it would cost an allocation per answer.
        http.max_buf_size(RESPONSE_HEAD_BYTES_MAX);
        Ok(Self { policy, resolver, tls, http })
    }

    pub(crate) async fn connect(
        &self,
        target: &Target,
        progress: &mut Progress,
    ) -> Result<Connection, Failure> {
        let addresses = self.addresses(target, progress).await?;
        self.judge(target, &addresses)?;
        let stream = self.dial(target, &addresses, progress).await?;
        if target.is_plain() {
            return self.open(stream).await;
        }
        progress.step = Step::Handshake;
        let began = now();
        let name = target.server_name().ok_or_else(|| {
            Failure::new(ErrorClass::Tls, "no certificate can be issued for this host name")
        })?;
        let stream = self.tls.connect(name.clone(), stream).await;
        progress.phases.tls_us = Some(micros_since(began));
        self.open(stream.map_err(|error| Failure::handshake(&error))?).await
    }

    async fn addresses(&self, target: &Target, progress: &mut Progress) -> Result<Vec<SocketAddr>, Failure> {
        let name = match target.host() {
            Host::Address(address) => return Ok(vec![SocketAddr::new(*address, target.port())]),
            Host::Name(name) => name,
        };
        progress.step = Step::Resolve;
        let began = now();
        let answer = self.resolver.resolve(name, target.port()).await;
        progress.phases.dns_us = Some(micros_since(began));
        answer
            .ok()
            .filter(|addresses| !addresses.is_empty())
            .ok_or_else(|| Failure::new(ErrorClass::Dns, "the host name did not resolve"))
    }

    fn judge(&self, target: &Target, addresses: &[SocketAddr]) -> Result<(), Failure> {
        let is_fine = addresses.iter().all(|address| self.may_dial(target, *address));
        if is_fine { Ok(()) } else { Err(Failure::blocked()) }
    }

    fn may_dial(&self, target: &Target, address: SocketAddr) -> bool {
        self.policy.allows(address.ip())
            && !self.policy.is_own(address)
            && (!target.is_plain() || self.policy.may_use_plain_http(address.ip()))
    }

    /// Tries the addresses in order, giving each its share of the time that is left, so that a silent one does not
    /// hide those behind it.
    async fn dial(
        &self,
        target: &Target,
        addresses: &[SocketAddr],
        progress: &mut Progress,
    ) -> Result<TcpStream, Failure> {
        progress.step = Step::Connect;
        let began = now();
        let addresses = &addresses[..addresses.len().min(CONNECT_ADDRESSES_MAX)];
        let mut failure = Failure::connect(&io::ErrorKind::Other.into());
        for (index, address) in addresses.iter().enumerate() {
            let left = progress.deadline.saturating_duration_since(now());
            let share = left / u32::try_from(addresses.len() - index).unwrap_or(1);
            match tokio::time::timeout(share, TcpStream::connect(*address)).await {
                Ok(Ok(stream)) => {
                    progress.phases.connect_us = Some(micros_since(began));
                    return self.accept(target, stream);
                }
                Ok(Err(error)) => failure = Failure::connect(&error),
                Err(_) => failure = Failure::connect(&io::ErrorKind::TimedOut.into()),
            }
        }
        progress.phases.connect_us = Some(micros_since(began));
        Err(failure)
    }

    /// The last look: the peer the kernel says we reached.
    fn accept(&self, target: &Target, stream: TcpStream) -> Result<TcpStream, Failure> {
        let peer = stream.peer_addr().map_err(|error| Failure::connect(&error))?;
        if !self.may_dial(target, peer) {
            return Err(Failure::blocked());
        }
        stream.set_nodelay(true).map_err(|error| Failure::connect(&error))?;
        Ok(stream)
    }

    async fn open<S>(&self, stream: S) -> Result<Connection, Failure>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let handshake = self.http.handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await;
        let (sender, driver) = handshake.map_err(|error| Step::Connect.failed(&error))?;
        let (owned, dropped) = oneshot::channel::<()>();
        tokio::spawn(async move {
            let mut driver = pin!(driver);
            tokio::select! {
                biased;
                _ = &mut driver => {}
                _ = dropped => {
                    let _ = tokio::time::timeout(CLOSE_WITHIN, driver).await;
                }
            }
        });
        Ok(Connection::new(sender, owned))
    }
}

fn tls_config(roots: &[CertificateDer<'static>]) -> Result<ClientConfig, rustls::Error> {
    let mut store = RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() };
    for root in roots {
        store.add(root.clone())?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(store)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
