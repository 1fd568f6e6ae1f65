//! Hosts on one wire: a network namespace each, with a disk of its own and a clock that was started at another time, all joined by a bridge in one more.
//!
//! A namespace lives as long as the process that holds it, which ends when this one does, however it ends: it reads a pipe. With the namespaces go
//! addresses, links and mounts.

use crate::harness::{Folder, first_line};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

/// Nobody's: what is sent there gets lost on the wire, and the sender does not hear so.
const NOBODY: &str = "02:00:00:00:00:99";

/// How far ahead the clocks of the hosts are of each other's, in seconds: they count from another start.
const STARTED_APART_S: usize = 90_000;

/// How large the disk of a host is: several segments of a journal. What is not written takes no memory.
const DISK_BYTES: &str = "256m";

/// Somebody who keeps namespaces.
struct Holder {
    child: Child,
    pid: u32,
}

impl Holder {
    /// `Err` says what is not possible here.
    fn new(namespaces: &[String], script: &str, argument: &Path) -> Result<Self, String> {
        let mut command = Command::new("unshare");
        command.args(["--fork", "--kill-child", "--net"]).args(namespaces);
        command.args(["sh", "-c", &format!("ip link set lo up && {script} && echo $$ && exec cat")]);
        command.arg(argument).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| format!("unshare: {error}"))?;
        let said = first_line(child.stdout.take().expect("it is piped"));
        match said.trim().parse() {
            Ok(pid) => Ok(Self { child, pid }),
            Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                Err("namespaces need root, and iproute2".to_owned())
            }
        }
    }

    /// Runs `ip` there.
    fn ip(&self, words: &str) -> Result<(), String> {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.pid)).arg("ip").args(words.split(' '));
        let said = command.output().map_err(|error| format!("nsenter: {error}"))?;
        let error = String::from_utf8_lossy(&said.stderr);
        if said.status.success() { Ok(()) } else { Err(format!("ip {words}: {}", error.trim())) }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A host.
pub(crate) struct Host {
    holder: Holder,
    /// Its only address, but for loopback.
    pub(crate) address: IpAddr,
    disk: PathBuf,
}

impl Host {
    /// Its disk, as it sees it.
    pub(crate) fn disk(&self) -> &Path {
        &self.disk
    }

    /// Runs a program there.
    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--target", &self.holder.pid.to_string(), "--net", "--mount", "--time", program]);
        command
    }

    /// A thread of this process that speaks from there.
    pub(crate) fn thread<T: Send + 'static>(
        &self,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        let network = File::open(format!("/proc/{}/ns/net", self.holder.pid)).expect("it is held");
        thread::spawn(move || {
            move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                .expect("root may go there");
            act()
        })
    }

    /// Takes all space of its disk.
    pub(crate) fn fill_disk(&self) {
        let mut filler = File::create(self.path_from_outside("filler")).expect("a file can be made");
        for chunk_bytes in [64 << 10, 4096, 1] {
            while filler.write_all(&vec![1; chunk_bytes]).is_ok() {}
        }
    }

    /// Gives it back.
    pub(crate) fn clear_disk(&self) {
        fs::remove_file(self.path_from_outside("filler")).expect("it is there");
    }

    fn path_from_outside(&self, name: &str) -> PathBuf {
        let within = self.disk.strip_prefix("/").expect("temporary folders have absolute paths");
        PathBuf::from(format!("/proc/{}/root", self.holder.pid)).join(within).join(name)
    }
}

/// The hosts, and what joins them.
pub(crate) struct Wire {
    hub: Holder,
    pub(crate) hosts: [Host; 3],
}

impl Wire {
    /// `Err` says what is not possible here.
    pub(crate) fn laid(folder: &Folder) -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Err("namespaces need root".to_owned());
        }
        let hub = Holder::new(&[], "true", Path::new("."))?;
        hub.ip("link add hub type bridge")?;
        hub.ip("link set hub up")?;
        let hosts = [1, 2, 3].map(|number: u8| -> Result<Host, String> {
            let disk = folder.path(&format!("disk{number}"));
            fs::create_dir(&disk).expect("a folder can be made");
            let apart = STARTED_APART_S * usize::from(number);
            let own = [format!("--boottime={apart}"), "--time".to_owned(), "--mount".to_owned()];
            let mount = format!("mount -t tmpfs -o size={DISK_BYTES} mainstay-test \"$0\"");
            let holder = Holder::new(&own, &mount, &disk)?;
            hub.ip(&format!("link add to{number} type veth peer name wire netns {}", holder.pid))?;
            hub.ip(&format!("link set to{number} master hub up"))?;
            holder.ip(&format!("address add 10.77.0.{number}/24 dev wire"))?;
            holder.ip("link set wire up")?;
            Ok(Host { holder, address: Ipv4Addr::new(10, 77, 0, number).into(), disk })
        });
        let [first, second, third] = hosts;
        Ok(Self { hub, hosts: [first?, second?, third?] })
    }

    /// Nothing comes from or to that host any more.
    pub(crate) fn cut(&self, host: usize) {
        self.hub.ip(&format!("link set to{} down", host + 1)).expect("it was up");
    }

    /// Nothing comes from that host any more: it hears the others.
    pub(crate) fn mute(&self, host: usize) {
        self.lose(host, |other| other != host);
    }

    /// Nothing comes to that host any more: the others hear it.
    pub(crate) fn deafen(&self, host: usize) {
        (0..self.hosts.len())
            .filter(|&other| other != host)
            .for_each(|other| self.lose(other, |to| to == host));
    }

    fn lose(&self, from: usize, to: impl Fn(usize) -> bool) {
        for (_, lost) in self.hosts.iter().enumerate().filter(|(number, _)| to(*number)) {
            let words = format!("neigh replace {} lladdr {NOBODY} dev wire nud permanent", lost.address);
            self.hosts[from].holder.ip(&words).expect("the address is of the wire");
        }
    }

    /// All is well again.
    pub(crate) fn heal(&self) {
        for number in 1..=self.hosts.len() {
            self.hub.ip(&format!("link set to{number} up")).expect("it is there");
        }
        for host in &self.hosts {
            // What is permanent goes only by its name.
            for other in self.hosts.iter().filter(|other| other.address != host.address) {
                let _ = host.holder.ip(&format!("neigh del {} dev wire", other.address));
            }
        }
    }
}
