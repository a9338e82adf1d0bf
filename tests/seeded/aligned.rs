//! A device that takes aligned operands only: the kit gives it none that are not, and the core copies those that it would not take.

use crate::seeded::frame::{failures, named, options, run, wrapped_cpu};
use crossweave_backend_cpu::CpuBackend;
use crossweave_hal::abi::{Layout, op};
use crossweave_hal::loader::load;
use crossweave_hal::{
    Buffer, DType, Device, HostServices, NoDecompose, OpRequest, Plugin, RawPlugin, Region, Stream,
    Tag,
};

const CASES: [&str; 4] = [
    "op.binary.add.f32",
    "op.swiglu_bwd.f32",
    "op.matmul.f32",
    "op.softmax_fwd.two_streams",
];

#[test]
fn the_kit_gives_an_aligned_device_aligned_operands() {
    let mut o = options(&wrapped_cpu(), "", &CASES);
    o.config.insert("seeded.align".into(), "256".into());
    let r = run(&o);
    assert_eq!(failures(&r), Vec::<String>::new());
    assert_eq!(r.exit_code(), 0);
    // Who needs alignment and does not say so is given views as they are.
    let silent = ("alignment_is_not_said", CASES[0]);
    let why = named(&wrapped_cpu(), silent).expect("named");
    assert!(why.contains("alignment"), "{why}");
}

/// A device and a stream of it.
struct Bench {
    stream: Stream,
    device: Device,
}

impl Bench {
    fn new(plugin: &Plugin) -> Bench {
        let device = plugin.open(0).expect("a device");
        Bench {
            stream: device.stream("s", 0).expect("a stream"),
            device,
        }
    }

    fn memory(&self, bytes: u64, scale: f32) -> Buffer {
        let b = self.device.alloc(&self.stream, bytes, Tag::Activation);
        let b = b.expect("memory");
        let words = (0..bytes / 4).map(|i| ((i * 37 % 101) as f32 / 50.0 - 1.0) * scale);
        let words: Vec<u8> = words.flat_map(f32::to_le_bytes).collect();
        self.stream.write(b.all(), &words).expect("written");
        b
    }

    fn launch(&self, id: u32, operands: &[(Layout, Region<'_>)], params: &[u8]) {
        let (layouts, regions): (Vec<Layout>, Vec<_>) =
            operands.iter().map(|(l, r)| (*l, Some(*r))).unzip();
        let kernel = self
            .device
            .prepare(&OpRequest::new(id, &layouts, params), &NoDecompose);
        let kernel = kernel.expect("an op");
        assert!(kernel.is_native());
        self.stream
            .launch(&kernel, &regions, &[])
            .expect("launched");
    }

    fn read(&self, b: &Buffer) -> Vec<u8> {
        let mut out = vec![0; b.bytes() as usize];
        self.stream.read(b.all(), &mut out).expect("read");
        out
    }
}

/// Views at places of no alignment: the output in place of an input, slices of one packed matrix beside each other, an output added to, a
/// transposed copy.
fn views(plugin: &Plugin) -> Vec<Vec<u8>> {
    let d = Bench::new(plugin);
    let none = op::NoParams::default();
    let dense = |shape: &[u64]| Layout::contiguous(DType::F32, shape);
    let (n, w) = (6u64, 10u64);
    let mut out = vec![];

    let x = d.memory(4 * 200, 1.0);
    let y = d.memory(4 * 200, 0.5);
    let (a, b) = (x.region(4 * 3, 4 * 60), y.region(4 * 17, 4 * 60));
    let l = dense(&[n, w]);
    let mut same = l;
    same.flags |= crossweave_hal::abi::LAYOUT_MAY_ALIAS;
    let add = op::KindParams {
        kind: op::binary::ADD,
        ..Default::default()
    };
    d.launch(op::BINARY, &[(same, a), (l, a), (l, b)], add.as_bytes());
    out.extend([d.read(&x), d.read(&y)]);

    // dgate and dup are columns 1 to 10 and 11 to 20 of one matrix of width 24.
    let packed = d.memory(4 * 24 * n, 3.0);
    let slice = Layout::strided(DType::F32, &[n, w], &[24, 1]);
    let part = |from: u64| packed.region(4 * from, 4 * (24 * (n - 1) + w));
    let inputs = [
        d.memory(4 * 61, 1.0),
        d.memory(4 * 61, 0.7),
        d.memory(4 * 61, 0.3),
    ];
    let views = inputs.each_ref().map(|b| (l, b.region(4, 4 * 60)));
    let slices = [(slice, part(1)), (slice, part(11))];
    d.launch(
        op::SWIGLU_BWD,
        &[&slices[..], &views].concat(),
        none.as_bytes(),
    );
    out.push(d.read(&packed));

    let table = d.memory(4 * 100, 2.0);
    let sum = op::ReduceParams {
        kind: op::reduce::SUM,
        axes: 1,
        flags: op::FLAG_ACCUM,
        ..Default::default()
    };
    let row = (dense(&[1, w]), table.region(4 * 7, 4 * w));
    d.launch(
        op::REDUCE,
        &[row, (l, inputs[0].region(4, 4 * 60))],
        sum.as_bytes(),
    );
    out.push(d.read(&table));

    let turned = d.memory(4 * 100, 1.0);
    let columns = Layout::strided(DType::F32, &[n, w], &[1, n as i64]);
    let to = (columns, turned.region(4 * 5, 4 * 60));
    d.launch(
        op::COPY_STRIDED,
        &[to, (l, inputs[1].region(4, 4 * 60))],
        none.as_bytes(),
    );
    out.push(d.read(&turned));
    out
}

#[test]
fn the_core_copies_views_that_an_aligned_device_would_not_take() {
    crossweave_tests::in_own_process!();
    let host = HostServices::builder().threads(2);
    let host = host.config("seeded.align", "256").build();
    let aligned = Plugin::new(load(&wrapped_cpu(), &host).expect("a plugin"));
    let plain = Plugin::new(RawPlugin::from_static::<CpuBackend>(&host).expect("linked"));
    let (a, p) = (views(&aligned), views(&plain));
    assert!(!a.is_empty());
    for (i, (a, p)) in a.iter().zip(&p).enumerate() {
        assert!(a == p, "result {i} is another on an aligned device");
    }
}
