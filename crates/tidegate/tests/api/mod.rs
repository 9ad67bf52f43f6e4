//! A server that plays the API: it answers as told and remembers what it was asked.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::thread;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

/// One request as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Method, path and query, for example `GET /v1/keys?limit=1`.
    pub(crate) line: String,
    /// `authorization`, or nothing.
    pub(crate) authorization: String,
    /// `x-tidegate-project`, or nothing.
    pub(crate) project: String,
    /// The body as text.
    pub(crate) body: String,
}

/// A status, headers and a body.
pub(crate) type Reply = (u16, &'static [(&'static str, &'static str)], String);

/// A running server; it ends with the test process.
pub(crate) struct Api {
    /// Where it listens, for `--url`.
    pub(crate) url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Api {
    /// Listens on a free port. `answer` is given the request and how many came before it.
    pub(crate) fn start(answer: impl Fn(&Seen, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        thread::spawn(move || serve(listener, Arc::new(answer), log));
        Self { url, seen }
    }

    /// Everything that arrived, in order.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().expect("no panic").clone()
    }
}

type Answer = Arc<dyn Fn(&Seen, usize) -> Reply + Send + Sync>;

fn serve(listener: TcpListener, answer: Answer, log: Arc<Mutex<Vec<Seen>>>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        listener.set_nonblocking(true).expect("non-blocking");
        let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            let (answer, log) = (Arc::clone(&answer), Arc::clone(&log));
            let service = service_fn(move |request| reply(request, Arc::clone(&answer), Arc::clone(&log)));
            tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        }
    });
}

async fn reply(
    request: Request<Incoming>,
    answer: Answer,
    log: Arc<Mutex<Vec<Seen>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let (parts, body) = request.into_parts();
    let header = |name| parts.headers.get(name).map_or("", |value| value.to_str().expect("text")).to_owned();
    let body = body.collect().await.expect("a whole body").to_bytes();
    let seen = Seen {
        line: format!("{} {}", parts.method, parts.uri),
        authorization: header("authorization"),
        project: header("x-tidegate-project"),
        body: String::from_utf8(body.to_vec()).expect("UTF-8"),
    };
    let before = {
        let mut log = log.lock().expect("no panic");
        log.push(seen.clone());
        log.len() - 1
    };
    let (status, headers, text) = answer(&seen, before);
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, *value);
    }
    Ok(response.body(Full::new(Bytes::from(text))).expect("a response"))
}
