//! The directory: what is kept, found again, trimmed and noticed.

use super::*;
use mainstay_journal::geometry::Geometry;

/// What is behind the place where checkpoints began is found, and nothing of what was before.
#[test]
fn a_directory_is_trimmed_behind_whole_checkpoints() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (done, _told) = tokio::sync::mpsc::unbounded_channel();
    let (mut store, _) = Store::open(folder.path(), "", done.clone()).expect("it is made");
    let region = RegionId(1);
    let append = |store: &mut Store, record: u64| {
        let bytes = vec![u8::try_from(record).expect("few records"); 100];
        store.append(Level::Process, region, RecordNumber(record), bytes).expect("there is room");
    };
    (1..=50).for_each(|record| append(&mut store, record));
    let before = store.journal_bytes();
    store.checkpoint_begins();
    (51..=53).for_each(|record| append(&mut store, record));
    store.trim();
    let mut patience = 6000;
    while store.journal_bytes() >= before {
        std::thread::sleep(Duration::from_millis(10));
        patience -= 1;
        assert!(patience > 0, "it is trimmed");
    }
    drop(store);
    let (_, stored) = Store::open(folder.path(), "", done).expect("it is there");
    let found: Vec<u8> = stored.records.iter().map(|(_, bytes)| bytes[0]).collect();
    assert_eq!(found, [51, 52, 53]);
}

#[test]
fn a_node_does_not_begin_among_the_files_of_a_service() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    std::fs::write(folder.path().join(SUPERBLOCK_FILE), "a service's").expect("it can be written");
    let (done, _told) = tokio::sync::mpsc::unbounded_channel();
    let refused = Store::open(folder.path(), "", done).map(drop);
    assert!(matches!(&refused, Err(StoreError::OfService { directory }) if directory == folder.path()));
    assert_eq!(std::fs::read_dir(folder.path()).expect("it is there").count(), 1, "nothing is added");
}

#[test]
fn a_directory_gives_back_what_was_kept_in_it() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (done, mut told) = tokio::sync::mpsc::unbounded_channel();
    let (mut store, stored) = Store::open(folder.path(), "", done.clone()).expect("it is made");
    assert!(stored.record.is_none() && stored.records.is_empty());
    let (first_life, id) = (store.life, store.id);
    let region = RegionId(1);
    assert_eq!(store.append(Level::Process, region, RecordNumber(1), b"one".to_vec()), Ok(true));
    assert_eq!(store.append(Level::Disk, region, RecordNumber(2), b"two".to_vec()), Ok(false));
    store.persist(7, b"record".to_vec());
    store.flush();
    let mut seen = Vec::new();
    while seen.len() < 2 {
        match told.blocking_recv() {
            Some(Input::Disk(done)) => seen.push(done),
            other => panic!("unexpected {other:?}"),
        }
    }
    assert!(seen.contains(&DiskDone::Persisted { ticket: 7 }));
    assert!(seen.contains(&DiskDone::Appended { region, record: RecordNumber(2) }));
    // As after a crash: no seal.
    drop(store);
    let (store, stored) = Store::open(folder.path(), "", done).expect("it is there");
    assert_eq!(stored.record.as_deref(), Some(&b"record"[..]));
    assert_eq!(stored.records, [(region, b"one".to_vec()), (region, b"two".to_vec())]);
    assert!(store.life > first_life && store.id == id);
}

/// What a view begins with was written twice, the second time behind the first.
#[test]
fn of_the_records_of_one_step_the_last_alone_is_written() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (done, mut told) = tokio::sync::mpsc::unbounded_channel();
    let (mut store, _) = Store::open(folder.path(), "", done).expect("it is made");
    store.persist(1, b"enters a view".to_vec());
    store.persist(2, b"and has all the data".to_vec());
    store.flush();
    store.persist(3, b"the next step".to_vec());
    store.flush();
    store.end_thread();
    let mut tickets = Vec::new();
    while let Ok(Input::Disk(DiskDone::Persisted { ticket })) = told.try_recv() {
        tickets.push(ticket);
    }
    assert!(!tickets.contains(&1) && tickets.last() == Some(&3), "{tickets:?}");
    assert_eq!(store.jobs_asked, 2);
    let record = std::fs::read(folder.path().join(RECORD)).expect("it is there");
    assert_eq!(record, b"the next step");
}

