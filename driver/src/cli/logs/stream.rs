//! One stream of a task: the files `<task>.<stream>.<number>`, of which Nomad's log collector writes the one with the
//! highest number and removes those with the lowest.

use std::{
    collections::BTreeSet,
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    os::{fd::OwnedFd, unix::fs::FileExt},
    path::Path,
};

use rustix::{
    fs::{Dir, FileType, Mode, OFlags, fstat, openat},
    io::Errno,
};

/// The size of one read.
const CHUNK: usize = 64 << 10;

/// A stream and the place up to which it was read.
pub struct LogStream {
    directory: OwnedFd,
    /// `<task>.<stream>`.
    name: String,
    /// The number of the file that is read.
    number: Option<u64>,
    file: Option<File>,
}

/// The names of a task's log files without their numbers, from the FIFO that the task writes to:
/// `…/.<task>.<stream>.fifo`. `None` if Nomad collects no output.
pub fn base_name(fifo: &Path) -> Option<String> {
    let name = fifo.file_name()?.to_str()?;
    Some(name.strip_prefix('.')?.strip_suffix(".fifo")?.to_owned())
}

impl LogStream {
    /// The stream from its begin.
    pub fn new(directory: OwnedFd, name: String) -> Self {
        Self { directory, name, number: None, file: None }
    }

    /// Writes everything from the current place to the end.
    pub fn copy(&mut self, to: &mut impl Write) -> io::Result<u64> {
        let mut copied = 0;
        loop {
            // A file with a higher number exists only after the last byte of this one was written.
            let next = self.next_number()?;
            if let Some(file) = &mut self.file {
                copied += copy_rest(file, to)?;
            }
            let Some(next) = next else { return to.flush().map(|()| copied) };
            // One that is no file, or was removed meanwhile, is passed over.
            self.file = open_file(&self.directory, &self.file_name(next))?;
            self.number = Some(next);
        }
    }

    /// Moves to the place before the last lines.
    pub fn skip_to_last(&mut self, lines: usize) -> io::Result<()> {
        let mut left = lines;
        let mut is_end = true;
        for number in self.numbers()?.into_iter().rev() {
            let Some(mut file) = open_file(&self.directory, &self.file_name(number))? else { continue };
            let (at, found) = begin_of_last(&file, left, is_end)?;
            file.seek(SeekFrom::Start(at))?;
            is_end &= file.metadata()?.len() == 0;
            (self.number, self.file) = (Some(number), Some(file));
            left -= found.min(left);
            if at > 0 || left == 0 {
                break;
            }
        }
        Ok(())
    }

    fn file_name(&self, number: u64) -> String {
        format!("{}.{number}", self.name)
    }

    /// The lowest number above the current one.
    fn next_number(&self) -> io::Result<Option<u64>> {
        Ok(self.numbers()?.into_iter().find(|number| self.number.is_none_or(|current| *number > current)))
    }

    fn numbers(&self) -> io::Result<BTreeSet<u64>> {
        let mut numbers = BTreeSet::new();
        for entry in Dir::read_from(&self.directory)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok();
            let number: Option<u64> =
                name.and_then(|name| name.strip_prefix(&self.name)?.strip_prefix('.')?.parse().ok());
            numbers.extend(number);
        }
        Ok(numbers)
    }
}

fn copy_rest(file: &mut File, to: &mut impl Write) -> io::Result<u64> {
    let mut buffer = vec![0; CHUNK];
    let mut copied = 0;
    loop {
        let length = file.read(&mut buffer)?;
        if length == 0 {
            return Ok(copied);
        }
        to.write_all(buffer.get(..length).unwrap_or_default())?;
        copied += length as u64;
    }
}

