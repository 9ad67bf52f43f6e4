//! Goal: connections are used again, and a reused one never costs a delivery nor sends one twice. Method: count
//! connections and requests at the receiver; close connections at the worst moments.

use std::io::{Read as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use tidegate_core::attempt::ErrorClass;
use tidegate_destinations::Transport;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::*;

#[tokio::test]
async fn one_connection_serves_one_request_after_another() {
    let framings: [&[u8]; 4] = [
        OK,
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    ];
    for bytes in framings {
        let receiver = Receiver::answering(bytes).await;
        let (transport, receiver_target) = (loopback(), receiver.target());
        let first = transport.send(post(&receiver_target, PLENTY)).await;
        assert!(first.phases.connect_us.is_some() && first.phases.wait_us.is_some());
        for _ in 0..10 {
            let next = transport.send(post(&receiver_target, PLENTY)).await;
            assert!(next.result.is_ok());
            assert_eq!((next.phases.dns_us, next.phases.connect_us, next.phases.tls_us), (None, None, None));
        }
        assert_eq!((receiver.accepted(), receiver.requests().len()), (1, 11));
    }
}

#[tokio::test]
async fn answers_that_end_the_connection_are_not_reused() {
    let receiver =
        Receiver::answering(&b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"[..]).await;
    let (transport, receiver_target) = (loopback(), receiver.target());
    for _ in 0..3 {
        answer(&transport, &receiver_target).await;
    }
    assert_eq!((receiver.accepted(), receiver.requests().len()), (3, 3));
}

#[tokio::test]
async fn requests_at_once_have_connections_of_their_own() {
    let receiver = Receiver::answering(OK).await;
    let (transport, receiver_target) = (loopback(), receiver.target());
    for _ in 0..2 {
        let three = tokio::join!(
            answer(&transport, &receiver_target),
            answer(&transport, &receiver_target),
            answer(&transport, &receiver_target)
        );
        assert_eq!((three.0.status, three.1.status, three.2.status), (200, 200, 200));
    }
    assert_eq!((receiver.accepted(), receiver.requests().len()), (3, 6));
}

/// The receiver is a thread and this test blocks while it closes the connection. Then it lets the runtime see the
/// sockets, but is itself the first to go on: the next request is handed to a connection that looks alive, and is
/// handed back unwritten.
#[tokio::test]
async fn a_connection_closed_while_idle_costs_nothing() {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let (close, must_close) = mpsc::channel();
    let (closed, is_closed) = mpsc::channel();
    let receiver = thread::spawn(move || {
        let serve = |_| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut bytes = [0; 4096];
            let len = stream.read(&mut bytes).unwrap();
            stream.write_all(OK).unwrap();
            must_close.recv().unwrap();
            drop(stream);
            closed.send(()).unwrap();
            String::from_utf8_lossy(&bytes[..len]).matches("POST ").count()
        };
        (0..3).map(serve).collect::<Vec<_>>()
    });
    let (transport, receiver_target) = (loopback(), target(&format!("http://{address}/")));
    for _ in 0..3 {
        assert_eq!(answer(&transport, &receiver_target).await.status, 200);
        close.send(()).unwrap();
        is_closed.recv().unwrap();
        tokio::task::yield_now().await;
    }
    assert_eq!(receiver.join().unwrap(), [1, 1, 1], "each request was seen once");
}

/// Whether the request was written before the receiver hung up is a matter of chance, the class is not.
#[tokio::test]
async fn a_fresh_connection_closed_at_once_is_a_reset() {
    let receiver = Receiver::start(|_, peer| async move {
        drop(peer);
        Ok(())
    })
    .await;
    for sent in 1..=50 {
        let failure = failure(&loopback(), &receiver.target(), PLENTY).await;
        assert_eq!(failure.class, ErrorClass::Reset);
        assert_eq!(receiver.accepted(), sent, "not tried again");
    }
}

#[tokio::test]
async fn a_request_that_may_have_arrived_is_not_sent_again() {
    let receiver = Receiver::start(|_, mut peer| async move {
        peer.read_request().await?;
        peer.stream.write_all(OK).await?;
        peer.read_request().await
    })
    .await;
    let (transport, receiver_target) = (loopback(), receiver.target());
    assert_eq!(answer(&transport, &receiver_target).await.status, 200);
    let failure = failure(&transport, &receiver_target, PLENTY).await;
    assert_eq!(failure.class, ErrorClass::Reset);
    assert_eq!((receiver.accepted(), receiver.requests().len()), (1, 2));
}

#[tokio::test]
async fn dropping_a_target_closes_its_connections() {
    let (closed, mut is_closed) = tokio::sync::mpsc::unbounded_channel();
    let receiver = Receiver::start(move |_, mut peer| {
        let closed = closed.clone();
        async move {
            peer.read_request().await?;
            peer.stream.write_all(OK).await?;
            closed.send(peer.stream.read(&mut [0; 1]).await?).map_err(std::io::Error::other)
        }
    })
    .await;
    let receiver_target = receiver.target();
    assert_eq!(answer(&loopback(), &receiver_target).await.status, 200);
    drop(receiver_target);
    assert_eq!(is_closed.recv().await, Some(0));
}

#[tokio::test]
async fn nothing_leaves_that_may_not_any_more_when_the_connection_stands() {
    let receiver = Receiver::answering(OK).await;
    let (transport, target) = (loopback(), receiver.target());
    let asked = AtomicUsize::new(0);
    let until_connected = || asked.fetch_add(1, Ordering::SeqCst) == 0;
    assert!(transport.send_if(post(&target, PLENTY), &until_connected).await.is_none());
    assert_eq!(asked.load(Ordering::SeqCst), 2, "before connecting, and before the first byte");
    assert!(transport.send_if(post(&target, PLENTY), &|| false).await.is_none());
    answer(&transport, &target).await;
    assert_eq!(receiver.requests().len(), 1, "the one that may");
}
