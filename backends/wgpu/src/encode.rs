//! The recording half of a stream's thread: dispatches and copies go into one command buffer until something needs it handed over.
//!
//! The parameter blocks of all dispatches of a command buffer lie in one small buffer, written once when it is handed over and bound at a
//! dynamic offset. Bind groups are found by the buffers, offsets and sizes they bind, so a step that uses memory as the last one did makes
//! none.

use crate::device::{Pipeline, Shared};
use crate::dispatch::Ready;
use crate::kernel::{Bind, Source, Words};
use crate::memory::{Block, HostBlock, Place, Region};
use crate::reaper::{Item, ReadBack, Told};
use crate::stream::{Progress, Rows};
use crate::transfer::Transfers;
use crossweave_plugin::{Code, Result, fail};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;
use wgpu::{
    BindGroupDescriptor, BindGroupEntry, BindingResource, BufferBinding, BufferUsages,
    CommandEncoder, ComputePass, SubmissionIndex,
};

/// Bytes of the parameter blocks of one command buffer.
const RING: u64 = 256 << 10;

/// Records a stream's commands.
pub(crate) struct Encoder {
    device: Arc<Shared>,
    progress: Arc<Progress>,
    transfers: Transfers,
    ring: Block,
    /// What an operand without elements is bound to.
    nothing: Block,
    params: Vec<u8>,
    encoder: Option<CommandEncoder>,
    pass: Option<ComputePass<'static>>,
    /// Dispatches and copies recorded.
    recorded: u32,
    /// Something waits in the queue for a submission.
    written: bool,
    reads: Vec<ReadBack>,
    /// Last command that reads device memory back to the host's.
    read_at: u64,
    noted: u64,
    flushed: u64,
    last: Option<SubmissionIndex>,
    key: Vec<u64>,
}

impl Encoder {
    pub fn new(device: &Arc<Shared>, progress: Arc<Progress>) -> Result<Encoder> {
        Ok(Encoder {
            transfers: Transfers::new(device)?,
            ring: Block::with(device, RING, BufferUsages::UNIFORM | BufferUsages::COPY_DST)?,
            nothing: Block::new(device, 256)?,
            device: device.clone(),
            progress,
            params: Vec::with_capacity(RING as usize),
            encoder: None,
            pass: None,
            recorded: 0,
            written: false,
            reads: vec![],
            read_at: 0,
            noted: 0,
            flushed: 0,
            last: None,
            key: vec![],
        })
    }

    pub fn device(&self) -> &Shared {
        &self.device
    }

    /// Command `seq` is the one being run.
    pub fn note(&mut self, seq: u64) {
        self.noted = seq;
    }

    /// Is there anything a flush would tell?
    pub fn pending(&self) -> bool {
        self.noted > self.flushed
    }

    fn encoder(&mut self) -> &mut CommandEncoder {
        self.pass = None;
        let device = &self.device.device;
        self.encoder
            .get_or_insert_with(|| device.create_command_encoder(&Default::default()))
    }

    /// Hands everything recorded over; `seq` is the last command in it.
    pub fn flush(&mut self, seq: u64) -> Result<()> {
        if seq <= self.flushed {
            return Ok(());
        }
        self.flushed = seq;
        // From here on the stream is notified, whatever happens.
        let told = Told {
            stream: self.progress.clone(),
            seq,
        };
        let reads = std::mem::take(&mut self.reads);
        let sent = self.submit(|| {
            for r in &reads {
                // The callback has nothing to say that mapping the range later does not.
                r.staging.map_async(wgpu::MapMode::Read, .., |_| {});
            }
        });
        if let (Some(index), Ok(())) = (&self.last, &sent) {
            self.device.reaper.push(Item {
                index: index.clone(),
                reads,
                told,
            });
        } else {
            // Nothing of this stream is on the adapter.
            drop(reads);
            drop(told);
        }
        self.progress.submit(seq);
        sent
    }

    /// Hands what is recorded to the adapter's queue, if there is anything and the device lives; `then` runs behind it.
    fn submit(&mut self, then: impl FnOnce()) -> Result<()> {
        self.pass = None;
        let encoder = self.encoder.take();
        let device = &self.device;
        if (self.recorded > 0 || self.written) && device.fault.get().is_none() {
            device.fault.contain("handing over to the adapter", || {
                if !self.params.is_empty() {
                    let ring = &self.ring.buffer;
                    device.queue.write_buffer(ring, 0, &self.params);
                }
                self.last = Some(device.queue.submit(encoder.map(CommandEncoder::finish)));
                device.counts.submits.fetch_add(1, Relaxed);
                then();
            });
        }
        self.params.clear();
        self.recorded = 0;
        self.written = false;
        self.device.check()
    }

