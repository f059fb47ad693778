//! The tasks of this node, from the records on disk, and the names by which commands find them.

use std::{
    rc::Rc,
    time::{Duration, SystemTime},
};

use network::Connection;
use runtime::{ContainerState, ContainerView, Observer};

use super::{arguments::NodeArguments, failure::Failure, filter::Filter, output, settings::Settings};
use crate::{name::DriverName, plan::TaskNotes};

/// The number of characters of an allocation's id that people use, as Nomad shows them.
pub const SHORT: usize = 8;

/// The directories of one plugin.
pub struct Place {
    /// The configuration.
    pub settings: Settings,
    /// The records.
    pub observer: Observer,
}

/// A task of this node, in any state.
pub struct Task {
    /// Where its records are.
    pub place: Rc<Place>,
    /// Nomad's names of it.
    pub notes: TaskNotes,
    /// Its container.
    pub view: ContainerView,
}

impl Place {
    /// The places of this node.
    pub fn all(arguments: &NodeArguments) -> Result<Vec<Rc<Self>>, Failure> {
        let place = |settings: Settings| {
            let observer = Observer::new(&settings.config.state_dir, &settings.config.data_dir);
            Rc::new(Self { settings, observer })
        };
        Ok(Settings::all(arguments)?.into_iter().map(place).collect())
    }

    /// Whether a container is one of those that the command is about.
    pub fn includes(&self, container: &str) -> bool {
        self.settings.only.is_none_or(|only| only.owns(container))
    }
}

impl Task {
    /// A container as a task.
    pub fn new(place: &Rc<Place>, view: ContainerView) -> Self {
        let notes = TaskNotes::of_container(view.id.as_str(), view.plan.as_ref());
        Self { place: place.clone(), notes, view }
    }

    /// All tasks of this node, sorted by job, group, task and start. Problems with records are noted on standard error.
    pub fn all(arguments: &NodeArguments) -> Result<Vec<Self>, Failure> {
        let mut tasks = Vec::new();
        for place in Place::all(arguments)? {
            let views = place.observer.containers().map_err(Failure::of)?;
            let views = views.into_iter().filter(|view| place.includes(view.id.as_str()));
            tasks.extend(views.map(|view| Self::new(&place, view)));
        }
        for task in &tasks {
            task.view.problems.iter().for_each(output::note);
        }
        let key = |task: &Self| {
            let TaskNotes { namespace, job, group, task: name, .. } = task.notes.clone();
            (namespace, job, group, name, task.started_at(), task.view.id.clone())
        };
        tasks.sort_by_cached_key(key);
        Ok(tasks)
    }

    /// The one task that a name means; see [`choose`].
    pub fn find(arguments: &NodeArguments, name: &str) -> Result<Self, Failure> {
        let mut tasks = Self::all(arguments)?;
        let candidates: Vec<Candidate> = tasks.iter().map(Task::candidate).collect();
        let found = choose(&candidates, name)?;
        Ok(tasks.swap_remove(found))
    }

    /// The task as [`choose`] sees it.
    pub fn candidate(&self) -> Candidate<'_> {
        Candidate { notes: &self.notes, container: self.view.id.as_str(), running: self.is_running() }
    }

    /// Whether the command runs.
    pub fn is_running(&self) -> bool {
        matches!(self.view.state, ContainerState::Running { .. })
    }

    /// The name by which commands find it, for people.
    pub fn name(&self) -> String {
        short_name(&self.notes)
    }

    /// The plugin that it belongs to.
    pub fn plugin(&self) -> DriverName {
        DriverName::of_container(self.view.id.as_str())
    }

    /// When its command was started.
    pub fn started_at(&self) -> Option<SystemTime> {
        match &self.view.state {
            ContainerState::Running { started_at, .. } => Some(*started_at),
            ContainerState::Exited(exit) => Some(exit.started_at),
            _ => None,
        }
    }

    /// How long its command has been running.
    pub fn age(&self, now: SystemTime) -> Option<Duration> {
        match &self.view.state {
            ContainerState::Running { started_at, .. } => now.duration_since(*started_at).ok(),
            _ => None,
        }
    }

    /// The first process.
    pub fn pid(&self) -> Option<i32> {
        match &self.view.state {
            ContainerState::Running { pid, .. } => Some(*pid),
            _ => None,
        }
    }

    /// The connection of its own network; `None` if it uses its group's, the host's or none.
    pub fn connection(&self) -> Option<Connection> {
        let network = network::network(&self.place.settings.config.state_dir, self.view.id.as_str());
        if let Some(problem) = network.problem {
            output::note(problem);
        }
        network.connection
    }

    /// Whether it passes all filters.
    pub fn passes(&self, filters: &[Filter]) -> bool {
        Filter::accepts(filters, |property| {
            let TaskNotes { alloc, namespace, job, group, task, image, .. } = &self.notes;
            match property {
                "plugin" => self.plugin().as_str(),
                "namespace" => namespace,
                "job" => job,
                "group" => group,
                "task" => task,
                "alloc" => alloc,
                "image" => image,
                _ => state_name(&self.view.state),
            }
            .to_owned()
        })
    }
}

/// The state of a container in one word, as JSON and filters have it.
pub fn state_name(state: &ContainerState) -> &'static str {
    match state {
        ContainerState::Starting => "starting",
        ContainerState::Running { .. } => "running",
        ContainerState::Exited(_) => "exited",
        ContainerState::Lost => "lost",
        ContainerState::Removing => "removing",
        ContainerState::Unreadable => "unreadable",
    }
}

