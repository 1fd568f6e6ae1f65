//! A journal over several directories, on real files: opened, read, trimmed, refused.

use mainstay_disk::disk::Backend;
use mainstay_disk::log::Log;
use mainstay_disk::open::{OpenDiskError, Options, open};
use mainstay_disk::read_only::open_read_only;
use mainstay_journal::geometry::Geometry;
use mainstay_journal::open::OpenError;
use mainstay_journal::options::OpenOptions;
use mainstay_journal::reader::Reader;
use mainstay_journal::record::Kind;
use mainstay_journal::storage::Storage;
use mainstay_types::id::{InstanceId, Lsn};
use mainstay_types::level::Level;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const KIND: Kind = Kind::FIRST_USER;
const BACKENDS: [Backend; 2] = [Backend::Threads, Backend::Uring];

/// The directories of one journal: the first, and the two others.
struct Directories {
    folder: tempfile::TempDir,
}

impl Directories {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("temporary folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn first(&self) -> PathBuf {
        self.path("first")
    }

    /// Names the other directories.
    fn options(&self, backend: Backend, stripes: &[&str]) -> Options {
        let geometry = Geometry { page_bytes: 4096, pages: 3, segment_pages: 1 };
        Options {
            journal: OpenOptions { geometry, ..OpenOptions::default() },
            backend,
            create_directory: true,
            hint: "test".to_owned(),
            stripes: stripes.iter().map(|name| self.path(name)).collect(),
            kept: false,
            record: None,
        }
    }

    fn open(&self, stripes: &[&str]) -> Result<Log, OpenDiskError> {
        open(&self.first(), &self.options(Backend::Threads, stripes)).map(Log::new)
    }

    fn refused(&self, stripes: &[&str]) -> OpenDiskError {
        self.open(stripes).map(|_| ()).expect_err("it is refused")
    }

    /// A journal over three directories with so many records.
    fn filled(records: u64) -> Self {
        let directories = Self::new();
        let log = directories.open(&["second", "third"]).expect("opens");
        fill(&log, 0..records);
        log.seal().expect("sealed");
        directories
    }
}

fn payload(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(300, number as u8);
    bytes
}

fn fill(log: &Log, numbers: std::ops::Range<u64>) -> Lsn {
    let mut end = Lsn::ZERO;
    for number in numbers {
        end = log.append(KIND, InstanceId(0), &[&payload(number)]).expect("appended").end;
    }
    log.commit(end, Level::Disk).expect("durable");
    end
}

/// Everything in the journal, read without a lock.
fn read_all(directory: &Path) -> Vec<Vec<u8>> {
    let mut opened = open_read_only(directory).expect("opens");
    let (from, to) = (opened.report.first, opened.report.end);
    let mut reader = Reader::new(&mut opened.storage, &opened.catalog, from, to);
    let mut payloads = Vec::new();
    while let Some(record) = reader.next().expect("intact") {
        payloads.push(record.payload.to_vec());
    }
    payloads
}

fn segments_in(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).expect("listed").map(|entry| entry.expect("an entry").file_name());
    entries.filter(|name| name.to_string_lossy().starts_with("segment-")).count()
}

#[test]
fn segments_lie_in_all_directories_and_later_openings_need_not_name_them() {
    for backend in BACKENDS {
        let directories = Directories::new();
        let options = directories.options(backend, &["second", "third"]);
        let log = Log::new(open(&directories.first(), &options).expect("opens"));
        fill(&log, 0..200);
        drop(log);
        for name in ["first", "second", "third"] {
            assert!(segments_in(&directories.path(name)) >= 5, "{name}");
        }
        assert_eq!(read_all(&directories.first()), (0..200).map(payload).collect::<Vec<_>>());

        let opened =
            open(&directories.first(), &directories.options(backend, &[])).expect("opens without names");
        assert_eq!(opened.report.records, 200);
        let log = Log::new(opened);
        let end = fill(&log, 200..220);
        log.trim(end);
        log.wait_trimmed(end).expect("trimmed");
        fill(&log, 220..260);
        drop(log);
        let log = Log::new(open(&directories.first(), &options).expect("opens with the same names"));
        drop(log);
        let read = read_all(&directories.first());
        assert_eq!(read, (220..260).map(payload).collect::<Vec<_>>());
        for name in ["first", "second", "third"] {
            assert!(segments_in(&directories.path(name)) <= 12, "what was trimmed is gone from {name}");
        }
    }
}

