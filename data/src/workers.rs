//! Threads that share a list of independent pieces of work; where the system starts none, the caller works alone.

use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// A pool, which ends with this. The library's own pool of the whole process panics where it cannot start.
pub(crate) struct Workers(Option<ThreadPool>);

impl Workers {
    pub fn start() -> Workers {
        Workers(ThreadPoolBuilder::new().build().ok())
    }

    /// `work` on each of `items`, in their order; the first failure where some fail. (A parallel `collect` into a `Result` would give
    /// that of whichever thread came first.)
    pub fn each<T: Send, R: Send, E: Send>(
        &self,
        items: Vec<T>,
        work: impl Fn(T) -> Result<R, E> + Sync + Send,
    ) -> Result<Vec<R>, E> {
        let Some(pool) = &self.0 else {
            return items.into_iter().map(work).collect();
        };
        let all: Vec<Result<R, E>> = pool.install(|| items.into_par_iter().map(work).collect());
        all.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_threads_the_caller_does_the_work() {
        for workers in [Workers::start(), Workers(None)] {
            let double = |n: u32| if n < 9 { Ok(2 * n) } else { Err(n) };
            assert_eq!(workers.each(vec![1, 2, 3], double), Ok(vec![2, 4, 6]));
            assert_eq!(workers.each(vec![1, 9], double), Err(9));
        }
    }
}
