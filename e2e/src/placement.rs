//! Jobs on an agent: registered, changed, placed.

use std::time::Duration;

use serde_json::Value;

use crate::{Agent, Alloc, Failure, Job, Outcome};

const PLACED: Duration = Duration::from_secs(120);

impl Agent {
    /// Runs a job and waits until its first allocation is placed.
    ///
    /// # Errors
    /// When Nomad refuses or cannot place it.
    pub fn run(&self, job: &Job) -> Outcome<Alloc<'_>> {
        let mut allocs = self.run_many(job, 1)?;
        Ok(allocs.swap_remove(0))
    }

    /// Runs a job and waits until `count` allocations of it are placed.
    ///
    /// # Errors
    /// When Nomad refuses or cannot place it.
    pub fn run_many(&self, job: &Job, count: usize) -> Outcome<Vec<Alloc<'_>>> {
        let id = self.new_job_id();
        self.register(job, &id)?;
        self.placed(&id, count)
    }

    /// Registers a job, or its next version when there is one with this id, and waits for nothing: what cannot be placed now
    /// Nomad places as soon as it can. The answer is the evaluation's id.
    ///
    /// # Errors
    /// When Nomad refuses it.
    pub fn submit(&self, job: &Job, id: &str) -> Outcome<String> {
        job.register(self.api(), self.home(), id)
    }

    /// Submits a job and waits until Nomad has decided what follows.
    ///
    /// # Errors
    /// When Nomad refuses or cannot place it.
    pub fn register(&self, job: &Job, id: &str) -> Outcome {
        let evaluation = self.submit(job, id)?;
        let path = format!("/v1/evaluation/{evaluation}");
        let unplaced = self.api().wait(&path, "the evaluation", PLACED, |evaluation| {
            (evaluation["Status"] == "complete").then(|| evaluation["FailedTGAllocs"].clone())
        })?;
        if unplaced.is_null() { Ok(()) } else { Err(Failure(format!("the job cannot be placed: {unplaced}"))) }
    }

    /// Waits until a job has had `count` allocations, ended ones included, and gives all it has had, the oldest first.
    ///
    /// # Errors
    /// When there are not enough.
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
