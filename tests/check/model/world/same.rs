//! Equivalence of states, of which each class is explored once.

use super::*;

impl World {
    /// Removes parts that no step depends on: stopped QEMUs without pods. Renumbers versions from the smallest number,
    /// because only their order matters.
    pub fn plain(mut self) -> Self {
        let uid = self.pod.map_or(0, |pod| usize::from(pod.uid));
        for node in &mut self.nodes {
            let pods = node.pods.iter_mut().enumerate().filter(|(n, _)| *n != uid);
            let dead = pods.filter(|(_, pod)| matches!(pod, Local::Dead | Local::PoweredOff));
            dead.for_each(|(_, pod)| *pod = Local::Nothing);
        }
        let mut ranks = [0u64; 2];
        self.versions(&mut |kind, version| ranks[kind] |= 1 << (*version).min(63));
        self.versions(&mut |kind, version| {
            *version = (ranks[kind] & ((1 << (*version).min(63)) - 1)).count_ones() as u8 + 1;
        });
        self
    }

    /// The same state for two that differ by an exchange of the nodes, or of the operators.
    pub fn key(mut self, operators: usize) -> Self {
        let node = self.pod.and_then(|pod| pod.node);
        let with_pod = |n: u8| (self.nodes[usize::from(n)], node == Some(n));
        if with_pod(1) < with_pod(0) {
            self.nodes.swap(0, 1);
            self.pod
                .iter_mut()
                .for_each(|pod| pod.node = pod.node.map(|node| 1 - node));
            // No decision depends on the knowledge of a node.
        }
        for operator in &mut self.operators {
            operator.pod.iter_mut().for_each(|pod| pod.node = None);
            if let Doing::Answered {
                answer: Answer::Pod { pod: Some(pod), .. },
                ..
            } = &mut operator.doing
            {
                pod.node = None;
            }
        }
        if operators == 2 && self.operators[1].order() < self.operators[0].order() {
            self.operators.swap(0, 1);
        }
        self
    }

    /// Visits all versions of VMs (0) and of pods (1).
    fn versions(&mut self, visit: &mut impl FnMut(usize, &mut u8)) {
        fn of_request(request: &mut Request, visit: &mut impl FnMut(usize, &mut u8)) {
            match request {
                Request::StopVm { version, .. } | Request::Status { version, .. } => {
                    visit(0, version)
                }
                Request::Delete { version, .. } => {
                    version.iter_mut().for_each(|version| visit(1, version))
                }
                Request::Create { .. } => {}
            }
        }
        self.vm.iter_mut().for_each(|vm| visit(0, &mut vm.version));
        self.pod
            .iter_mut()
            .for_each(|pod| visit(1, &mut pod.version));
        for operator in &mut self.operators {
            operator
                .vm
                .iter_mut()
                .for_each(|vm| visit(0, &mut vm.version));
            operator
                .pod
                .iter_mut()
                .for_each(|pod| visit(1, &mut pod.version));
            if operator.reported.1 > 0 {
                visit(1, &mut operator.reported.1);
            }
            operator
                .late
                .iter_mut()
                .for_each(|request| of_request(request, visit));
            match &mut operator.doing {
                Doing::Nothing => {}
                Doing::Asked { request, next, .. } => {
                    of_request(request, visit);
                    next.iter_mut()
                        .for_each(|request| of_request(request, visit));
                }
                Doing::Answered { answer, next } => {
                    match answer {
                        Answer::Pod { pod, .. } => {
                            pod.iter_mut().for_each(|pod| visit(1, &mut pod.version))
                        }
                        Answer::Vm(vm) => visit(0, &mut vm.version),
                    }
                    next.iter_mut()
                        .for_each(|request| of_request(request, visit));
                }
            }
        }
    }
}
