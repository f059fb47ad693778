//! The connection to the agent: the list of jobs once, then the stream of events.
//!
//! After a lost connection the stream goes on at the index of the last event. If that event comes again first, nothing
//! was lost. Otherwise the agent no longer has it, and the jobs are listed once more. Only those that changed since are
//! read.
//!
//! An agent begins each stream with a heartbeat, unless the token is unknown: such a stream is empty.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fs,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde_json::Value as Json;

use super::{
    filter::{Filter, Place},
    pulls::Queue,
};
use crate::{
    blocking::blocking,
    config::PrefetchOptions,
    error::TaskError,
    node::Node,
    nomad::{
        Api, ApiError, ApiSettings, EventStream, Frame,
        job::{self, text},
    },
};

/// The pause after the first failure. It doubles with each further one.
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// An agent that restarts is away for some seconds. A failure is logged when it is the third one in a row.
const FAILURES: u32 = 3;
/// The number of jobs that are in memory at the same time.
const BATCH: usize = 64;

/// Follows the jobs, for as long as the plugin lives.
pub async fn run(node: Arc<Node>, options: PrefetchOptions, queue: Arc<Queue>) {
    let mut follower = Follower { node, options, queue, place: None, index: None, is_open: false, said: None };
    let mut failures = 0;
    loop {
        let Err(failure) = follower.follow().await;
        failures = if follower.is_open { 1 } else { failures + 1 };
        follower.closed(&failure, failures);
        tokio::time::sleep(pause(failures, SystemTime::now())).await;
    }
}

/// The pause after a number of failures, different for each node: all agents lose the same server at once.
fn pause(failures: u32, now: SystemTime) -> Duration {
    let longest = PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(6)).min(LONGEST_PAUSE);
    let random = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().subsec_micros() % 1000;
    longest.mul_f64(0.5 + f64::from(random) / 1000.0)
}

/// Why the jobs are not followed.
#[derive(Debug)]
struct Failure {
    text: String,
    /// It will not go away by itself.
    lasts: bool,
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        // A server without a leader answers with 500.
        Self { lasts: matches!(error, ApiError::Status(400..500, _)), text: error.to_string() }
    }
}

impl Failure {
    fn passing(text: impl ToString) -> Self {
        Self { text: text.to_string(), lasts: false }
    }

    fn lasting(text: impl ToString) -> Self {
        Self { text: text.to_string(), lasts: true }
    }
}

struct Follower {
    node: Arc<Node>,
    options: PrefetchOptions,
    queue: Arc<Queue>,
    /// This node's place, once it is known.
    place: Option<Place>,
    /// The index up to which all jobs are known.
    index: Option<u64>,
    is_open: bool,
    /// The log's last word: whether the jobs are followed.
    said: Option<bool>,
}

impl Follower {
    /// Follows the jobs until the connection is lost.
    async fn follow(&mut self) -> Result<Infallible, Failure> {
        let options = self.options.clone();
        let api = blocking(move || connect(&options)).await.map_err(Failure::passing)??;
        if self.place.is_none() {
            self.place = Some(find_place(&api, &self.options).await?);
        }
        let mut is_listed = false;
        if self.index.is_none() {
            self.list(&api).await?;
            is_listed = true;
        }
        let mut stream = EventStream::open(&api, &self.namespace(), self.index.unwrap_or(0)).await?;
        if let Err(ended) = stream.next().await {
            // The answer to another request says why.
            self.list(&api).await?;
            return Err(Failure::passing(ended));
        }
        self.opened(&api);
        loop {
            let frame = stream.next().await.map_err(Failure::passing)?;
            if !is_listed {
                if !continues(&frame, self.index) {
                    self.list(&api).await?;
                }
                is_listed = true;
            }
            // Several frames may have one index.
            if let Frame::Events { index, events } = frame
                && self.index.is_none_or(|known| known <= index)
            {
                events.iter().for_each(|event| self.event(event));
                self.index = Some(index);
            }
        }
    }

    /// The namespace of requests.
    fn namespace(&self) -> String {
        match self.options.namespaces.as_slice() {
            [name] if !name.contains('*') => name.clone(),
            _ => "*".to_owned(),
        }
    }

    /// Lists the jobs. Reads those that changed since the known index.
    async fn list(&mut self, api: &Api) -> Result<(), Failure> {
        let list = api.list_jobs(&self.namespace()).await?;
        let entries: Vec<&Json> =
            list.json.as_array().into_iter().flatten().filter(|entry| self.counts(entry)).collect();
        let keys: BTreeSet<_> = entries.iter().map(|entry| key(entry)).collect();
        self.queue.with(|wishes| wishes.retain(&keys));
        // An older index is that of another cluster, or of a restored one.
        let known = self.index.filter(|known| *known <= list.index);
        let is_new =
            |entry: &&&Json| known.is_none_or(|known| entry["JobModifyIndex"].as_u64().is_none_or(|at| at > known));
        let new: Vec<Json> = entries.iter().filter(is_new).map(|entry| (*entry).clone()).collect();
        for batch in new.chunks(BATCH) {
            api.read_jobs(batch).await?.iter().for_each(|job| self.job(job));
        }
        tracing::debug!(jobs = keys.len(), read = new.len(), index = list.index, "jobs listed for prefetching");
        self.index = Some(list.index);
        Ok(())
    }

