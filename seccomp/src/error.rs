//! The reasons why a profile cannot become a filter.

use seccompiler::BackendError;

/// A filter could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum SeccompError {
    /// The default profile has no system call numbers for the architecture of this machine.
    #[error("the default seccomp profile does not know this machine's architecture ({0}); use seccomp=unconfined")]
    UnknownArchitecture(&'static str),
    /// The library `seccompiler` refused a rule.
    #[error("compiling the default seccomp profile: {0}")]
    Compile(#[from] BackendError),
    /// The program is longer than the kernel allows (BPF_MAXINSNS).
    #[error("the seccomp profile makes a filter of {0} instructions; the kernel takes 4096")]
    TooLong(usize),
    /// A custom profile is invalid.
    #[error("the seccomp profile: {0}")]
    Profile(#[from] InvalidProfile),
}

/// A custom profile is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidProfile {
    /// It is not JSON in docker's format.
    #[error("{0}")]
    Json(String),
    /// The action is unknown, or it needs a user-space listener (`SCMP_ACT_NOTIFY`).
    #[error("action {0:?} is not supported")]
    Action(String),
    /// The profile has flags. They change how a filter is loaded.
    #[error("flags are not supported")]
    Flags,
    /// The profile has both `architectures` and `archMap`.
    #[error("architectures and archMap exclude each other")]
    Architectures,
    /// A rule has neither `names` nor `name`, or both.
    #[error("a rule needs either names or a name")]
    Names,
    /// A rule checks an argument that no system call has.
    #[error("a rule for {0} looks at argument {1}, and there are six, counted from 0")]
    Argument(String, u32),
    /// A `minKernel` is not of the form `4.8`.
    #[error("minKernel {0:?} is no version of a kernel, as in \"4.8\"")]
    Kernel(String),
    /// Two rules without arguments have different actions for the same system call.
    #[error("two rules for {0} contradict each other")]
    Contradiction(String),
}
