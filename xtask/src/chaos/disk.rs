//! A small disk that can lose its power: ext4 in a file, on a loop device.
//!
//! [`Disk::cut`] shuts the file system down without writing its log: from that instant nothing reaches the disk, and
//! what was written without a sync is gone after the next mount, as after a power cut. That is stricter than killing
//! a process, whose writes stay in the kernel's memory. It is milder than a real cut in one respect: the image keeps
//! whatever the kernel had handed down, so a drive that lies about its cache is not imitated.
//!
//! Needs root, loop devices, ext4, and `python3` or `xfs_io` for the one system call that safe Rust can not make.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::clock;

/// `EXT4_IOC_SHUTDOWN` with the flag "do not flush the log".
const SHUTDOWN: &str = "import fcntl, os, struct, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, struct.pack('I', 2))";
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

    /// From now on nothing reaches the disk.
    pub(super) fn cut(&self) -> Result<()> {
        let by_python = call(Command::new("python3").args(["-c", SHUTDOWN]).arg(&self.mount));
        by_python
            .or_else(|_| call(Command::new("xfs_io").args(["-x", "-c", "shutdown"]).arg(&self.mount)))
            .context("the file system can not be shut down (python3 or xfs_io is needed)")
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
