//! Requests at level peers, whose log a region of three nodes keeps, by turns with levels process and disk.

use super::requests::{Server, arms, by_turns, rates};
use super::services::{serve, serve_kept};
use super::{Setting, StepError};
use crate::group::{Group, Made};
use crate::report::{Figure, Report};
use mainstay_recovery::policy::Policy;
use mainstay_types::level::Level;

pub(super) fn measure(setting: &Setting<'_>, report: &mut Report) -> Result<(), StepError> {
    let directory = setting.directory.join("level-peers");
    std::fs::create_dir_all(&directory)?;
    let group = Group::start(Made {
        program: setting.given,
        folder: directory.join("region"),
        region: "ack=majority".to_owned(),
        link_delay_us: 0,
    })?;
    let policy = Policy::Deferred;
    let running = [
        serve(&directory, Level::Process, policy)?,
        serve(&directory, Level::Disk, policy)?,
        serve_kept(&directory, policy, group.servers())?,
    ];
    let levels = [Level::Process, Level::Disk, Level::Peers];
    let servers = running.iter().zip(levels).map(|(service, level)| Server {
        name: format!("ours: {policy}, {level}"),
        level: Some(level),
        address: service.address(),
    });
    let servers: Vec<Server> = servers.collect();
    for clients in [1, 64] {
        let measured = by_turns(setting, clients, &servers, || Ok(()))?;
        let mut notes = rates(&servers, &measured);
        notes.push(
            "the region is at level process, acknowledged by two of three; its nodes are on this machine"
                .to_owned(),
        );
        notes.push("processor time is that of the service and its clients, without the nodes'".to_owned());
        report.figures.push(Figure {
            name: if clients == 1 { "level peers, 1 client" } else { "level peers, 64 clients" },
            meaning: "POST /call with a key of its own, until the whole answer is there".to_owned(),
            arms: arms(clients, &servers, measured),
            notes,
        });
    }
    for service in running {
        service.stop()?;
    }
    Ok(())
}
