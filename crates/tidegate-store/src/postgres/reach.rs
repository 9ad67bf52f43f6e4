//! Which server a session goes to: servers, and the addresses of each, are tried one shortly after the other, and the first
//! that answers is taken.
//!
//! One that takes a connection and then says nothing, or whose packets are dropped, holds up the others for a moment only.
//! The one that answered last is tried first, so that an outage of another costs nothing.

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::net::lookup_host;
use tokio::task::JoinSet;
use tokio_postgres::config::{Host, TargetSessionAttrs};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::{Client, Config, Connection, Socket};

use super::connect::{PORT_USUAL, host, in_time};
use super::refusal::Refusal;
use crate::coordination::timer::pause;
use crate::{Error, Result};

/// How long one is waited for before the next is tried beside it: longer than a healthy server takes, TLS included. Several
/// that hang still leave time to reach another within a beat.
const HEAD_START: Duration = Duration::from_millis(300);
/// Connects to one target that are under way beside each other.
const CONNECTS_MAX: usize = 5;

/// What answered last, for everybody who connects to the same target.
#[derive(Default)]
pub(super) struct Answered(Mutex<Option<(usize, Option<IpAddr>)>>);

impl Answered {
    fn get(&self) -> Option<(usize, Option<IpAddr>)> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, server: usize, address: Option<IpAddr>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((server, address));
    }
}

/// What a server gives.
type Reached<S> = (Client, Connection<Socket, S>);

/// A session with one of the servers.
pub(super) async fn reach<T>(
    servers: &[Config],
    tls: T,
    answered: &Answered,
) -> std::result::Result<Reached<T::Stream>, Refusal>
where
    T: MakeTlsConnect<Socket> + Clone + Send + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let last = answered.get();
    let mut order: Vec<usize> = (0..servers.len()).collect();
    order.sort_by_key(|server| last.is_none_or(|(last, _)| last != *server));
    let attempts = order.iter().map(|&server| {
        let (config, tls) = (servers[server].clone(), tls.clone());
        let before = last.filter(|(last, _)| *last == server).and_then(|(_, address)| address);
        async move {
            match reach_one(&config, tls, before).await {
                Ok((address, reached)) => Ok((server, address, reached)),
                Err(refusal) => Err((server, host(&config), refusal)),
            }
        }
    });
    match first_of(attempts.collect()).await {
        Ok((server, address, reached)) => {
            answered.set(server, address);
            Ok(reached)
        }
        Err(mut refusals) => {
            refusals.sort_by_key(|(server, ..)| *server);
            Err(Refusal::of_all(refusals.into_iter().map(|(_, host, refusal)| (host, refusal)).collect()))
        }
    }
}

/// A session with one server, and at which of its addresses if it has several; `before` is tried first.
async fn reach_one<T>(
    config: &Config,
    tls: T,
    before: Option<IpAddr>,
) -> std::result::Result<(Option<IpAddr>, Reached<T::Stream>), Refusal>
where
    T: MakeTlsConnect<Socket> + Clone + Send + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let mut addresses = in_time(addresses(config)).await?;
    sort_before(&mut addresses, before);
    reach_at(config, tls, addresses).await
}

fn sort_before(addresses: &mut [IpAddr], before: Option<IpAddr>) {
    addresses.sort_by_key(|address| before != Some(*address));
}

async fn reach_at<T>(
    config: &Config,
    tls: T,
    addresses: Vec<IpAddr>,
) -> std::result::Result<(Option<IpAddr>, Reached<T::Stream>), Refusal>
where
    T: MakeTlsConnect<Socket> + Clone + Send + 'static,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let candidates = if addresses.len() < 2 {
        vec![(None, config.clone())]
    } else {
        // Some of them may be standbys, which are of no use.
        let at = |address: IpAddr| {
            let mut config = config.clone();
            config.hostaddr(address).target_session_attrs(TargetSessionAttrs::ReadWrite);
            (Some(address), config)
        };
        addresses.into_iter().map(at).collect()
    };
    let attempts = candidates.into_iter().map(|(address, config)| {
        let tls = tls.clone();
        async move {
            match in_time(config.connect(tls)).await {
                Ok(Ok(reached)) => Ok((address, reached)),
                Ok(Err(error)) => Err(Refusal::of(&error)),
                Err(silent) => Err(silent),
            }
        }
    });
    first_of(attempts.collect()).await.map_err(|mut refusals| refusals.pop().unwrap_or_else(Refusal::silent))
}

/// The addresses of a server that is known by one name. Otherwise none: whoever connects finds out, and tells what is wrong.
async fn addresses(config: &Config) -> Vec<IpAddr> {
    let ([Host::Tcp(name)], []) = (config.get_hosts(), config.get_hostaddrs()) else { return Vec::new() };
    let port = config.get_ports().first().copied().unwrap_or(PORT_USUAL);
    let mut addresses: Vec<IpAddr> = Vec::new();
    for found in lookup_host((name.as_str(), port)).await.into_iter().flatten() {
        if !addresses.contains(&found.ip()) {
            addresses.push(found.ip());
        }
    }
    addresses
}

/// The first that succeeds. The next begins as soon as one has failed, or when the one before it has had its
/// [`HEAD_START`]; those that are not needed any more are given up.
async fn first_of<T, E, F>(attempts: Vec<F>) -> std::result::Result<T, Vec<E>>
where
    F: Future<Output = std::result::Result<T, E>> + Send + 'static,
    T: Send + 'static,
    E: Send + 'static,
{
    let mut waiting = attempts.into_iter();
    let mut under_way = JoinSet::new();
    let mut failures = Vec::new();
    loop {
        if let Some(next) = waiting.next() {
            under_way.spawn(next);
        }
        tokio::select! {
            biased;
            ended = under_way.join_next() => match ended {
                Some(Ok(Ok(found))) => return Ok(found),
                Some(Ok(Err(failure))) => failures.push(failure),
                // It panicked, and has told so.
                Some(Err(_)) => {}
                None => return Err(failures),
            },
            () = pause(HEAD_START), if waiting.len() > 0 => {}
        }
    }
}

