//! Where the servers' programs are, and how they come here when they are not.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// The oldest PostgreSQL that the store supports.
const POSTGRES_MAJOR_MIN: u32 = 15;
/// Where Debian keeps the programs of a PostgreSQL, one folder for each version.
const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";

/// What was found. A path is empty when it was not asked for.
#[derive(Default)]
pub(super) struct Programs {
    /// The folder with `initdb` and `postgres`.
    pub(super) postgres: PathBuf,
    /// The `redis-server` itself.
    pub(super) redis: PathBuf,
}

/// Finds the programs that are needed, installing Debian's packages if it may.
pub(super) fn find_or_install(postgres: bool, redis: bool) -> Result<Programs> {
    let missing = missing(postgres, redis);
    if !missing.is_empty() {
        install(&missing)?;
    }
    let mut programs = Programs::default();
    if postgres {
        programs.postgres = find_postgres().with_context(|| remedy(&["postgresql"]))?;
    }
    if redis {
        programs.redis = find_redis().with_context(|| remedy(&["redis-server"]))?;
    }
    Ok(programs)
}

/// The Debian packages that are wanted and not there.
fn missing(postgres: bool, redis: bool) -> Vec<&'static str> {
    let mut packages = Vec::new();
    if postgres && find_postgres().is_none() {
        packages.push("postgresql");
    }
    if redis && find_redis().is_none() {
        packages.push("redis-server");
    }
    packages
}

fn install(packages: &[&str]) -> Result<()> {
    if !may_install() {
        bail!(remedy(packages));
    }
    eprintln!("installing {} with apt-get", packages.join(" and "));
    if apt_get("install", packages).is_err() {
        // The lists of a fresh machine are empty or old.
        apt_get("update", &[])?;
        apt_get("install", packages).with_context(|| remedy(packages))?;
    }
    Ok(())
}

fn apt_get(verb: &str, packages: &[&str]) -> Result<()> {
    let mut command = Command::new("apt-get");
    command.args(["--quiet", "--yes", "--no-install-recommends", verb]).args(packages);
    let output =
        command.env("DEBIAN_FRONTEND", "noninteractive").output().context("apt-get does not start")?;
    if !output.status.success() {
        bail!("apt-get {verb} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

fn may_install() -> bool {
    let is_root =
        Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout.trim_ascii() == b"0");
    is_root && in_path("apt-get").is_some()
}

fn remedy(packages: &[&str]) -> String {
    format!(
        "the tests need PostgreSQL {POSTGRES_MAJOR_MIN} or newer and Redis, and not all of it is here\n\
         Debian and Ubuntu: apt-get install --no-install-recommends {}\n\
         Fedora: dnf install postgresql-server redis; Alpine: apk add postgresql redis\n\
         or name servers that run: {}=postgres://user@host/database {}=redis://host/",
        packages.join(" "),
        super::POSTGRES,
        super::REDIS,
    )
}

/// The folder of the newest PostgreSQL that is new enough.
fn find_postgres() -> Option<PathBuf> {
    let debian = fs::read_dir(DEBIAN_POSTGRES).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = debian.map(|entry| entry.path().join("bin")).collect();
    folders.extend(path_folders());
    let versions = folders.into_iter().filter(|folder| folder.join("initdb").is_file());
    let versions = versions.filter_map(|folder| Some((major(&folder.join("postgres"))?, folder)));
    let fit = versions.filter(|(major, _)| *major >= POSTGRES_MAJOR_MIN);
    // Of equal ones the first: Debian's own folder rather than links to it.
    fit.reduce(|best, other| if other.0 > best.0 { other } else { best }).map(|(_, folder)| folder)
}

fn find_redis() -> Option<PathBuf> {
    in_path("redis-server")
}

fn major(postgres: &Path) -> Option<u32> {
    let output = Command::new(postgres).arg("--version").output().ok()?;
    major_of(&String::from_utf8_lossy(&output.stdout))
}

/// Reads `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`, or `… 19beta1`.
fn major_of(version: &str) -> Option<u32> {
    let (_, number) = version.split_once("(PostgreSQL) ")?;
    let digits = number.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(number.len());
    number[..digits].parse().ok()
}

fn in_path(program: &str) -> Option<PathBuf> {
    path_folders().into_iter().map(|folder| folder.join(program)).find(|path| path.is_file())
}

fn path_folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).collect()
}

#[cfg(test)]
mod tests {
    use super::major_of;

    #[test]
    fn versions_are_read() {
        assert_eq!(major_of("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some(15));
        assert_eq!(major_of("postgres (PostgreSQL) 19beta1\n"), Some(19));
        assert_eq!(major_of("redis"), None);
    }
}
