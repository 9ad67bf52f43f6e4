//! A name server over UDP that answers questions for addresses, and lies as the name it is asked for says.
//!
//! Every answer lives for no time at all, so that nobody may keep it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::thread;

const HEADER_LEN: usize = 12;
const A: u16 = 1;
const AAAA: u16 = 28;
const SERVER_FAILURE: u8 = 2;
const NO_SUCH_NAME: u8 = 3;

/// What a name's answers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// The public address, then loopback, then the public one again.
    Flip,
    /// The public address, with loopback beside it as an IPv6 address every other time.
    FlipSix,
    /// Both in one answer, in either order.
    Mixed,
    /// Loopback as an IPv4 address mapped into IPv6.
    Mapped,
    /// SERVFAIL.
    ServerFailure,
    /// NXDOMAIN.
    NoSuchName,
    /// No answer.
    Silence,
    /// Loopback, honestly.
    None,
}

const LIES: [(Lie, &str); 8] = [
    (Lie::Flip, "flip.rebind.test"),
    (Lie::FlipSix, "flip-six.rebind.test"),
    (Lie::Mixed, "mixed.rebind.test"),
    (Lie::Mapped, "mapped.rebind.test"),
    (Lie::ServerFailure, "failure.rebind.test"),
    (Lie::NoSuchName, "nobody.rebind.test"),
    (Lie::Silence, "silence.rebind.test"),
    (Lie::None, "loopback.rebind.test"),
];

impl Lie {
    /// The name that is answered like this.
    pub(crate) fn name(self) -> &'static str {
        LIES.iter().find(|(lie, _)| *lie == self).expect("every lie has a name").1
    }
}

/// A running name server.
pub(crate) struct NameServer {
    /// Questions for IPv4 addresses so far; the others come in pairs with them.
    asked: Arc<Mutex<Vec<Lie>>>,
}

impl NameServer {
    /// Serves for as long as the process lives.
    pub(crate) fn start(socket: UdpSocket, public: Ipv4Addr) -> Self {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, mut turn_of_six) = (Arc::clone(&asked), 0);
        thread::spawn(move || {
            let mut buffer = [0; 512];
            while let Ok((length, asker)) = socket.recv_from(&mut buffer) {
                let Some(question) = Question::read(&buffer[..length]) else { continue };
                let turn = match question.kind {
                    A => note(&log, question.lie),
                    _ => {
                        turn_of_six += usize::from(question.lie == Lie::FlipSix);
                        turn_of_six
                    }
                };
                answer(&socket, asker, &question, turn, public);
            }
        });
        Self { asked }
    }

    /// How often this name was looked up.
    pub(crate) fn asked(&self, lie: Lie) -> usize {
        count(&self.asked.lock().unwrap(), lie)
    }
}

/// Returns how often it was asked for before.
fn note(log: &Mutex<Vec<Lie>>, lie: Lie) -> usize {
    let mut log = log.lock().unwrap();
    log.push(lie);
    count(&log, lie) - 1
}

fn count(log: &[Lie], lie: Lie) -> usize {
    log.iter().filter(|asked| **asked == lie).count()
}

struct Question<'a> {
    id: [u8; 2],
    /// Name, type and class, as they are repeated in the answer.
    bytes: &'a [u8],
    lie: Lie,
    kind: u16,
}

impl<'a> Question<'a> {
    /// `None` for what is not ours to answer.
    fn read(packet: &'a [u8]) -> Option<Self> {
        let (mut at, mut labels) = (HEADER_LEN, Vec::new());
        while let Some(length) = packet.get(at).copied().filter(|length| *length > 0) {
            let end = at + 1 + usize::from(length);
            labels.push(String::from_utf8_lossy(packet.get(at + 1..end)?).to_ascii_lowercase());
            at = end;
        }
        let kind = packet.get(at + 1..at + 3)?;
        let name = labels.join(".");
        let (lie, _) = LIES.into_iter().find(|(_, known)| *known == name)?;
        let bytes = packet.get(HEADER_LEN..at + 5)?;
        Some(Self { id: [packet[0], packet[1]], bytes, lie, kind: u16::from_be_bytes([kind[0], kind[1]]) })
    }
}

fn answer(socket: &UdpSocket, asker: SocketAddr, question: &Question<'_>, turn: usize, public: Ipv4Addr) {
    let (four, six) =
        (|address: Ipv4Addr| address.octets().to_vec(), |address: Ipv6Addr| address.octets().to_vec());
    let (public, loopback) = (four(public), four(Ipv4Addr::LOCALHOST));
    let is_odd = turn % 2 == 1;
    let (code, addresses) = match (question.lie, question.kind) {
        (Lie::Silence, _) => return,
        (Lie::ServerFailure, _) => (SERVER_FAILURE, vec![]),
        (Lie::NoSuchName, _) => (NO_SUCH_NAME, vec![]),
        (Lie::Flip, A) => (0, vec![if is_odd { loopback } else { public }]),
        (Lie::FlipSix, A) => (0, vec![public]),
        (Lie::FlipSix, AAAA) if is_odd => (0, vec![six(Ipv6Addr::LOCALHOST)]),
        (Lie::Mixed, A) => (0, if is_odd { vec![loopback, public] } else { vec![public, loopback] }),
        (Lie::Mapped, AAAA) => (0, vec![six(Ipv4Addr::LOCALHOST.to_ipv6_mapped())]),
        (Lie::None, A) => (0, vec![loopback]),
        _ => (0, vec![]),
    };
    // Whoever does not get it asks no more: the test then counts an unresolved name.
    let _ = socket.send_to(&packet(question, code, &addresses), asker);
}

fn packet(question: &Question<'_>, code: u8, addresses: &[Vec<u8>]) -> Vec<u8> {
    let count = u8::try_from(addresses.len()).expect("a few");
    // An answer, recursion wanted and offered; one question, so many answers.
    let mut packet =
        [&question.id[..], &[0x81, 0x80 | code, 0, 1, 0, count, 0, 0, 0, 0], question.bytes].concat();
    for address in addresses {
        let length = u8::try_from(address.len()).expect("four or sixteen");
        // The name is the question's, which stands right after the header.
        packet.extend([0xc0, 0x0c]);
        packet.extend(question.kind.to_be_bytes());
        packet.extend([0, 1, 0, 0, 0, 0, 0, length]);
        packet.extend(address);
    }
    packet
}
