//! Jobs on an agent: registering, changing and placing them.

use std::time::Duration;

use serde_json::Value;

use crate::{Agent, Alloc, Failure, Job, Outcome};

const PLACED: Duration = Duration::from_secs(120);

impl Agent {
    /// Runs a job and waits until its first allocation is placed.
    ///
    /// # Errors
    /// When Nomad refuses the job or cannot place it.
    pub fn run(&self, job: &Job) -> Outcome<Alloc<'_>> {
        let mut allocs = self.run_many(job, 1)?;
        Ok(allocs.swap_remove(0))
    }

    /// Runs a job and waits until `count` allocations of it are placed.
    ///
    /// # Errors
    /// When Nomad refuses the job or cannot place it.
    pub fn run_many(&self, job: &Job, count: usize) -> Outcome<Vec<Alloc<'_>>> {
        let id = self.new_job_id();
        self.register(job, &id)?;
        self.placed(&id, count)
    }

    /// Registers a job, or the next version of the job with this id, without waiting. Nomad places it as soon as it
    /// can. Returns the id of the evaluation.
    ///
    /// # Errors
    /// When Nomad refuses the job.
    pub fn submit(&self, job: &Job, id: &str) -> Outcome<String> {
        job.register(self.api(), self.home(), id)
    }

    /// Submits a job and waits for its evaluation.
    ///
    /// # Errors
    /// When Nomad refuses the job or cannot place it.
    pub fn register(&self, job: &Job, id: &str) -> Outcome {
        let evaluation = self.submit(job, id)?;
        let path = format!("/v1/evaluation/{evaluation}");
        let unplaced = self.api().wait(&path, "the evaluation", PLACED, |evaluation| {
            (evaluation["Status"] == "complete").then(|| evaluation["FailedTGAllocs"].clone())
        })?;
        if unplaced.is_null() { Ok(()) } else { Err(Failure(format!("the job cannot be placed: {unplaced}"))) }
    }

    /// Waits until a job has at least `count` allocations, including ended ones. Returns all of them, the oldest first.
    ///
    /// # Errors
    /// When there are fewer.
    pub fn placed(&self, job: &str, count: usize) -> Outcome<Vec<Alloc<'_>>> {
        let path = format!("/v1/job/{job}/allocations");
        let mut found = self.api().wait(&path, &format!("{count} allocations"), PLACED, |allocs| {
            let allocs = allocs.as_array()?;
            (allocs.len() >= count).then(|| allocs.clone())
        })?;
        found.sort_by_key(|alloc| alloc["CreateIndex"].as_u64());
        let ids = found.iter().filter_map(|alloc: &Value| alloc["ID"].as_str());
        let alloc = |id: &str| {
            self.record_alloc(id);
            Alloc::new(self, id.to_owned(), job.to_owned())
        };
        Ok(ids.map(alloc).collect())
    }
}