type Told = tokio::sync::mpsc::UnboundedReceiver<Input>;

fn of_one_page(folder: &Path) -> (Store, Stored, Told) {
    let mut options = Options { create_directory: true, ..Options::default() };
    options.journal.geometry = Geometry { page_bytes: 4096, pages: 1, segment_pages: 64 };
    let (done, told) = tokio::sync::mpsc::unbounded_channel();
    let (store, stored) = Store::open_with(folder, &options, done).expect("it can be opened");
    (store, stored, told)
}

/// The node's thread waited until a page was written, and could outwait its lease.
#[test]
fn records_for_which_no_page_is_free_are_handed_over_and_stay_in_order() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (mut store, _, _told) = of_one_page(folder.path());
    let payload = |number: u8| vec![number; 500 + 100 * usize::from(number)];
    let mut handed_over = 0;
    for number in 1..=60 {
        let record = RecordNumber(u64::from(number));
        let safe = store.append(Level::Process, RegionId(1), record, payload(number));
        handed_over += u64::from(!safe.expect("the disk has room"));
    }
    assert!(handed_over > 0, "one page was enough for all");
    store.end_thread();
    assert_eq!(store.progress.behind_bytes.load(Ordering::Relaxed), 0);
    drop(store);
    let (_, stored, _) = of_one_page(folder.path());
    let expected: Vec<_> = (1..=60).map(|number| (RegionId(1), payload(number))).collect();
    assert!(stored.records == expected, "what was appended is not what is there");
}

/// A cut of a view that was larger than a page of the journal ended the node.
#[test]
fn a_record_that_is_longer_than_a_page_comes_back_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (mut store, _, _told) = of_one_page(folder.path());
    let long: Vec<u8> = (0..50_000_u32).map(|byte| byte.to_le_bytes()[0]).collect();
    for (number, bytes) in (1..).zip([b"short".to_vec(), long.clone(), b"last".to_vec()]) {
        store.append(Level::Process, RegionId(1), RecordNumber(number), bytes).expect("the disk has room");
    }
    store.end_thread();
    // Killed within one.
    store.log.append(FIRST_PART, InstanceId(1), &[b"a part"]).expect("the disk has room");
    drop(store);
    let (mut store, _, _told) = of_one_page(folder.path());
    store.append(Level::Process, RegionId(1), RecordNumber(1), long.clone()).expect("the disk has room");
    store.end_thread();
    drop(store);
    let (_, stored, _) = of_one_page(folder.path());
    let expected =
        [b"short".to_vec(), long.clone(), b"last".to_vec(), long].map(|bytes| (RegionId(1), bytes));
    assert!(stored.records == expected, "what was appended is not what is there");
}

#[test]
fn a_restart_of_the_machine_is_noticed_unless_the_store_was_sealed() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let open = || {
        let (done, _) = tokio::sync::mpsc::unbounded_channel();
        Store::open(folder.path(), "", done).expect("it can be opened").0
    };
    let store = open();
    assert!(!store.power_lost, "a new one has nothing to lose");
    store.begin().expect("the disk has room");
    drop(store);
    assert!(!open().power_lost, "it was killed, in the same run of the machine");
    std::fs::write(folder.path().join(BOOT), "another run").expect("it can be written");
    let store = open();
    assert!(store.power_lost);
    drop(store);
    let store = open();
    assert!(store.power_lost, "nobody has taken it on");
    store.seal().expect("the disk has room");
    assert!(!open().power_lost, "all was durable");
}

#[test]
fn a_disk_that_does_not_get_on_is_noticed() {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let (mut store, _, _told) = of_one_page(folder.path());
    let at = |seconds| Time::EPOCH.after(Duration::from_secs(seconds));
    assert!(!store.is_stuck(at(100)), "nothing was asked of it");
    // As if the thread had not come back with it.
    store.jobs_asked += 1;
    assert!(!store.is_stuck(at(104)));
    assert!(store.is_stuck(at(106)));
    store.progress.steps.fetch_add(1, Ordering::Release);
    assert!(!store.is_stuck(at(107)));
    assert!(store.is_stuck(at(113)));
    store.progress.jobs_done.fetch_add(1, Ordering::Release);
    assert!(!store.is_stuck(at(114)));
}