/// Opens something, and goes on with that when whoever waits for it gives up: the next one finds it further on, or done. Each
/// that comes begins once more beside it, so that nobody depends on one that began while the server was away.
pub(crate) struct Opening<T>(JoinSet<Result<T>>);

impl<T> Default for Opening<T> {
    fn default() -> Self {
        Self(JoinSet::new())
    }
}

impl<T: Send + 'static> Opening<T> {
    /// The first that is open; the last failure if none is.
    pub(crate) async fn open(
        &mut self,
        once_more: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        if self.0.len() < CONNECTS_MAX {
            self.0.spawn(once_more);
        }
        let mut failure = None;
        while let Some(ended) = self.0.join_next().await {
            match ended {
                Ok(Ok(open)) => {
                    self.0.abort_all();
                    while self.0.try_join_next().is_some() {}
                    return Ok(open);
                }
                Ok(Err(error)) => failure = Some(error),
                Err(_) => {}
            }
        }
        Err(failure.unwrap_or_else(|| Error::Unavailable("connecting ended early".to_owned())))
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Ready, pending, ready};
    use std::net::Ipv4Addr;
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::oneshot;
    use tokio_postgres::NoTls;

    use super::*;

    const HANGS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    const ANSWERS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    /// Accepts every connection and reports that it takes writes.
    async fn greet(listener: TcpListener) {
        let mut clients = Vec::new();
        loop {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut asked = [0; 1_024];
            assert!(client.read(&mut asked).await.unwrap() > 0);
            // Nothing to prove; ready.
            client.write_all(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").await.unwrap();
            assert!(client.read(&mut asked).await.unwrap() > 0);
            let column = b"T\0\0\0\x1a\0\x01x\0\0\0\0\0\0\0\0\0\0\x19\xff\xff\xff\xff\xff\xff\0\0";
            client.write_all(column).await.unwrap();
            client.write_all(b"D\0\0\0\x0d\0\x01\0\0\0\x03offC\0\0\0\x09SHOW\0Z\0\0\0\x05I").await.unwrap();
            clients.push(client);
        }
    }

    /// The same port at both addresses of a server: at one nobody answers.
    async fn half_dead() -> (Config, TcpListener) {
        let silent = TcpListener::bind((HANGS, 0)).await.unwrap();
        let port = silent.local_addr().unwrap().port();
        tokio::spawn(greet(TcpListener::bind((ANSWERS, port)).await.unwrap()));
        let mut config = Config::new();
        config.host("db.test").port(port).user("tidegate");
        (config, silent)
    }

    #[tokio::test]
    async fn an_address_where_nobody_answers_keeps_nobody_from_the_next() {
        let (config, _silent) = half_dead().await;
        let (address, _session) = reach_at(&config, NoTls, vec![HANGS, ANSWERS]).await.unwrap();
        assert_eq!(address, Some(ANSWERS));
    }

    #[tokio::test]
    async fn what_answered_last_is_tried_first() {
        let mut order = vec![HANGS, ANSWERS];
        sort_before(&mut order, Some(ANSWERS));
        assert_eq!(order, [ANSWERS, HANGS]);

        let (silent, greeting) =
            (TcpListener::bind((ANSWERS, 0)).await.unwrap(), TcpListener::bind((ANSWERS, 0)).await.unwrap());
        let servers = [&silent, &greeting].map(|listener| {
            let mut config = Config::new();
            config.host("127.0.0.1").port(listener.local_addr().unwrap().port()).user("tidegate");
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
            config
        });
        tokio::spawn(greet(greeting));
        let answered = Answered::default();
        for _ in 0..3 {
            drop(reach(&servers, NoTls, &answered).await.unwrap());
        }
        assert_eq!(answered.get(), Some((1, None)));
        silent.accept().await.unwrap();
        tokio::select! {
            biased;
            _ = silent.accept() => panic!("it is tried although another one answers"),
            () = ready(()) => {}
        }
    }

    #[tokio::test]
    async fn the_next_begins_when_one_has_failed_and_all_failures_are_told() {
        let failing = |number| ready(Err::<(), u32>(number));
        assert_eq!(first_of(vec![failing(1), failing(2)]).await, Err(vec![1, 2]));
        assert_eq!(first_of(Vec::<Ready<std::result::Result<(), u32>>>::new()).await, Err(Vec::new()));
    }

    #[tokio::test]
    async fn opening_continues_when_the_caller_gives_up() {
        let mut opening = Opening::default();
        let (go_on, waits) = oneshot::channel::<()>();
        let begun = Arc::new(tokio::sync::Notify::new());
        let tell = Arc::clone(&begun);
        let slow = opening.open(async move {
            tell.notify_one();
            waits.await.expect("it is not given up");
            Ok(1)
        });
        tokio::select! {
            biased;
            opened = slow => panic!("{opened:?} before its time"),
            () = begun.notified() => {}
        }
        go_on.send(()).expect("it still waits");
        assert_eq!(opening.open(pending()).await.unwrap(), 1);
        assert_eq!(opening.open(async { Ok(2) }).await.unwrap(), 2, "nothing of before is left");
    }
}
