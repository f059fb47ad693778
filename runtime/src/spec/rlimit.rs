//! The names of the resource limits.

use oci_spec::runtime::PosixRlimitType;

/// The limits of setrlimit(2) by their names in a plan.
pub(super) const RLIMITS: [(&str, PosixRlimitType); 16] = [
    ("as", PosixRlimitType::RlimitAs),
    ("core", PosixRlimitType::RlimitCore),
    ("cpu", PosixRlimitType::RlimitCpu),
    ("data", PosixRlimitType::RlimitData),
    ("fsize", PosixRlimitType::RlimitFsize),
    ("locks", PosixRlimitType::RlimitLocks),
    ("memlock", PosixRlimitType::RlimitMemlock),
    ("msgqueue", PosixRlimitType::RlimitMsgqueue),
    ("nice", PosixRlimitType::RlimitNice),
    ("nofile", PosixRlimitType::RlimitNofile),
    ("nproc", PosixRlimitType::RlimitNproc),
    ("rss", PosixRlimitType::RlimitRss),
    ("rtprio", PosixRlimitType::RlimitRtprio),
    ("rttime", PosixRlimitType::RlimitRttime),
    ("sigpending", PosixRlimitType::RlimitSigpending),
    ("stack", PosixRlimitType::RlimitStack),
];

/// The names of all resource limits, for an error.
pub(super) fn rlimit_names() -> String {
    RLIMITS.map(|(name, _)| name).join(", ")
}