    /// Waits until everything up to `seq` has ended.
    pub fn settle(&mut self, seq: u64) -> Result<()> {
        self.flush(seq)?;
        self.progress.wait_all(seq);
        self.device.check()
    }

    /// Waits until what was read back up to `seq` is in the host's memory.
    pub fn settle_reads(&mut self, seq: u64) -> Result<()> {
        if self.progress.passed(self.read_at) {
            return Ok(());
        }
        self.settle(seq)
    }

    /// Records an op.
    pub fn launch(&mut self, op: &Ready, operands: &[Option<Region>], words: &Words) -> Result<()> {
        let began = Instant::now();
        let (workspace, operands) = match op.workspace {
            0 => (None, operands),
            _ => operands
                .split_last()
                .map_or((None, operands), |(w, rest)| (w.as_ref(), rest)),
        };
        for (pass, pipeline) in &op.passes {
            if pass.groups.contains(&0) {
                continue;
            }
            self.dispatch(
                pipeline,
                &pass.binds,
                &pass.params,
                pass.groups,
                |source| match source {
                    Source::Operand(i) => operands.get(i)?.as_ref().map(|r| (r, 0)),
                    Source::Workspace { at } => workspace.map(|w| (w, at)),
                },
                words,
            )?;
        }
        let took = began.elapsed().as_nanos() as u64;
        self.device.counts.encode_ns.fetch_add(took, Relaxed);
        Ok(())
    }

    /// Records one dispatch.
    fn dispatch<'r>(
        &mut self,
        pipeline: &Pipeline,
        binds: &[Bind],
        params: &[u32],
        groups: [u32; 3],
        find: impl Fn(Source) -> Option<(&'r Region, u64)>,
        words: &Words,
    ) -> Result<()> {
        let words_of_block = crate::wgsl::block_words(binds.len(), params.len());
        let bytes = 4 * words_of_block as u64;
        let slot = bytes.next_power_of_two().max(256);
        let align = u64::from(self.device.limits.min_uniform_buffer_offset_alignment).max(16);
        let mut at = (self.params.len() as u64).next_multiple_of(align);
        if at + slot > RING || self.recorded >= self.device.batch {
            self.flush(self.noted - 1)?;
            // In the middle of a command; its own end is reported by the flush that follows it.
            self.submit(|| {})?;
            at = 0;
        }
        if slot > RING || slot > self.device.limits.max_uniform_buffer_binding_size {
            return fail(
                Code::Unsupported,
                format!("{bytes} bytes of parameters in one dispatch"),
            );
        }
        self.params.resize(at as usize, 0);
        // Offsets and bindings of every operand.
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        key.extend([self.ring.id, 0, slot]);
        let facts = &self.device.facts;
        let (most, unit) = (facts.max_binding, facts.align);
        for b in binds {
            let (block, offset): (&Block, u64) = match find(b.source) {
                Some((r, more)) => match &r.place {
                    Place::Device(d) => (d, r.offset + more),
                    Place::Host(_) => return fail(Code::Invalid, "an operand in host memory"),
                },
                None => (&self.nothing, 0),
            };
            let base = if b.windows > 1 {
                offset / unit * unit
            } else if block.bytes <= most {
                0
            } else {
                // A coarse grid: operands near each other share bind groups.
                let half = (most / 2 / unit * unit).max(unit);
                let base = offset / half * half;
                match offset - base + b.bytes <= most.min(block.bytes - base) {
                    true => base,
                    false => offset / unit * unit,
                }
            };
            for w in 0..u64::from(b.windows) {
                let start = Some(base + w * most).filter(|s| *s < block.bytes);
                let start = start.unwrap_or(base);
                key.extend([block.id, start, most.min(block.bytes - start)]);
            }
            let elem = (b.dtype.bits() / 8).clamp(1, 4);
            let rel = (offset - base) / elem;
            self.params.extend_from_slice(&(rel as u32).to_le_bytes());
        }
        // The aliases bind the same windows once more.
        let mut from = 3;
        for b in binds {
            let n = 3 * b.windows as usize;
            if b.atomic {
                key.extend_from_within(from..from + n);
            }
            from += n;
        }
        for p in params.iter().chain(words) {
            self.params.extend_from_slice(&p.to_le_bytes());
        }
        self.params.resize((at + slot) as usize, 0);
        let group = self.device.group(&key, || {
            let buffer = |id: u64| {
                if id == self.ring.id {
                    return Some(&self.ring.buffer);
                }
                if id == self.nothing.id {
                    return Some(&self.nothing.buffer);
                }
                binds.iter().find_map(|b| match find(b.source) {
                    Some((r, _)) => match &r.place {
                        Place::Device(d) if d.id == id => Some(&d.buffer),
                        _ => None,
                    },
                    None => None,
                })
            };
            let entries: Vec<_> = key
                .chunks(3)
                .enumerate()
                .filter_map(|(i, k)| {
                    Some(BindGroupEntry {
                        binding: i as u32,
                        resource: BindingResource::Buffer(BufferBinding {
                            buffer: buffer(k[0])?,
                            offset: k[1],
                            size: std::num::NonZeroU64::new(k[2]),
                        }),
                    })
                })
                .collect();
            self.device.device.create_bind_group(&BindGroupDescriptor {
                label: None,
                layout: &pipeline.layout,
                entries: &entries,
            })
        });
        self.key = key;
        if self.pass.is_none() {
            let pass = self
                .encoder()
                .begin_compute_pass(&Default::default())
                .forget_lifetime();
            self.pass = Some(pass);
        }
        if let Some(pass) = &mut self.pass {
            pass.set_pipeline(&pipeline.pipeline);
            pass.set_bind_group(0, &group, &[at as u32]);
            pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
        }
        self.recorded += 1;
        self.device.counts.dispatches.fetch_add(1, Relaxed);
        Ok(())
    }

