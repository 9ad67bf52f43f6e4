//! A small disk that can lose its power: ext4 in a file, on a loop device.
//!
//! [`Fuse::blow`] shuts the file system down without writing its log: from that instant nothing reaches the disk, and
//! what was written without a sync is gone after the next mount, as after a power cut. That is stricter than killing
//! a process, whose writes stay in the kernel's memory. It is milder than a real cut in one respect: the image keeps
//! whatever the kernel had handed down, so a drive that lies about its cache is not imitated.
//!
//! A sync that is under way when the cut comes may report success and yet be lost: the kernel finds the aborted
//! transaction gone and takes it for written (seen with nothing but a write and a sync in a loop). With real power the
//! process would be gone as well, so whoever cuts must not believe an answer that comes after the cut began.
//!
//! Needs root, loop devices, ext4, and `python3` for the one system call that safe Rust can not make.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::clock;

/// `EXT4_IOC_SHUTDOWN` with the flag "do not flush the log", at once when a line comes in.
const SHUTDOWN: &str = "import fcntl, os, struct, sys
disk = os.open(sys.argv[1], os.O_RDONLY)
print('armed', flush=True)
if sys.stdin.readline():
    fcntl.ioctl(disk, 0x8004587d, struct.pack('I', 2))";
/// A dead process may hold its files a moment longer.
const UNMOUNT_PATIENCE: Duration = Duration::from_secs(10);

/// The image and where it is mounted.
pub(super) struct Disk {
    image: PathBuf,
    mount: PathBuf,
    is_mounted: bool,
}

impl Disk {
    /// A new, empty, mounted disk under `folder`. An error says what the machine lacks.
    pub(super) fn new(folder: &Path, name: &str, mib: u64) -> Result<Self> {
        let image = folder.join(format!("{name}.img"));
        let mount = folder.join(name);
        File::create(&image)?.set_len(mib * 1024 * 1024)?;
        fs::create_dir_all(&mount)?;
        // No blocks are kept back for root, so that a full disk is full for everybody.
        call(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(&image))?;
        let mut disk = Self { image, mount, is_mounted: false };
        disk.mount()?;
        Ok(disk)
    }

    /// The folder where its files are.
    pub(super) fn path(&self) -> &Path {
        &self.mount
    }

    /// Prepares a cut, so that it comes at once when it is called for.
    pub(super) fn arm(&self) -> Result<Fuse> {
        let mut child = Command::new("python3")
            .args(["-c", SHUTDOWN])
            .arg(&self.mount)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("python3 can not be started")?;
        let output = child.stdout.take().context("no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        ensure!(line == "armed\n", "python3 can not open {}", self.mount.display());
        Ok(Fuse(child))
    }

    /// Mounts it again after a cut, which plays its log back as a reboot does. Nobody may use it any more.
    pub(super) fn power_on(&mut self) -> Result<()> {
        let unmounted =
            clock::wait_until(UNMOUNT_PATIENCE, || call(Command::new("umount").arg(&self.mount)).is_ok());
        ensure!(unmounted, "{} can not be unmounted", self.mount.display());
        self.is_mounted = false;
        self.mount()
    }

    fn mount(&mut self) -> Result<()> {
        call(Command::new("mount").args(["-t", "ext4", "-o", "loop"]).arg(&self.image).arg(&self.mount))?;
        self.is_mounted = true;
        Ok(())
    }
}

/// A cut that waits for its instant.
pub(super) struct Fuse(Child);

impl Fuse {
    /// From now on nothing reaches the disk.
    pub(super) fn blow(mut self) -> Result<()> {
        self.0.stdin.take().context("no input")?.write_all(b"now\n")?;
        let status = self.0.wait()?;
        ensure!(status.success(), "the file system can not be shut down");
        Ok(())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let is_stuck = self.is_mounted && call(Command::new("umount").arg(&self.mount)).is_err();
        if is_stuck {
            call(Command::new("umount").arg("-l").arg(&self.mount)).ok();
        }
    }
}

/// Runs a command to its end; its complaint becomes the error.
fn call(command: &mut Command) -> Result<()> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output =
        command.stdin(Stdio::null()).output().with_context(|| format!("{program} can not be started"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{program}: {} ({})", complaint.trim(), output.status);
    Ok(())
}
