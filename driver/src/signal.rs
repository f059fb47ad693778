//! Signal names, as users write them in `kill_signal`, in `nomad alloc signal` and in an image's `STOPSIGNAL`.

/// The text is not the name or number of a signal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown signal {0:?}: use a name such as SIGTERM or HUP, SIGRTMIN+n, or a number from 1 to 64")]
pub struct UnknownSignal(pub String);

/// The names in Nomad's own table (signal(7)), without `SIG`.
const NAMES: [(&str, i32); 32] = [
    ("ABRT", libc::SIGABRT),
    ("ALRM", libc::SIGALRM),
    ("BUS", libc::SIGBUS),
    ("CHLD", libc::SIGCHLD),
    ("CONT", libc::SIGCONT),
    ("FPE", libc::SIGFPE),
    ("HUP", libc::SIGHUP),
    ("ILL", libc::SIGILL),
    ("INT", libc::SIGINT),
    ("IO", libc::SIGIO),
    ("IOT", libc::SIGABRT),
    ("KILL", libc::SIGKILL),
    ("PIPE", libc::SIGPIPE),
    ("PROF", libc::SIGPROF),
    ("PWR", libc::SIGPWR),
    ("QUIT", libc::SIGQUIT),
    ("SEGV", libc::SIGSEGV),
    ("STOP", libc::SIGSTOP),
    ("SYS", libc::SIGSYS),
    ("TERM", libc::SIGTERM),
    ("TRAP", libc::SIGTRAP),
    ("TSTP", libc::SIGTSTP),
    ("TTIN", libc::SIGTTIN),
    ("TTOU", libc::SIGTTOU),
    ("URG", libc::SIGURG),
    ("USR1", libc::SIGUSR1),
    ("USR2", libc::SIGUSR2),
    ("VTALRM", libc::SIGVTALRM),
    ("WINCH", libc::SIGWINCH),
    ("XCPU", libc::SIGXCPU),
    ("XFSZ", libc::SIGXFSZ),
    ("NULL", 0),
];

/// The real-time signals of a program in the container. The kernel's first is 32, but the C library reserves 32 and 33,
/// so that its SIGRTMIN is 34.
const REAL_TIME: std::ops::RangeInclusive<i32> = 34..=64;

/// The number of a signal that is written as `SIGTERM`, `term`, `15`, `SIGRTMIN+3` or `RTMAX-1`.
pub fn parse(text: &str) -> Result<i32, UnknownSignal> {
    let unknown = || UnknownSignal(text.to_owned());
    let upper = text.trim().to_ascii_uppercase();
    if let Ok(number) = upper.parse::<i32>() {
        return if (1..=*REAL_TIME.end()).contains(&number) { Ok(number) } else { Err(unknown()) };
    }
    let name = upper.strip_prefix("SIG").unwrap_or(&upper);
    if let Some((_, number)) = NAMES.iter().find(|(known, _)| *known == name) {
        return Ok(*number);
    }
    real_time(name).ok_or_else(unknown)
}

fn real_time(name: &str) -> Option<i32> {
    let (base, offset) = if let Some(rest) = name.strip_prefix("RTMIN") {
        (*REAL_TIME.start(), rest)
    } else {
        (*REAL_TIME.end(), name.strip_prefix("RTMAX")?)
    };
    let offset = if offset.is_empty() { 0 } else { offset.parse::<i32>().ok()? };
    base.checked_add(offset).filter(|number| REAL_TIME.contains(number))
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn names_numbers_and_real_time_signals_are_parsed() {
        for (text, number) in [
            ("SIGTERM", 15),
            ("term", 15),
            (" SIGHUP ", 1),
            ("9", 9),
            ("SIGNULL", 0),
            ("SIGRTMIN", 34),
            ("SIGRTMIN+3", 37),
            ("rtmax-1", 63),
        ] {
            assert_eq!(parse(text).unwrap(), number, "{text}");
        }
    }

    #[test]
    fn an_unknown_signal_is_refused_and_named() {
        for text in ["", "SIG", "SIGFOO", "0", "65", "-1", "SIGRTMIN+31", "SIGRTMAX+1", "RTMIN+x"] {
            assert!(parse(text).unwrap_err().to_string().contains(&format!("{text:?}")), "{text}");
        }
    }
}