    /// Fills bytes of device memory.
    pub fn fill(&mut self, dst: &Region, bytes: u64, pattern: u64) -> Result<()> {
        let Place::Device(block) = &dst.place else {
            return fail(Code::Invalid, "fill of host memory on the adapter");
        };
        if pattern == 0 && dst.offset.is_multiple_of(4) && bytes.is_multiple_of(4) {
            self.recorded += 1;
            self.encoder()
                .clear_buffer(&block.buffer, dst.offset, Some(bytes));
            return Ok(());
        }
        let step = self.transfers.reach / 8 * 8;
        let pass = self.transfers.fill.clone();
        let mut done = 0;
        while done < bytes {
            let n = step.min(bytes - done);
            let to = Region {
                place: dst.place.clone(),
                offset: dst.offset + done,
            };
            let (words, groups) = self.transfers.fill_words(to.offset, n, pattern)?;
            self.dispatch(
                &pass.1,
                &pass.0.binds,
                &[],
                groups,
                |_| Some((&to, 0)),
                &words,
            )?;
            done += n;
        }
        Ok(())
    }

    /// Copies rows within device memory.
    pub fn copy(&mut self, dst: &Region, src: &Region, rows: Rows) -> Result<()> {
        let (Place::Device(to), Place::Device(from)) = (&dst.place, &src.place) else {
            return fail(Code::Invalid, "copy of host memory on the adapter");
        };
        let whole = |n: u64| n.is_multiple_of(4);
        let aligned = whole(dst.offset) && whole(src.offset) && whole(rows.width);
        if rows.height == 1 && to.id != from.id && aligned {
            self.recorded += 1;
            self.encoder().copy_buffer_to_buffer(
                &from.buffer,
                src.offset,
                &to.buffer,
                dst.offset,
                rows.width,
            );
            return Ok(());
        }
        let pass = self.transfers.copy.clone();
        for piece in self.transfers.pieces(rows) {
            let at = |r: &Region, pitch: u64| Region {
                place: r.place.clone(),
                offset: r.offset + piece.row * pitch + piece.column,
            };
            let ends = [at(dst, rows.dpitch), at(src, rows.spitch)];
            let (words, groups) = self.transfers.copy_words(
                [ends[0].offset, ends[1].offset],
                Rows {
                    width: piece.width,
                    height: piece.height,
                    ..rows
                },
            )?;
            let find = |s: Source| match s {
                Source::Operand(i) => ends.get(i).map(|r| (r, 0)),
                Source::Workspace { .. } => None,
            };
            self.dispatch(&pass.1, &pass.0.binds, &[], groups, find, &words)?;
        }
        Ok(())
    }

