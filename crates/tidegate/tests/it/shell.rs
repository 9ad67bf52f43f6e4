//! Commands as a user types them: at a terminal, or in a script.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

use crate::server::{ADMIN_KEY, Server};

/// Where commands are typed: a server, and the key that is used.
pub(crate) struct Shell<'a> {
    server: &'a Server,
    key: &'static str,
}

/// How a command ended and what it printed.
#[derive(Debug)]
pub(crate) struct Ended {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

impl<'a> Shell<'a> {
    pub(crate) fn new(server: &'a Server) -> Self {
        Self { server, key: ADMIN_KEY }
    }

    /// The same with another key.
    pub(crate) fn with_key(self, key: &'static str) -> Self {
        Self { key, ..self }
    }

    /// Types a line at a terminal, and reads what it shows.
    pub(crate) fn types(&self, line: &str) -> Ended {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("ours");
        let size = Winsize { ws_row: 50, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&master, size).expect("a size");
        let name = ptsname(&master, Vec::new()).expect("a name");
        let path = Path::new(std::ffi::OsStr::from_bytes(name.as_bytes()));
        let terminal = File::options().read(true).write(true).open(path).expect("it opens");
        let mut command = self.command(line);
        let mut child = command.stdout(terminal).stderr(Stdio::piped()).spawn().expect("the binary runs");
        // The child's end must be the last one, or the terminal never ends.
        drop(command);
        let (mut screen, mut shown, mut buffer) = (File::from(master), Vec::new(), [0; 4096]);
        // When nobody writes any more, reading a terminal is an error.
        while let Ok(count @ 1..) = screen.read(&mut buffer) {
            shown.extend_from_slice(&buffer[..count]);
        }
        let mut stderr = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("text");
        let code = child.wait().expect("it ended").code();
        Ended { code, stdout: String::from_utf8(shown).expect("text").replace('\r', ""), stderr }
    }

    /// Runs a line as a script does.
    pub(crate) fn runs(&self, line: &str) -> Ended {
        let output = self.command(line).output().expect("the binary runs");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }

    fn command(&self, line: &str) -> Command {
        let mut words = line.split_whitespace();
        assert_eq!(words.next(), Some("tidegate"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(words).env_clear().current_dir(self.server.folder.path());
        command.env("TIDEGATE_URL", format!("http://{}", self.server.address));
        command.env("TIDEGATE_KEY", self.key).env("NO_COLOR", "1").stdin(Stdio::null());
        command
    }
}

impl Ended {
    /// What it printed, when it ended with this code.
    #[track_caller]
    pub(crate) fn text(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        &self.stdout
    }

    /// The JSON it printed, when it ended with this code.
    #[track_caller]
    pub(crate) fn json(&self, code: i32) -> Value {
        serde_json::from_str(self.text(code)).unwrap_or_else(|_| panic!("not JSON: {self:?}"))
    }

    /// What it complained about, when it ended with this code.
    #[track_caller]
    pub(crate) fn complaint(&self, code: i32) -> &str {
        assert_eq!((self.code, self.stdout.as_str()), (Some(code), ""), "{self:?}");
        &self.stderr
    }

    /// Everything it printed anywhere.
    pub(crate) fn everything(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}
