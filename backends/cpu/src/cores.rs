//! Which cores a device's threads may run on, when the configuration asks for it (`cpu.pin = on`): each device its own, in order.
//!
//! Off by default: on a machine with other work the scheduler knows better. On an idle one it may leave two ranks that wait for each other in every
//! short collective on one core, where each wait is a switch of threads instead of a cache line's way.

/// A set of cores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cores(Vec<usize>);

impl Cores {
    /// The cores of device `index` with `threads` threads, out of those this process may use; round again when there are too few.
    pub(crate) fn of(index: u32, threads: usize) -> Cores {
        Cores::among(&allowed(), index, threads)
    }

    fn among(all: &[usize], index: u32, threads: usize) -> Cores {
        let at = |i: usize| all.get((index as usize * threads + i) % all.len().max(1));
        Cores((0..threads).filter_map(|i| at(i).copied()).collect())
    }

    /// Keeps the calling thread on them. A system that refuses changes nothing but speed.
    pub(crate) fn settle(&self) {
        if self.0.is_empty() {
            return;
        }
        // SAFETY: a set of bits in plain memory, and a call that reads it for the calling thread.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            for core in &self.0 {
                libc::CPU_SET(*core, &mut set);
            }
            libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set);
        }
    }
}

/// The cores the calling thread may use.
fn allowed() -> Vec<usize> {
    // SAFETY: a set of bits in plain memory, and a call that fills it.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        if libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set) != 0 {
            return vec![];
        }
        (0..libc::CPU_SETSIZE as usize)
            .filter(|c| libc::CPU_ISSET(*c, &set))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_take_cores_in_order_and_round_again() {
        let all = [2, 3, 5, 7];
        assert_eq!(Cores::among(&all, 0, 2), Cores(vec![2, 3]));
        assert_eq!(Cores::among(&all, 1, 2), Cores(vec![5, 7]));
        assert_eq!(Cores::among(&all, 5, 1), Cores(vec![3]));
        assert_eq!(Cores::among(&[], 0, 3), Cores(vec![]));
    }

    #[test]
    fn a_settled_thread_stays_where_it_was_put() {
        std::thread::spawn(|| {
            let last = *allowed().last().unwrap();
            Cores(vec![last]).settle();
            assert_eq!(allowed(), [last]);
        })
        .join()
        .unwrap();
    }
}