/// The state of a container for people: with the reason of its end.
pub fn state_text(state: &ContainerState) -> String {
    match state {
        ContainerState::Exited(exit) if exit.oom_killed => "out of memory".to_owned(),
        ContainerState::Exited(exit) if exit.signal != 0 => format!("killed ({})", exit.signal),
        ContainerState::Exited(exit) => format!("exited ({})", exit.exit_code),
        other => state_name(other).to_owned(),
    }
}

/// The first characters of an allocation's id.
pub fn short_alloc(alloc: &str) -> &str {
    alloc.get(..SHORT).unwrap_or(alloc)
}

/// `allocation/task` with the short id.
pub fn short_name(notes: &TaskNotes) -> String {
    format!("{}/{}", short_alloc(&notes.alloc), notes.task)
}

/// The fewest characters of an allocation's id that name it.
const LEAST_PREFIX: usize = 4;

/// A task among which a name chooses.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    /// Nomad's names of it.
    pub notes: &'a TaskNotes,
    /// The container's id.
    pub container: &'a str,
    /// Its command runs.
    pub running: bool,
}

impl Candidate<'_> {
    /// How exactly a name means this task; the lowest number is the most exact one. `None` if it does not.
    ///
    /// A beginning of an allocation's id can also be a word, such as `db`. So it has some digits, and the whole names
    /// are looked at before.
    fn rank(&self, name: &str) -> Option<u8> {
        let Self { notes, container, .. } = *self;
        let in_alloc = |alloc: &str| alloc.len() >= LEAST_PREFIX && notes.alloc.starts_with(alloc);
        let in_task = name.split_once('/').is_some_and(|(alloc, task)| in_alloc(alloc) && task == notes.task);
        match () {
            () if container == name => Some(0),
            () if in_task || notes.alloc == name && !name.is_empty() => Some(1),
            () if !name.is_empty() && (notes.task == name || notes.job == name) => Some(2),
            () if in_alloc(name) => Some(3),
            () => None,
        }
    }
}

/// The index of the task that a name means. Of several that it means equally, the only running one is chosen.
pub fn choose(candidates: &[Candidate], name: &str) -> Result<usize, Failure> {
    let ranks: Vec<Option<u8>> = candidates.iter().map(|candidate| candidate.rank(name)).collect();
    let Some(best) = ranks.iter().copied().flatten().min() else {
        return Err(Failure::NotFound(format!("no task of this node has the name {name:?}; `oci-rs ps -a` lists all")));
    };
    let named: Vec<usize> = (0..candidates.len()).filter(|index| ranks[*index] == Some(best)).collect();
    let running: Vec<usize> = named.iter().copied().filter(|index| candidates[*index].running).collect();
    if let [only] = named[..] {
        return Ok(only);
    }
    if let [only] = running[..] {
        return Ok(only);
    }
    let mut names: Vec<String> = named.iter().map(|index| short_name(candidates[*index].notes)).collect();
    names.dedup();
    if names.len() < 2 {
        names = named.iter().map(|index| candidates[*index].container.to_owned()).collect();
    }
    Err(Failure::Failed(format!("the name {name:?} means several tasks: {}", names.join(", "))))
}

#[cfg(test)]
mod tests {
    use super::{Candidate, choose};
    use crate::{cli::failure::Failure, plan::TaskNotes};

    fn notes(alloc: &str, job: &str, task: &str) -> TaskNotes {
        TaskNotes { alloc: alloc.into(), job: job.into(), task: task.into(), ..TaskNotes::default() }
    }

    #[test]
    fn a_task_is_found_by_each_of_its_names() {
        let tasks = [
            (notes("0123abcd-1111", "shop", "web"), "0123abcd-1111.web.1", true),
            (notes("0123abcd-1111", "shop", "proxy"), "0123abcd-1111.proxy.1", true),
            (notes("0123ffff-2222", "cron", "main"), "0123ffff-2222.main.1", false),
            (notes("0123ffff-2222", "cron", "main"), "0123ffff-2222.main.2", true),
            (notes("99990000-3333", "old", "main"), "99990000-3333.main.1", false),
            (notes("88880000-4444", "news", "feed"), "88880000-4444.feed.1", false),
            (notes("feed0000-5555", "other", "side"), "feed0000-5555.side.1", true),
        ];
        let all: Vec<Candidate> =
            tasks.iter().map(|(notes, container, running)| Candidate { notes, container, running: *running }).collect();
        for (name, expected) in [
            ("web", Ok(0)),
            ("0123abcd/web", Ok(0)),
            ("0123abcd-1111/proxy", Ok(1)),
            ("0123ffff", Ok(3)),
            ("cron", Ok(3)),
            ("0123ffff-2222.main.1", Ok(2)),
            ("9999", Ok(4)),
            ("999", Err("no task of this node")),
            // Not the running task of the allocation that begins so.
            ("feed", Ok(5)),
            ("main", Ok(3)),
            ("shop", Err("0123abcd/web, 0123abcd/proxy")),
            ("0123", Err("several tasks")),
            ("0123abcd/main", Err("no task of this node")),
            ("", Err("no task of this node")),
            ("/web", Err("no task of this node")),
        ] {
            match (choose(&all, name), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{name}"),
                (Err(Failure::Failed(text) | Failure::NotFound(text)), Err(expected)) => {
                    assert!(text.contains(expected), "{name}: {text}");
                }
                (found, expected) => panic!("{name}: {found:?}, not {expected:?}"),
            }
        }
    }
}
