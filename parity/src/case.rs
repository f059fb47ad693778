//! A case: one job and what is observed of it.

use e2e::Outcome;

use crate::{observed::Observed, seen::Seen};

/// Looks at a running task from outside.
pub type Look = fn(&Seen, &mut Observed) -> Outcome;

/// One job description. Both drivers run it; only `driver` differs.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The name, unique in the suite. It is also the job's name.
    pub name: &'static str,
    /// The variant of the image, see [`crate::images`].
    pub image: &'static str,
    /// A shell script as the task's command. Its output is observed: `key = value`, or a line without a key.
    pub script: Option<&'static str>,
    /// Lines in the task's `config` block.
    pub config: &'static str,
    /// Lines in the `task` block.
    pub task: &'static str,
    /// Lines in the `group` block.
    pub group: &'static str,
    /// An observation while the task runs. The job is stopped afterwards.
    pub look: Option<Look>,
    /// The output does not end with the mark of the script: the task is killed, or has no script.
    pub unmarked: bool,
    /// The case is in the quick selection of CI.
    pub quick: bool,
    /// The job's type is `service`, not `batch`.
    pub service: bool,
    /// The default bridges of both drivers have IPv6 addresses too.
    pub ipv6: bool,
    /// dockerd needs every capability of the machine for this case.
    pub all_capabilities: bool,
}

impl Case {
    /// The command and the output of the image itself.
    #[must_use]
    pub const fn image(name: &'static str, image: &'static str) -> Self {
        Self {
            name,
            image,
            script: None,
            config: "",
            task: "",
            group: "",
            look: None,
            unmarked: false,
            quick: false,
            service: false,
            ipv6: false,
            all_capabilities: false,
        }
    }

    /// A script in the plain image.
    #[must_use]
    pub const fn script(name: &'static str, script: &'static str) -> Self {
        let mut case = Self::image(name, "plain");
        case.script = Some(script);
        case
    }

    /// The same as [`Case::image`], in the quick selection.
    #[must_use]
    pub const fn quick_image(name: &'static str, image: &'static str) -> Self {
        let mut case = Self::image(name, image);
        case.quick = true;
        case
    }

    /// The same as [`Case::script`], in the quick selection.
    #[must_use]
    pub const fn quick_script(name: &'static str, script: &'static str) -> Self {
        let mut case = Self::script(name, script);
        case.quick = true;
        case
    }

    /// The script runs in another variant of the image.
    #[must_use]
    pub const fn on(mut self, image: &'static str) -> Self {
        self.image = image;
        self
    }

    /// Sets the lines in the `config` block.
    #[must_use]
    pub const fn config(mut self, config: &'static str) -> Self {
        self.config = config;
        self
    }

    /// Sets the lines in the `task` block.
    #[must_use]
    pub const fn task(mut self, task: &'static str) -> Self {
        self.task = task;
        self
    }

    /// Sets the lines in the `group` block.
    #[must_use]
    pub const fn group(mut self, group: &'static str) -> Self {
        self.group = group;
        self
    }

    /// Looks at the running task. The job is stopped afterwards.
    #[must_use]
    pub const fn look(mut self, look: Look) -> Self {
        self.look = Some(look);
        self
    }

    /// The output has no end mark.
    #[must_use]
    pub const fn unmarked(mut self) -> Self {
        self.unmarked = true;
        self
    }

    /// The case runs only where the suite has every capability.
    #[must_use]
    pub const fn all_capabilities(mut self) -> Self {
        self.all_capabilities = true;
        self
    }

    /// The case runs on a node with IPv6 on the default bridges.
    #[must_use]
    pub const fn ipv6(mut self) -> Self {
        self.ipv6 = true;
        self
    }

    /// Whether this machine can run the case.
    #[must_use]
    pub fn possible(&self) -> bool {
        !self.all_capabilities
            || rustix::thread::CapabilitySet::all()
                .iter()
                .all(|capability| rustix::thread::capability_is_in_bounding_set(capability).unwrap_or(false))
    }

    /// The job is a service.
    #[must_use]
    pub const fn service(mut self) -> Self {
        self.service = true;
        self
    }
}
