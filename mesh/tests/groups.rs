//! A mesh of eight ranks as threads: every set of axes talks to exactly its members, and groups of one name do not meet.
#![forbid(unsafe_code)]

use crossweave_hal::{
    Bootstrap, DType, HostServices, KvStore, LocalKv, Plugin, RawPlugin, Reduce, Result, Tag,
};
use crossweave_mesh::{Axis, AxisSet, Mesh, MeshOptions, Place, Topology};
use std::sync::Arc;
use std::time::Duration;

struct Boot(Arc<dyn KvStore>);
impl Bootstrap for Boot {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.set(key, value)
    }
    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.0.get(key, Some(timeout))
    }
}

const SETS: [&[Axis]; 7] = [
    &[Axis::Dp],
    &[Axis::Tp],
    &[Axis::Pp],
    // Written backwards: a set is a set.
    &[Axis::Tp, Axis::Dp],
    &[Axis::Dp, Axis::Pp, Axis::Tp],
    // Groups of one: an axis of length one, and no axis at all.
    &[Axis::Ep],
    &[],
];

fn each_rank(topology: Topology, body: impl Fn(Place, crossweave_hal::Device, &Boot) + Sync) {
    let kv: Arc<dyn KvStore> = Arc::new(LocalKv::default());
    let host = HostServices::builder()
        .config("cpu.threads", "1")
        .kv(kv.clone())
        .build();
    let raw = RawPlugin::from_static::<crossweave_backend_cpu::CpuBackend>(&host).unwrap();
    let plugin = Plugin::new(raw);
    std::thread::scope(|s| {
        for rank in 0..topology.world_size() {
            let (plugin, kv, body) = (&plugin, &kv, &body);
            let place = Place::new(topology, rank).unwrap();
            s.spawn(move || body(place, plugin.open(0).unwrap(), &Boot(kv.clone())));
        }
    });
}

#[test]
fn every_group_sums_over_its_members_and_nobody_else() {
    let topology = Topology::new(&[(Axis::Dp, 2), (Axis::Tp, 2), (Axis::Pp, 2)]).unwrap();
    each_rank(topology, |place, device, boot| {
        let options = MeshOptions {
            timeout: Some(Duration::from_secs(60)),
            islands: None,
        };
        let mut mesh = Mesh::new(&device, boot, place, &SETS, &options).unwrap();
        let (s, rank) = (device.stream("test", 0).unwrap(), place.job_rank());
        for axes in SETS {
            // Each rank brings its own bit: the sum says who took part, and that each did once.
            let b = device.alloc(&s, 4, Tag::Comm).unwrap();
            s.write(b.all(), &((1u32 << rank) as f32).to_le_bytes())
                .unwrap();
            let members = mesh.members(axes).unwrap().clone();
            let group = mesh.group(axes).unwrap();
            assert_eq!(
                (group.rank(), group.size()),
                (members.index, members.size())
            );
            assert_eq!(place.index(AxisSet::from(axes)), members.index);
            group
                .all_reduce(&s, b.all(), DType::F32, Reduce::Sum, "test")
                .unwrap();
            let mut got = [0u8; 4];
            s.read(b.all(), &mut got).unwrap();
            let want: u32 = members.ranks.iter().map(|r| 1 << r).sum();
            assert_eq!(
                f32::from_le_bytes(got),
                want as f32,
                "rank {rank} over {axes:?}"
            );
        }
        let lines = device.collectives();
        let mut names: Vec<&str> = lines.iter().map(|l| l.group.as_str()).collect();
        names.sort();
        assert_eq!(names, ["dp", "dp.tp", "ep", "pp", "pp.dp.tp", "self", "tp"]);
        assert_eq!(mesh.abort_handles().len(), SETS.len());
        assert!(mesh.explain().iter().all(|(_, l)| l.route.is_ok()));
    });
}

#[test]
fn a_group_that_was_not_asked_for_is_named_with_those_that_were() {
    let topology = Topology::new(&[(Axis::Dp, 1)]).unwrap();
    each_rank(topology, |place, device, boot| {
        let options = MeshOptions::default();
        let sets: [&[Axis]; 2] = [&[Axis::Dp], &[Axis::Dp]];
        let mut mesh = Mesh::new(&device, boot, place, &sets, &options).unwrap();
        assert_eq!(mesh.group(&[Axis::Dp]).unwrap().size(), 1);
        let e = mesh.group(&[Axis::Tp, Axis::Dp]).err().unwrap();
        assert!(
            e.message.contains("no group dp.tp") && e.message.contains("groups are: dp."),
            "{e}"
        );
        let mixed: [&[Axis]; 1] = [&[Axis::Dp, Axis::Ep]];
        let e = Mesh::new(&device, boot, place, &mixed, &options)
            .err()
            .unwrap();
        assert!(e.message.contains("rank 0 joining group dp.ep"), "{e}");
    });
}