/// The place in a file at which its last lines begin, and the number of line ends that were found before it. A line end
/// at the end of the stream ends the last line and begins none.
fn begin_of_last(file: &File, lines: usize, is_end: bool) -> io::Result<(u64, usize)> {
    let length = file.metadata()?.len();
    let mut buffer = vec![0; CHUNK];
    let (mut end, mut found) = (length, 0);
    if lines == 0 {
        return Ok((length, 0));
    }
    while end > 0 {
        let begin = end.saturating_sub(CHUNK as u64);
        let chunk = buffer.get_mut(..(end - begin) as usize).unwrap_or_default();
        file.read_exact_at(chunk, begin)?;
        for (index, _) in chunk.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            let at = begin + index as u64;
            if is_end && at + 1 == length {
                continue;
            }
            if found + 1 == lines {
                return Ok((at + 1, lines));
            }
            found += 1;
        }
        end = begin;
    }
    Ok((0, found))
}

/// Opens a file of the log directory for reading; `None` if it is no regular file or has disappeared.
fn open_file(directory: &OwnedFd, name: &str) -> io::Result<Option<File>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(directory, name, flags, Mode::empty()) {
        Ok(file) if FileType::from_raw_mode(fstat(&file)?.st_mode) == FileType::RegularFile => Ok(Some(file.into())),
        Ok(_) | Err(Errno::NOENT | Errno::LOOP | Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink, path::Path};

    use super::{LogStream, base_name};

    fn stream(directory: &Path) -> LogStream {
        LogStream::new(fs::File::open(directory).unwrap().into(), "web.stdout".to_owned())
    }

    fn text(stream: &mut LogStream) -> String {
        let mut bytes = Vec::new();
        stream.copy(&mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_names_of_files_follow_from_the_fifo() {
        for (path, expected) in [
            ("/alloc/logs/.web.stdout.fifo", Some("web.stdout")),
            ("/alloc/logs/.a.b c.stderr.fifo", Some("a.b c.stderr")),
            ("/dev/null", None),
            ("/alloc/logs/web.stdout.fifo", None),
        ] {
            assert_eq!(base_name(Path::new(path)).as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn files_are_read_in_the_order_of_their_numbers() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| directory.path().join(name);
        for (name, text) in [("web.stdout.9", "one\n"), ("web.stdout.10", "two\n"), ("web.stderr.11", "other\n")] {
            fs::write(file(name), text).unwrap();
        }
        symlink("/etc/hostname", file("web.stdout.11")).unwrap();
        fs::create_dir(file("web.stdout.12")).unwrap();
        fs::write(file("web.stdout.13x"), "no number").unwrap();
        let mut stream = stream(directory.path());
        assert_eq!(text(&mut stream), "one\ntwo\n", "no link is followed");
        assert_eq!(text(&mut stream), "");
    }

    #[test]
    fn new_output_is_read_across_files() {
        let directory = tempfile::tempdir().unwrap();
        let file = |number: u64| directory.path().join(format!("web.stdout.{number}"));
        let mut stream = stream(directory.path());
        assert_eq!(text(&mut stream), "");
        fs::write(file(0), "one ").unwrap();
        assert_eq!(text(&mut stream), "one ");
        fs::write(file(0), "one two").unwrap();
        fs::write(file(1), " three").unwrap();
        assert_eq!(text(&mut stream), "two three");
        fs::remove_file(file(0)).unwrap();
        fs::write(file(2), " four").unwrap();
        assert_eq!(text(&mut stream), " four");
    }

    #[test]
    fn the_last_lines_may_be_in_several_files() {
        let directory = tempfile::tempdir().unwrap();
        let long = "x".repeat(100_000);
        fs::write(directory.path().join("web.stdout.0"), "1\n2\n3\n").unwrap();
        fs::write(directory.path().join("web.stdout.1"), format!("4\n5{long}\n6")).unwrap();
        let last = |lines| {
            let mut stream = stream(directory.path());
            stream.skip_to_last(lines).unwrap();
            text(&mut stream)
        };
        assert_eq!(last(0), "");
        assert_eq!(last(1), "6");
        assert_eq!(last(2), format!("5{long}\n6"));
        assert_eq!(last(3), format!("4\n5{long}\n6"));
        assert_eq!(last(4), format!("3\n4\n5{long}\n6"));
        assert_eq!(last(9), format!("1\n2\n3\n4\n5{long}\n6"));
        fs::write(directory.path().join("web.stdout.1"), "4\n").unwrap();
        assert_eq!((last(1), last(2)), ("4\n".to_owned(), "3\n4\n".to_owned()));
    }
}
