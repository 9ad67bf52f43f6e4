//! Folders that survive a power cut.
//!
//! A file is safe only when its name is: the folder it lies in must be synced after the file was created, and the
//! folder above it after the folder was. SQLite sees to the names of its own files, not to what is above them.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Creates `folder` and what is missing above it; their names are on disk when it returns.
pub(crate) fn create(folder: &Path) -> io::Result<()> {
    let is_missing = |folder: &&Path| !folder.as_os_str().is_empty() && !folder.exists();
    let missing: Vec<&Path> = folder.ancestors().take_while(is_missing).collect();
    fs::create_dir_all(folder)?;
    missing.into_iter().filter_map(Path::parent).try_for_each(sync)
}

/// Waits until the names in `folder` are on disk, where the file system knows such a thing.
fn sync(folder: &Path) -> io::Result<()> {
    let here = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    match File::open(here).and_then(|folder| folder.sync_all()) {
        // Some file systems can not sync a folder, and one above ours need not be readable by us.
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::PermissionDenied) => Ok(()),
        synced => synced,
    }
}

#[cfg(test)]
mod tests {
    use super::{create, sync};
    use crate::conformance::Scratch;

    #[test]
    fn a_folder_is_made_with_everything_above_it_once_or_again() {
        let scratch = Scratch::new();
        let deep = scratch.path().join("a/b/c");
        create(&deep).unwrap();
        create(&deep).unwrap();
        assert!(deep.is_dir());
    }

    #[test]
    fn a_folder_that_is_not_there_can_not_be_synced() {
        let scratch = Scratch::new();
        create(scratch.path()).unwrap();
        sync(scratch.path()).unwrap();
        sync(std::path::Path::new("")).unwrap();
        assert!(sync(&scratch.path().join("missing")).is_err());
    }
}