#[test]
fn a_missing_directory_is_refused_by_name_and_one_that_moved_is_found_by_its_link() {
    let directories = Directories::filled(50);
    let (link, third) = (directories.first().join("stripe-0002"), directories.path("third"));
    fs::rename(&third, directories.path("moved")).expect("renamed");
    let refused = directories.refused(&[]);
    assert!(
        matches!(&refused, OpenDiskError::StripeMissing { stripe: 2, directory } if directory.ends_with("third"))
    );
    assert!(refused.to_string().contains("third"), "{refused}");
    let OpenDiskError::Journal { source: OpenError::StripeMissing { stripe: 2, stripes: 3, .. }, .. } =
        open_read_only(&directories.first()).expect_err("nor is it read")
    else {
        panic!("another reason")
    };
    fs::remove_file(&link).expect("removed");
    let OpenDiskError::Journal { source: OpenError::StripeMissing { stripe: 2, .. }, .. } =
        directories.refused(&[])
    else {
        panic!("another reason")
    };
    symlink(directories.path("moved"), &link).expect("linked");
    drop(directories.open(&[]).expect("opens"));
    assert_eq!(read_all(&directories.first()).len(), 50);
}

#[test]
fn exchanged_and_foreign_directories_are_refused_by_name() {
    let directories = Directories::filled(50);
    let [first, second] = ["stripe-0001", "stripe-0002"].map(|name| directories.first().join(name));
    for (link, target) in [(&first, "third"), (&second, "second")] {
        fs::remove_file(link).expect("removed");
        symlink(directories.path(target), link).expect("linked");
    }
    let refused = directories.refused(&[]);
    assert!(
        matches!(&refused, OpenDiskError::StripeExchanged { directory, expected: 1, found: 2 } if directory.ends_with("third")),
        "{refused}"
    );

    let other = Directories::filled(10);
    for (link, target) in [(&first, directories.path("second")), (&second, other.path("third"))] {
        fs::remove_file(link).expect("removed");
        symlink(target, link).expect("linked");
    }
    let OpenDiskError::Journal { source: OpenError::StripeForeign { stripe: 2, .. }, .. } =
        directories.refused(&[])
    else {
        panic!("another reason")
    };
}

#[test]
fn other_directories_than_the_journal_has_are_refused_and_so_are_such_as_cannot_be() {
    let directories = Directories::filled(10);
    for given in [&["second"][..], &["third", "second"], &["second", "third", "fourth"]] {
        let refused = directories.refused(given);
        assert!(matches!(refused, OpenDiskError::OtherStripes { .. }), "{given:?}: {refused}");
        assert!(refused.to_string().contains("third"), "{refused}");
    }
    drop(directories.open(&["second", "third"]).expect("the same"));

    let directories = Directories::new();
    for given in [&["second", "second"][..], &["first"]] {
        let refused = directories.refused(given);
        assert!(matches!(refused, OpenDiskError::StripeTwice { .. }), "{given:?}: {refused}");
    }
    fs::create_dir_all(directories.path("used")).expect("made");
    fs::write(directories.path("used").join("letter.txt"), "x").expect("written");
    let refused = directories.refused(&["used"]);
    assert!(
        matches!(&refused, OpenDiskError::ForeignFiles { file, .. } if file == "letter.txt"),
        "{refused}"
    );
    drop(directories.open(&[]).expect("nothing was made, so that it can be made without"));
    let refused = directories.refused(&["second"]);
    assert!(matches!(&refused, OpenDiskError::OtherStripes { listed, .. } if listed.is_empty()), "{refused}");
}

/// The journal's own tests flip every byte of a striped one; this shows on a sample that two real directories change nothing about it.
#[test]
fn a_flipped_byte_in_any_directory_never_gives_a_wrong_record_and_never_hides_a_durable_one() {
    let made = Directories::new();
    let log = made.open(&["second"]).expect("opens");
    fill(&log, 0..40);
    drop(log);
    let expected: Vec<_> = (0..40).map(payload).collect();
    let mut storage = mainstay_disk::file_storage::FileStorage::new(&made.first());
    let files = storage.list().expect("listed");
    assert!(files.iter().any(|file| file.name == "stripe-0001.id"));
    let (mut refused, mut accepted) = (0, 0);
    for file in &files {
        // A prime distance, so that all offsets within records are met; every byte of the short file.
        let distance = if file.name == "stripe-0001.id" { 17 } else { 3001 };
        for at in (0..usize::try_from(file.bytes).expect("small")).step_by(distance) {
            let image = Directories::new();
            for name in ["first", "second"] {
                fs::create_dir(image.path(name)).expect("made");
            }
            symlink(image.path("second"), image.first().join("stripe-0001")).expect("linked");
            let copy = mainstay_disk::file_storage::FileStorage::new(&image.first());
            for other in &files {
                let mut bytes = vec![0; usize::try_from(other.bytes).expect("small")];
                storage.read(&other.name, 0, &mut bytes).expect("read");
                if other.name == file.name {
                    bytes[at] ^= 1 << (at % 8);
                }
                fs::write(copy.path(&other.name), &bytes).expect("written");
            }
            match image.open(&[]).map(drop) {
                Err(OpenDiskError::Journal { .. }) => refused += 1,
                Err(other) => panic!("{} at {at}: unexpected {other}", file.name),
                Ok(()) => {
                    assert_eq!(read_all(&image.first()), expected, "{} at {at}", file.name);
                    accepted += 1;
                }
            }
        }
    }
    assert!(refused > 0 && accepted > 0, "{refused} refused, {accepted} accepted");
}
