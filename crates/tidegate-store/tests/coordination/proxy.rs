//! The way to a server, which can be closed, blocked and opened again.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How the way is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Bytes pass.
    Open,
    /// Connections end, and new ones too.
    Closed,
    /// Connections stay, and nothing passes.
    Blocked,
}

/// A door on loopback.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    way: Arc<watch::Sender<Way>>,
}

impl Proxy {
    /// Opens the way to `server`.
    pub(crate) async fn to(server: String) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let way = Arc::new(watch::Sender::new(Way::Open));
        let ways = Arc::clone(&way);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, server.clone(), ways.subscribe()));
            }
        });
        Self { address, way }
    }

    pub(crate) fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

async fn pass(mut client: TcpStream, server: String, mut way: watch::Receiver<Way>) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    loop {
        let now = *way.borrow_and_update();
        tokio::select! {
            biased;
            changed = way.changed() => if changed.is_err() { return },
            _ = tokio::io::copy_bidirectional(&mut client, &mut server), if now == Way::Open => return,
            () = std::future::ready(()), if now == Way::Closed => return,
        }
    }
}