    fn event(&self, event: &Json) {
        let job = &event["Payload"]["Job"];
        if text(event, "Topic") != "Job" || !job.is_object() {
            return;
        }
        if text(event, "Type").ends_with("Deregistered") || event["Payload"]["Deleted"] == true {
            self.queue.with(|wishes| wishes.remove(&key(job)));
        } else {
            self.job(job);
        }
    }

    /// Takes a job that is new or has changed.
    fn job(&self, job: &Json) {
        let Some(filter) = self.filter() else { return };
        if !filter.counts(job) {
            return self.queue.with(|wishes| wishes.remove(&key(job)));
        }
        let version = job["JobModifyIndex"].as_u64().unwrap_or(0);
        if self.queue.with(|wishes| wishes.has(&key(job), version)) {
            return;
        }
        let found = filter.images(job);
        for &(reason, ref image) in &found.skipped {
            tracing::debug!(task = image.task, image = image.name, reason, "image not prefetched");
            self.skipped(reason, 1);
        }
        let too_many = self.queue.set(key(job), version, found.wanted);
        if too_many > 0 {
            tracing::warn!(job = text(job, "ID"), images = too_many, "not prefetched: the jobs name too many images");
            self.skipped("number", too_many as u64);
        }
    }

    fn skipped(&self, reason: &'static str, number: u64) {
        if let Some(recorder) = self.node.recorder() {
            recorder.prefetch_skipped(reason, number);
        }
    }

    fn filter(&self) -> Option<Filter<'_>> {
        let place = self.place.as_ref()?;
        Some(Filter { options: &self.options, driver: self.node.config.driver, place })
    }

    fn counts(&self, job: &Json) -> bool {
        self.filter().is_some_and(|filter| filter.counts(job))
    }

    fn opened(&mut self, api: &Api) {
        if self.said != Some(true) {
            tracing::info!(agent = api.name(), "jobs are followed, their images are prefetched");
        }
        (self.is_open, self.said) = (true, Some(true));
        if let Some(recorder) = self.node.recorder() {
            recorder.prefetch_stream("opened");
        }
    }

    fn closed(&mut self, failure: &Failure, failures: u32) {
        if std::mem::take(&mut self.is_open)
            && let Some(recorder) = self.node.recorder()
        {
            recorder.prefetch_stream("lost");
        }
        let error = &failure.text;
        if self.said != Some(false) && (failure.lasts || failures >= FAILURES) {
            tracing::warn!(error, "jobs are not followed, so their images are not prefetched (prefetch); trying again");
            self.said = Some(false);
        } else {
            tracing::debug!(error, failures, "jobs are still not followed");
        }
    }
}

/// Whether a stream that was asked for an index goes on without a gap: it begins with the events of that index. They
/// are known already.
fn continues(first: &Frame, index: Option<u64>) -> bool {
    matches!(first, Frame::Events { index: first, .. } if Some(*first) == index)
}

fn key(job: &Json) -> (String, String) {
    (job::namespace(job).to_owned(), text(job, "ID").to_owned())
}

/// A client of the agent. Reads token and certificates anew, because they change. Blocks.
fn connect(options: &PrefetchOptions) -> Result<Result<Api, Failure>, TaskError> {
    Ok(try_connect(options).map_err(Failure::lasting))
}

fn try_connect(options: &PrefetchOptions) -> Result<Api, String> {
    let read = |path: &PathBuf| {
        let text =
            fs::read_to_string(path).map_err(|error| format!("prefetch.token_file: {}: {error}", path.display()));
        text.map(|text| text.trim().to_owned())
    };
    let settings = ApiSettings {
        address: options.address.clone(),
        token: options.token_file.as_ref().map(read).transpose()?,
        ca_cert: options.ca_file.clone(),
        client_cert: options.cert_file.clone(),
        client_key: options.key_file.clone(),
        server_name: options.server_name.clone(),
        ..ApiSettings::default()
    };
    Api::new(&settings)
}

/// The place of this node.
async fn find_place(api: &Api, options: &PrefetchOptions) -> Result<Place, Failure> {
    let is_known = options.datacenter.is_some() && options.node_pool.is_some();
    let agent = if is_known { None } else { Some(api.get(&["v1", "agent", "self"], &[]).await?) };
    let agent = agent.flatten().map_or(Json::Null, |answer| answer.json);
    Place::of(options, &agent).map_err(Failure::lasting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_goes_on_if_its_first_events_are_the_last_known_ones() {
        let events = |index| Frame::Events { index, events: Vec::new() };
        assert!(continues(&events(7), Some(7)));
        for (frame, index) in
            [(events(8), Some(7)), (events(6), Some(7)), (Frame::Heartbeat, Some(7)), (events(7), None)]
        {
            assert!(!continues(&frame, index), "{frame:?} {index:?}");
        }
    }

    #[test]
    fn pauses_grow_to_a_minute_and_differ_between_nodes() {
        let at = |micros| SystemTime::UNIX_EPOCH + Duration::from_micros(micros);
        assert_eq!(pause(1, at(0)), PAUSE / 2);
        assert_eq!(pause(1, at(500)), PAUSE);
        assert_eq!(pause(4, at(500)), PAUSE * 8);
        for failures in [7, 8, 1000, u32::MAX] {
            assert_eq!(pause(failures, at(500)), LONGEST_PAUSE);
        }
    }
}
