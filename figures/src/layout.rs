//! How a job lies on its ranks: the division of the work, the classes of equal ranks, and the sizes that dry runs find for each.

use crate::job::spec::compute_type;
use crate::job::{Class, Division, Job, Shares, classes, spec};
use crate::stages;
use crate::train_error::Result;
use crossweave_engine::{Dry, dry_run, plan_for};
use crossweave_hal::Device;
use crossweave_mesh::Place;
use crossweave_plan::{Facts, Plan};
use crossweave_tensor::UnitDecl;

/// The sizes of units of a job for a micro-batch of even shares. `null` is a null device.
///
/// # Errors
/// A block that does not fit its sizes.
pub fn sized(null: &Device, job: &Job, units: &[UnitDecl]) -> Result<Dry> {
    let (compute, micro) = (compute_type(job.resolved.dtype), job.resolved.batch.micro);
    Ok(dry_run(null, units, compute, micro, job.seq_len)?)
}

/// The sizes of a job's units on the rank at a place, and how its ranks divide the work evenly. `null` is a null device.
///
/// # Errors
/// A block that does not fit its sizes; more stages than units.
pub fn divided(null: &Device, job: &Job, place: &Place) -> Result<(Dry, Division)> {
    let units = job.units(place)?;
    let dry = sized(null, job, &units)?;
    let division = Division::new(job, (&dry.units, dry.shape), Shares::Even)?;
    Ok((dry, division))
}

/// The division of a job, with what each class of ranks holds.
pub struct Layout {
    /// Sequences of each rank, and units of each stage.
    pub division: Division,
    /// Ranks that do the same.
    pub classes: Vec<Class>,
    /// The dry run of rank 0 and even shares.
    first: Dry,
    /// Those of other sizes or shares, by the number of the sizes and the sequences of a micro-batch.
    others: Vec<((usize, u64), Dry)>,
}

impl Layout {
    /// The layout of a job of even shares. `null` is a null device, and `first` the dry run of rank 0 there.
    ///
    /// # Errors
    /// More stages than units; a block that does not fit its sizes.
    pub fn even(null: &Device, job: &Job, first: Dry) -> Result<Layout> {
        Layout::with(null, job, Shares::Even, first)
    }

    /// The same job divided by `shares`.
    ///
    /// # Errors
    /// As [`Layout::even`].
    pub fn divided(self, null: &Device, job: &Job, shares: Shares<'_>) -> Result<Layout> {
        Layout::with(null, job, shares, self.first)
    }

    fn with(null: &Device, job: &Job, shares: Shares<'_>, first: Dry) -> Result<Layout> {
        let division = Division::new(job, (&first.units, first.shape), shares)?;
        let classes = classes(job, &division)?;
        let mut others: Vec<((usize, u64), Dry)> = vec![];
        for class in &classes {
            let key = (class.sizes, class.rows);
            let known = key == (0, first.shape.0) || others.iter().any(|(k, _)| *k == key);
            if !known {
                let place = job.place(class.first);
                let (units, s) = (job.units(&place)?, spec(job, &division, place));
                let dry = dry_run(null, &units, s.compute, s.rows.batch, s.rows.seq_len)?;
                others.push((key, dry));
            }
        }
        Ok(Layout {
            division,
            classes,
            first,
            others,
        })
    }

    /// What the dry run of a class found.
    pub fn dry_of(&self, class: &Class) -> &Dry {
        let key = (class.sizes, class.rows);
        let own = self.others.iter().find(|(known, _)| *known == key);
        own.map_or(&self.first, |(_, dry)| dry)
    }

    /// What the dry run of a rank's class found.
    pub fn dry(&self, rank: u32) -> &Dry {
        let mut all = self.classes.iter();
        let own = all.find(|c| c.ranks.binary_search(&rank).is_ok());
        own.map_or(&self.first, |class| self.dry_of(class))
    }

    /// The first of the ranks `at` of each class that some of them are in.
    fn firsts(&self, at: &[u32]) -> Vec<u32> {
        let first = |class: &Class| at.iter().find(|r| class.ranks.binary_search(r).is_ok());
        self.classes.iter().filter_map(first).copied().collect()
    }

    /// Whether there is room on a device for what each class of the ranks `at` does.
    ///
    /// # Errors
    /// There is not, by the plan.
    pub fn fits_all(&self, job: &Job, device: &Device, at: &[u32]) -> Result<()> {
        let mut firsts = self.firsts(at).into_iter();
        firsts.try_for_each(|rank| self.fits(job, device, rank))
    }

    /// Whether there is room on a device for what a rank does.
    ///
    /// # Errors
    /// There is not, by the plan.
    fn fits(&self, job: &Job, device: &Device, rank: u32) -> Result<()> {
        let spec = spec(job, &self.division, job.place(rank));
        plan_for(device, &spec, self.dry(rank))?;
        Ok(())
    }

    /// Holds the plans of all classes against each other before any is run: each collective has its members, each send its receive, and nobody
    /// waits for ever.
    ///
    /// # Errors
    /// The first law that is broken, with the rank.
    pub fn check_world(&self, job: &Job, null: &Device) -> Result<()> {
        let plan = |class: &Class| -> Result<_> {
            let spec = spec(job, &self.division, job.place(class.first));
            Ok(plan_for(null, &spec, self.dry_of(class))?)
        };
        let plans: Vec<_> = self.classes.iter().map(plan).collect::<Result<_>>()?;
        self.agree(job, &plans)
    }

    /// Holds plans, one for each class, against each other.
    ///
    /// # Errors
    /// As [`Layout::check_world`].
    pub fn agree(&self, job: &Job, plans: &[(Plan, Facts)]) -> Result<()> {
        let class = |rank: u32| {
            let mut all = self.classes.iter();
            all.position(|c| c.ranks.binary_search(&rank).is_ok())
        };
        // Every rank of the job has a class.
        stages::agree(job, &self.division, |rank| {
            let (plan, facts) = &plans[class(rank).unwrap_or(0)];
            (plan, facts)
        })
    }
}
