//! A service on a file system that is full: it takes nothing new, also after a restart, and goes on by itself when there is space.

use crate::harness::{Answered, Folder, PATIENCE, Service, mainstay};
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const OPEN: &str = r#"{"open":{"account":"ann"}}"#;

/// A small file system that no other process sees. It vanishes with its holder, which ends when this process does, however that
/// ends: it reads a pipe.
struct SmallDisk {
    holder: Child,
    at: PathBuf,
}

impl SmallDisk {
    /// `None` where mounting is not allowed.
    fn mounted(folder: &Folder) -> Option<Self> {
        let at = folder.path("disk");
        fs::create_dir(&at).expect("a folder can be made");
        let script = r#"mount -t tmpfs -o size=8m mainstay-test "$0" && echo mounted && exec cat"#;
        let holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", script])
            .arg(&at)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut disk = Self { holder, at };
        let said = crate::harness::first_line(disk.holder.stdout.take().expect("it is piped"));
        (said.trim() == "mounted").then_some(disk)
    }

    /// How this process sees a path of that file system.
    fn path(&self, name: &str) -> PathBuf {
        let within = self.at.strip_prefix("/").expect("temporary folders have absolute paths");
        PathBuf::from(format!("/proc/{}/root", self.holder.id())).join(within).join(name)
    }

    /// Takes all space that is left.
    fn fill(&self) {
        let mut filler = File::create(self.path("filler")).expect("a file can be made");
        // The last bytes too, or a file of one block would still fit.
        for chunk_bytes in [64 << 10, 4096, 1] {
            while filler.write_all(&vec![1; chunk_bytes]).is_ok() {}
        }
    }

    fn make_space(&self) {
        fs::remove_file(self.path("filler")).expect("it is there");
    }

    /// The ledger on that file system.
    fn serve(&self, folder: &Folder) -> Service {
        let directory = self.at.join("ledger");
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.holder.id()));
        command.arg(mainstay(folder).get_program());
        Service::start_as(
            command,
            folder,
            directory.to_str().expect("temporary folders are UTF-8"),
            &["--listen", "127.0.0.1:0"],
        )
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

fn deposit(service: &Service, number: u32) -> Answered {
    // A long name fills the journal sooner.
    let body = format!(r#"{{"open":{{"account":"{number:08000}"}}}}"#);
    service.call(&format!("key-{number}"), &body)
}

fn get(service: &Service, path: &str) -> (u16, String) {
    let agent = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(PATIENCE));
    let mut response =
        agent.build().new_agent().get(format!("{}{path}", service.url)).call().expect("the service answers");
    let body = response.body_mut().read_to_string().expect("answers are text");
    (response.status().as_u16(), body)
}

#[test]
fn a_service_starts_on_a_full_disk_reads_and_takes_requests_when_there_is_space() {
    let folder = Folder::new();
    let Some(disk) = SmallDisk::mounted(&folder) else {
        println!("skipped: a service on a full disk: mounting needs root");
        return;
    };
    let service = disk.serve(&folder);
    let first = service.call("first", OPEN);
    assert_eq!(first.status, 200, "{}", first.body);
    disk.fill();
    let mut taken = 1;
    let refused = loop {
        let answered = deposit(&service, taken);
        if answered.status != 200 {
            break answered;
        }
        taken += 1;
    };
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.body.contains("unavailable-disk-full"), "{}", refused.body);

    // A kill leaves no room for the first record of another life. Twice: a start uses nothing up.
    service.kill();
    disk.serve(&folder).kill();
    let service = disk.serve(&folder);
    assert_eq!(service.view()["operations"], taken);
    let again = service.call("first", OPEN);
    assert_eq!((again.status, again.replayed, &again.body), (200, true, &first.body));
    let refused = deposit(&service, taken);
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert!(refused.body.contains("unavailable-disk-full"), "{}", refused.body);
    let (status, health) = get(&service, "/health");
    assert_eq!(status, 503);
    assert!(health.contains("disk-full"), "{health}");
    let (_, metrics) = get(&service, "/metrics");
    assert!(metrics.contains("\nmainstay_disk_full 1\n"), "{metrics}");

    disk.make_space();
    let began = Instant::now();
    while deposit(&service, taken).status != 200 {
        assert!(began.elapsed() < PATIENCE, "it does not go on with space");
        std::thread::sleep(Duration::from_millis(20));
    }
    service.kill();
    let service = disk.serve(&folder);
    assert_eq!(service.view()["operations"], taken + 1);
    assert_eq!(service.stop(), 0);
}
