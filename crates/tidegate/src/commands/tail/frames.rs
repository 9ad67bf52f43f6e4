//! Reads server-sent events out of the pieces in which they arrive.

/// One frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Frame {
    /// Where the stream stands after it.
    pub(crate) id: String,
    /// What it is.
    pub(crate) kind: String,
    /// Its data; empty for a sign of life.
    pub(crate) data: String,
}

/// What has arrived and is not yet a whole frame.
#[derive(Default)]
pub(crate) struct Frames {
    line: Vec<u8>,
    frame: Frame,
    has_data: bool,
}

impl Frames {
    /// The frames that this piece completes.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<Frame> {
        let mut whole = Vec::new();
        for byte in bytes {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = String::from_utf8_lossy(&std::mem::take(&mut self.line)).into_owned();
            if line.is_empty() {
                self.has_data = false;
                whole.push(std::mem::take(&mut self.frame));
            } else {
                self.take(&line);
            }
        }
        whole
    }

    fn take(&mut self, line: &str) {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => value.clone_into(&mut self.frame.id),
            "event" => value.clone_into(&mut self.frame.kind),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.frame.data.push('\n');
                }
                self.frame.data.push_str(value);
            }
            // Comments, and what later versions may add.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_put_together_whatever_the_pieces() {
        let text =
            "retry: 1000\nid: c1\n\n: alive\nid: c2\n\nid: c3\nevent: event\ndata: {\ndata:  \"é\":1}\n\n";
        let expected = [("c1", "", ""), ("c2", "", ""), ("c3", "event", "{\n \"é\":1}")]
            .map(|(id, kind, data)| Frame { id: id.into(), kind: kind.into(), data: data.into() });
        for size in [1, 2, 7, 1_000] {
            let mut frames = Frames::default();
            let got: Vec<Frame> = text.as_bytes().chunks(size).flat_map(|piece| frames.feed(piece)).collect();
            assert_eq!(got, expected, "{size}");
        }
    }
}