    /// Copies rows from device memory to the host's, which has them when `seq` is done.
    pub fn read(&mut self, seq: u64, dst: &Region, src: &Region, rows: Rows) -> Result<()> {
        let (Place::Host(host), Place::Device(from)) = (&dst.place, &src.place) else {
            return fail(Code::Invalid, "read: not from the device to the host");
        };
        // Staging memory has whole words, so rows that are not go through a packed copy on the adapter.
        let pitch = rows.width.next_multiple_of(4);
        let total = pitch * rows.height;
        let limit = self.device.limits.max_buffer_size;
        if total > limit {
            return fail(Code::Oom, format!("reading back {total} bytes at once"));
        }
        let direct = src.offset.is_multiple_of(4) && rows.height == 1;
        let staging = self.device.stage.take(total, || {
            let size = total.next_power_of_two().max(4096).min(limit / 16 * 16);
            let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
            let what = format_args!("reading back {total} bytes");
            self.device.buffer(&what, size, usage)
        })?;
        if direct {
            // The buffer ends on a word, so rounding up stays inside it.
            self.encoder()
                .copy_buffer_to_buffer(&from.buffer, src.offset, &staging, 0, total);
        } else {
            let packed = Region {
                place: Place::Device(Arc::new(Block::new(&self.device, total)?)),
                offset: 0,
            };
            let to = Rows {
                dpitch: pitch,
                ..rows
            };
            self.copy(&packed, src, to)?;
            if let Place::Device(b) = &packed.place {
                self.encoder()
                    .copy_buffer_to_buffer(&b.buffer, 0, &staging, 0, total);
            }
        }
        self.recorded += 1;
        self.reads.push(ReadBack {
            stage: self.device.stage.clone(),
            staging,
            host: host.clone(),
            offset: dst.offset,
            pitches: [rows.dpitch, pitch],
            width: rows.width,
            height: rows.height,
        });
        self.read_at = seq;
        Ok(())
    }

    /// Copies rows from host memory, read now, to the device's.
    pub fn write(
        &mut self,
        seq: u64,
        dst: &Region,
        from: &HostBlock,
        offset: u64,
        rows: Rows,
    ) -> Result<()> {
        let Place::Device(block) = &dst.place else {
            return fail(Code::Invalid, "write: not to the device");
        };
        // What was recorded before comes before.
        self.flush(seq - 1)?;
        let row = |r: u64| {
            // SAFETY: the copy's span was checked against the memory, which the region keeps alive; the host orders who touches it.
            unsafe {
                std::slice::from_raw_parts(
                    from.ptr.as_ptr().add((offset + r * rows.spitch) as usize),
                    rows.width as usize,
                )
            }
        };
        if rows.height == 1 {
            return self.upload(&block.clone(), dst.offset, row(0));
        }
        let pitch = rows.width.next_multiple_of(4);
        let mut packed = vec![0u8; (pitch * rows.height) as usize];
        for r in 0..rows.height {
            packed[(r * pitch) as usize..][..rows.width as usize].copy_from_slice(row(r));
        }
        self.through(
            dst,
            &packed,
            Rows {
                spitch: pitch,
                ..rows
            },
        )
    }

    /// Writes bytes into device memory. Nothing may be recorded that must come before.
    pub fn upload(&mut self, block: &Arc<Block>, offset: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        if offset.is_multiple_of(4) && bytes.len().is_multiple_of(4) {
            self.device.queue.write_buffer(&block.buffer, offset, bytes);
            self.written = true;
            return Ok(());
        }
        let mut packed = bytes.to_vec();
        packed.resize(bytes.len().next_multiple_of(4), 0);
        let dst = Region {
            place: Place::Device(block.clone()),
            offset,
        };
        let n = bytes.len() as u64;
        let rows = Rows {
            dpitch: n,
            spitch: n,
            width: n,
            height: 1,
        };
        self.through(&dst, &packed, rows)
    }

    /// Writes packed rows into a buffer of their own and copies them from there.
    fn through(&mut self, dst: &Region, packed: &[u8], rows: Rows) -> Result<()> {
        let block = Arc::new(Block::new(&self.device, packed.len() as u64)?);
        self.device.queue.write_buffer(&block.buffer, 0, packed);
        self.written = true;
        let src = Region {
            place: Place::Device(block),
            offset: 0,
        };
        self.copy(dst, &src, rows)
    }
}
