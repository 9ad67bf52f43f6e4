//! What brings the schema of a store from one number to the next, and which versions of the program may run on it.
//!
//! A migration is known by the number of its file, which means the same in both stores; where a store needs nothing its
//! numbers have a gap. Each says how much a version must know to run on what it leaves behind: a version goes on, or starts
//! again, on a schema that is newer than its own as long as nothing of it asks for more than that. So replicas are upgraded one
//! after the other, and one step back is possible.
//!
//! At first migrations were counted, and only how many there were was kept: [`by_count`].

use crate::{Error, Result};

/// One step.
#[derive(Clone, Copy)]
pub(crate) struct Migration {
    /// Of its file.
    pub(crate) number: u32,
    /// A version whose newest number is below this can not run on what it leaves behind.
    pub(crate) needs: u32,
    /// What it does.
    pub(crate) sql: &'static str,
}

/// How far a store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recorded {
    /// Its newest migration; 0 for none.
    pub(crate) number: u32,
    /// The most that one of them needs.
    pub(crate) needs: u32,
}

/// The migrations in a folder, oldest first: the file's name, and what it needs.
macro_rules! migrations {
    ($folder:literal, $($name:literal needs $needs:literal),+ $(,)?) => {
        &[$(crate::schema::Migration {
            number: crate::schema::number_of($name),
            needs: $needs,
            sql: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations/", $folder, "/", $name, ".sql")),
        }),+]
    };
}
pub(crate) use migrations;

/// The number that a file's name begins with.
pub(crate) const fn number_of(name: &str) -> u32 {
    let (mut number, mut index) = (0, 0);
    while name.as_bytes()[index].is_ascii_digit() {
        number = number * 10 + (name.as_bytes()[index] - b'0') as u32;
        index += 1;
    }
    number
}

/// The newest that this version knows.
pub(crate) fn known(migrations: &[Migration]) -> u32 {
    migrations.last().map_or(0, |migration| migration.number)
}

/// Those that are already there, of a store in which they were only counted.
pub(crate) fn by_count(migrations: &[Migration], count: usize) -> Result<&[Migration]> {
    migrations.get(..count).ok_or_else(|| {
        let known = migrations.len();
        Error::Unusable(format!("the database has {count} migrations, this version knows {known}: {REMEDY}"))
    })
}

/// How far a store is that has these.
pub(crate) fn reached(migrations: &[Migration]) -> Recorded {
    let needs = migrations.iter().map(|migration| migration.needs).max().unwrap_or(0);
    Recorded { number: known(migrations), needs }
}

/// What a store lacks; refused, if it is too new to be used by this version.
pub(crate) fn missing(migrations: &[Migration], recorded: Recorded) -> Result<&[Migration]> {
    let Recorded { number, needs } = recorded;
    let known = known(migrations);
    if needs > known {
        return Err(Error::Unusable(format!(
            "the database has schema {number}, for versions that know {needs}, and this one knows {known}: {REMEDY}"
        )));
    }
    let first = migrations.partition_point(|migration| migration.number <= number);
    Ok(&migrations[first..])
}

const REMEDY: &str = "run the newer version";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn every_file_is_a_migration_and_asks_for_no_more_than_itself() {
        for (folder, migrations) in
            [("postgres", crate::postgres::MIGRATIONS), ("sqlite", crate::sqlite::MIGRATIONS)]
        {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(folder);
            let names = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name());
            let mut files: Vec<u32> = names.map(|name| number_of(name.to_str().unwrap())).collect();
            files.sort_unstable();
            let numbers: Vec<u32> = migrations.iter().map(|migration| migration.number).collect();
            assert_eq!(numbers, files, "{folder}");
            assert!(migrations.iter().all(|migration| (1..=migration.number).contains(&migration.needs)));
        }
    }

    #[test]
    fn a_version_runs_on_what_is_newer_as_long_as_that_allows_it() {
        let step = |number, needs| Migration { number, needs, sql: "" };
        let ours = [step(1, 1), step(2, 2), step(5, 2)];
        let lacks = |number, needs| {
            missing(&ours, Recorded { number, needs }).map(<[Migration]>::len).map_err(|e| e.to_string())
        };
        assert_eq!((lacks(0, 0), lacks(1, 1), lacks(5, 2)), (Ok(3), Ok(2), Ok(0)));
        assert_eq!((lacks(6, 5), lacks(7, 3)), (Ok(0), Ok(0)), "newer, and nothing of it is needed");
        let refused = lacks(7, 6).unwrap_err();
        assert!(
            refused.contains("schema 7, for versions that know 6") && refused.contains(REMEDY),
            "{refused}"
        );
        assert_eq!(reached(by_count(&ours, 3).unwrap()), Recorded { number: 5, needs: 2 });
        assert_eq!(reached(by_count(&ours, 0).unwrap()), Recorded::default());
        assert!(by_count(&ours, 4).is_err());
    }
}
