//! A real HTTP receiver: it says what arrived, in order of arrival, and answers as its script says.
//!
//! A request is reported when it has been read, before it is answered. The script runs on the connection's own thread,
//! so a script that blocks is a receiver that hangs.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tidegate_core::sign::{Signer, verify};
use tidegate_core::time::Timestamp;

use crate::client::PATIENCE;

/// One request, as it arrived.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// Method, path and version.
    pub(crate) line: String,
    /// Names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
    /// How many requests this receiver read before it.
    pub(crate) before: usize,
    /// When it had been read, by this machine's wall clock.
    pub(crate) at: Timestamp,
}

/// A status, header lines and a body.
pub(crate) struct Reply(u16, Vec<(&'static str, String)>, String);

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self(status, Vec::new(), String::new())
    }

    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        self.1.push((name, value.to_owned()));
        self
    }

    pub(crate) fn body(mut self, text: &str) -> Self {
        self.2 = text.to_owned();
        self
    }
}

/// A receiver; it listens until the tests end.
pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    arrivals: mpsc::Receiver<Arrival>,
}

type Script = Arc<dyn Fn(&Arrival) -> Reply + Send + Sync>;

impl Receiver {
    /// Answers 200 to everything.
    pub(crate) fn start() -> Self {
        Self::scripted(|_| Reply::status(200))
    }

    /// Answers the first requests with these statuses, and 200 to all others.
    pub(crate) fn answering(statuses: &'static [u16]) -> Self {
        Self::scripted(|arrival| Reply::status(statuses.get(arrival.before).copied().unwrap_or(200)))
    }

    pub(crate) fn scripted(script: impl Fn(&Arrival) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let (sender, arrivals) = mpsc::channel();
        let script: Script = Arc::new(script);
        let count = Arc::new(Mutex::new(0));
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (script, sender, count) = (Arc::clone(&script), sender.clone(), Arc::clone(&count));
                thread::spawn(move || serve(stream, &script, &sender, &count));
            }
        });
        Self { address, arrivals }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook", self.address)
    }

    /// The next request.
    #[track_caller]
    pub(crate) fn next(&self) -> Arrival {
        match self.arrivals.recv_timeout(PATIENCE) {
            Ok(arrival) => arrival,
            Err(_) => panic!("nothing arrived"),
        }
    }

    /// The next requests.
    #[track_caller]
    pub(crate) fn take(&self, count: usize) -> Vec<Arrival> {
        (0..count).map(|_| self.next()).collect()
    }

    /// The ids of the next events.
    #[track_caller]
    pub(crate) fn ids(&self, count: usize) -> Vec<String> {
        self.take(count).iter().map(Arrival::event_id).collect()
    }

    /// What has arrived and was not looked at.
    pub(crate) fn rest(&self) -> Vec<Arrival> {
        self.arrivals.try_iter().collect()
    }
}

impl Arrival {
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).unwrap_or_else(|| panic!("no {name} in {:?}", self.headers))
    }

    pub(crate) fn webhook_id(&self) -> &str {
        self.header("webhook-id")
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("bodies are UTF-8")
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("bodies are JSON")
    }

    pub(crate) fn event_id(&self) -> String {
        self.json()["id"].as_str().expect("an id").to_owned()
    }

    /// Both signatures are right and fresh.
    #[track_caller]
    pub(crate) fn verify(&self, secret: &str) {
        let (id, timestamp) = (self.webhook_id(), self.header("webhook-timestamp"));
        let verified = verify(secret, id, timestamp, self.header("webhook-signature"), &self.body, self.at);
        assert_eq!(verified, Ok(()));
        let hex = Signer::parse(secret).expect("a secret").hex_signature(&self.body);
        assert_eq!(self.header("x-webhook-signature"), format!("sha256={hex}"));
    }
}

/// Keeps scripts waiting until it is opened.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    pub(crate) fn open(&self) {
        *self.0.0.lock().expect("no panic") = true;
        self.0.1.notify_all();
    }

    pub(crate) fn is_open(&self) -> bool {
        *self.0.0.lock().expect("no panic")
    }

    pub(crate) fn wait(&self) {
        let is_open = self.0.0.lock().expect("no panic");
        drop(self.0.1.wait_while(is_open, |is_open| !*is_open).expect("no panic"));
    }
}

fn serve(stream: TcpStream, script: &Script, sender: &Sender<Arrival>, count: &Mutex<usize>) -> Option<()> {
    let mut writer = stream.try_clone().ok()?;
    let mut reader = BufReader::new(stream);
    loop {
        let mut arrival = read(&mut reader)?;
        {
            let mut count = count.lock().expect("no panic");
            arrival.before = *count;
            *count += 1;
            // The test may be over, and nobody listen any more.
            let _ = sender.send(arrival.clone());
        }
        let Reply(status, headers, body) = script(&arrival);
        let mut text = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\n", body.len());
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        writer.write_all(format!("{text}\r\n{body}").as_bytes()).ok()?;
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<Arrival> {
    let mut line = || {
        let mut line = String::new();
        let length = reader.read_line(&mut line).ok()?;
        (length > 0).then(|| line.trim_end().to_owned())
    };
    let first = line()?;
    let mut headers = BTreeMap::new();
    loop {
        let line = line()?;
        let Some((name, value)) = line.split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length: usize = headers.get("content-length").map_or(Some(0), |length| length.parse().ok())?;
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(Arrival { line: first, headers, body, before: 0, at: wall() })
}

#[expect(clippy::disallowed_methods, reason = "signatures carry real time, and are judged by it")]
pub(crate) fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    Timestamp::from_ms(i64::try_from(since.as_millis()).expect("before the end of time"))
}
