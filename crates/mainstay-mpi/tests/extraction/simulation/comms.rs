//! Communicators that all their members make and free.

use super::*;

impl Simulation {
    /// All members make communicators of one, or free it.
    pub(super) fn change_comms(&mut self) {
        let live: Vec<usize> = self.nodes.iter().flat_map(|node| node.comms.keys().copied()).collect();
        let comm = self.random.choice(live).expect("the world");
        let groups = self.comms[comm].clone();
        let members: Vec<usize> = groups.concat();
        match self.random.u8(..4) {
            0 if comm != 0 => {
                for at in members {
                    let node = &mut self.nodes[at];
                    let handle = node.comms.remove(&comm).expect("a member has a handle");
                    node.rank.open("MPI_Comm_free", 0);
                    node.rank.object_in(ObjectKind::Comm, handle);
                    node.rank.result();
                    node.rank.object_out(ObjectKind::Comm, COMM_NULL);
                    node.rank.close();
                    node.comm_handles.free.push(handle);
                }
                self.reach("freed communicator");
            }
            1 if groups.len() == 1 => {
                let (mut one, mut other) = (Vec::new(), Vec::new());
                members
                    .iter()
                    .for_each(|at| if self.random.bool() { one.push(*at) } else { other.push(*at) });
                for mut group in [one, other].into_iter().filter(|group| !group.is_empty()) {
                    self.random.shuffle(&mut group);
                    self.make_comm("MPI_Comm_split", comm, vec![group]);
                }
            }
            2 if groups.len() == 1 && members.len() > 1 => {
                let cut = self.random.usize(1..members.len());
                let (one, other) = members.split_at(cut);
                self.make_comm("MPI_Intercomm_create", comm, vec![one.to_vec(), other.to_vec()]);
                self.reach("inter-communicator");
            }
            _ => self.make_comm("MPI_Comm_dup", comm, groups),
        }
    }

    pub(super) fn make_comm(&mut self, name: &'static str, of: usize, groups: Vec<Vec<usize>>) {
        let made = self.comms.len();
        self.comms.push(groups.clone());
        let numbers = |ranks: &[usize]| ranks.iter().map(|rank| i64::try_from(*rank).expect("few")).collect();
        for group in &groups {
            for (place, at) in group.iter().enumerate() {
                let peers: Vec<i64> = numbers(self.peers(made, *at));
                let locals = (groups.len() == 2).then(|| numbers(group));
                let node = &mut self.nodes[*at];
                let handle = node.comm_handles.make();
                node.rank.open(name, 0);
                node.rank.object_in(ObjectKind::Comm, node.comms[&of]);
                node.rank.result();
                node.rank.object_out(ObjectKind::Comm, handle);
                node.rank.close();
                node.rank.define_comm(handle, place, peers, locals);
                node.comms.insert(made, handle);
                assert_eq!(node.at, *at);
            }
        }
    }
}
