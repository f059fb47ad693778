//! Commands run in a running task: collected to their end for script checks, or streamed for a person.
//!
//! A command ends when its lead process ends; what that wrote is then read to the last byte, but nobody waits for background
//! processes that still hold the pipes. A caller that goes away takes its command with it.

use std::{
    io::{self, PipeReader, PipeWriter},
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use runtime::{ExecExit, ExecProcess, ExecRequest, TerminalSize, plan::ContainerId};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::{mpsc, watch},
};

use super::{TaskError, blocking};
use crate::{engine::Engine, sys};

/// What a script check keeps of a command's output: its end (as Nomad's own drivers).
const KEPT_OUTPUT: usize = 4096;
/// One read from a pipe.
const CHUNK: usize = 32 * 1024;

/// What a person's client sends.
#[derive(Debug)]
pub enum Input {
    /// Bytes for standard input.
    Stdin(Vec<u8>),
    /// End of standard input.
    CloseStdin,
    /// The terminal's new size.
    Resize(TerminalSize),
}

/// What goes back.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Bytes of standard output, or of the terminal.
    Stdout(Vec<u8>),
    /// Bytes of standard error.
    Stderr(Vec<u8>),
    /// No more standard output.
    CloseStdout,
    /// No more standard error.
    CloseStderr,
    /// The command ended.
    Exited(ExecExit),
}

/// A command's end and the end of its output.
#[derive(Debug)]
pub struct Collected {
    /// The last bytes of standard output and standard error, merged in the order in which they were written.
    pub output: Vec<u8>,
    /// How it ended.
    pub exit: ExecExit,
}

/// Runs a command to its end. One that runs longer than `timeout` is killed with its process tree and reported as killed.
pub async fn collect(
    engine: Arc<Engine>,
    container: ContainerId,
    args: Vec<String>,
    timeout: Option<Duration>,
) -> Result<Collected, TaskError> {
    let (reader, writer) = io::pipe().map_err(pipe_failed)?;
    let request = ExecRequest {
        args,
        terminal: None,
        stdin: null()?,
        stdout: writer.try_clone().map_err(pipe_failed)?.into(),
        stderr: writer.into(),
    };
    let process = spawn(engine, container, request).await?;
    let channel = Channel::new(reader.into())?;
    let mut tail = Tail::default();
    let expired = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let ended = channel.collect_until(&mut tail, ended(&process));
    let in_time = tokio::select! {
        result = ended => result.map(|()| true),
        () = expired => Ok(false),
    }?;
    if !in_time {
        process.kill();
        self::ended(&process).await?;
    }
    channel.drain(|bytes| tail.push(bytes));
    let exit = blocking(move || Ok(process.wait())).await?;
    if let (false, Some(timeout)) = (in_time, timeout) {
        tail.push(
            format!("\ncommand killed: it ran longer than its timeout of {} s\n", timeout.as_secs_f64()).as_bytes(),
        );
    }
    Ok(Collected { output: tail.0, exit })
}

/// Runs a command for a person. Returns when it ended and everything was sent, or when the client went away.
pub async fn stream(
    engine: Arc<Engine>,
    container: ContainerId,
    args: Vec<String>,
    terminal: bool,
    input: mpsc::Receiver<Input>,
    output: mpsc::Sender<Output>,
) -> Result<(), TaskError> {
    let mut session = if terminal {
        Session::on_terminal(engine, container, args).await?
    } else {
        Session::on_pipes(engine, container, args).await?
    };
    let process = session.process;
    let (finish, finished) = watch::channel(false);
    let mut pumps = tokio::task::JoinSet::new();
    for (channel, wrap, close) in session.sources.drain(..) {
        pumps.spawn(pump(channel, output.clone(), wrap, close, finished.clone()));
    }
    let feeding = tokio::spawn(feed(session.sink, input));
    let gone = tokio::select! {
        result = ended(&process) => { result?; false }
        () = output.closed() => true,
    };
    if gone {
        process.kill();
        ended(&process).await?;
    }
    finish.send_replace(true);
    while pumps.join_next().await.is_some() {}
    feeding.abort();
    let exit = blocking(move || Ok(process.wait())).await?;
    // A client that is gone does not want the result.
    drop(output.send(Output::Exited(exit)).await);
    Ok(())
}

type Source = (Arc<Channel>, fn(Vec<u8>) -> Output, Output);

/// A command with our ends of its descriptors.
struct Session {
    process: ExecProcess,
    sources: Vec<Source>,
    sink: Arc<Channel>,
}

impl Session {
    async fn on_pipes(engine: Arc<Engine>, container: ContainerId, args: Vec<String>) -> Result<Self, TaskError> {
        let ((stdin, our_stdin), (our_stdout, stdout), (our_stderr, stderr)) =
            (io::pipe().map_err(pipe_failed)?, io::pipe().map_err(pipe_failed)?, io::pipe().map_err(pipe_failed)?);
        let request =
            ExecRequest { args, terminal: None, stdin: stdin.into(), stdout: stdout.into(), stderr: stderr.into() };
        let process = spawn(engine, container, request).await?;
        let source = |reader: PipeReader| Channel::new(reader.into()).map(Arc::new);
        let sink = |writer: PipeWriter| Channel::new(writer.into()).map(Arc::new);
        Ok(Self {
            process,
            sources: vec![
                (source(our_stdout)?, Output::Stdout, Output::CloseStdout),
                (source(our_stderr)?, Output::Stderr, Output::CloseStderr),
            ],
            sink: sink(our_stdin)?,
        })
    }

    async fn on_terminal(engine: Arc<Engine>, container: ContainerId, args: Vec<String>) -> Result<Self, TaskError> {
        let request = ExecRequest {
            args,
            // The client sends the real size right after the set-up.
            terminal: Some(TerminalSize { rows: 24, cols: 80 }),
            stdin: null()?,
            stdout: null()?,
            stderr: null()?,
        };
        let mut process = spawn(engine, container, request).await?;
        let master = process.terminal.take();
        let master = master.ok_or_else(|| TaskError::Internal("exec: the helper sent no terminal".to_owned()))?;
        let channel = Arc::new(Channel::new(master)?);
        Ok(Self { process, sources: vec![(channel.clone(), Output::Stdout, Output::CloseStdout)], sink: channel })
    }
}

async fn spawn(engine: Arc<Engine>, container: ContainerId, request: ExecRequest) -> Result<ExecProcess, TaskError> {
    if request.args.is_empty() {
        return Err(TaskError::Invalid("exec: the command is empty".to_owned()));
    }
    blocking(move || Ok(engine.runtime.exec(&container, request)?)).await
}

async fn ended(process: &ExecProcess) -> Result<(), TaskError> {
    let watch =
        || -> io::Result<AsyncFd<OwnedFd>> { sys::watch(process.exit_fd().try_clone_to_owned()?, Interest::READABLE) };
    let watched = watch().map_err(pipe_failed)?;
    watched.readable().await.map(drop).map_err(pipe_failed)
}

/// Sends what a descriptor yields until it ends, or until the command has ended and the descriptor is empty.
async fn pump(
    channel: Arc<Channel>,
    output: mpsc::Sender<Output>,
    wrap: fn(Vec<u8>) -> Output,
    close: Output,
    mut finished: watch::Receiver<bool>,
) {
    loop {
        let chunk = tokio::select! {
            chunk = channel.read() => chunk,
            () = async { drop(finished.wait_for(|done| *done).await) } => break,
        };
        if chunk.is_empty() || output.send(wrap(chunk)).await.is_err() {
            break;
        }
    }
    while let Some(chunk) = channel.try_read() {
        if output.send(wrap(chunk)).await.is_err() {
            return;
        }
    }
    // The receiver went away: nobody is left to be told.
    drop(output.send(close).await);
}

/// Hands a client's input to the command. A command that closed its input is not an error.
async fn feed(sink: Arc<Channel>, mut input: mpsc::Receiver<Input>) {
    let mut sink = Some(sink);
    while let Some(message) = input.recv().await {
        let Some(channel) = &sink else { continue };
        match message {
            Input::Stdin(bytes) => {
                if channel.write_all(&bytes).await.is_err() {
                    sink = None;
                }
            }
            // A terminal has one descriptor for both ways: it stays open, and the client sends ^D itself.
            Input::CloseStdin if channel.is_terminal => {}
            Input::CloseStdin => sink = None,
            Input::Resize(size) => channel.resize(size),
        }
    }
}

/// The last bytes of what was pushed.
#[derive(Default)]
struct Tail(Vec<u8>);

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
        let surplus = self.0.len().saturating_sub(KEPT_OUTPUT);
        self.0.drain(..surplus);
    }
}

/// Our end of a pipe or a terminal, non-blocking.
struct Channel {
    descriptor: AsyncFd<OwnedFd>,
    is_terminal: bool,
}

impl Channel {
    fn new(descriptor: OwnedFd) -> Result<Self, TaskError> {
        let prepare = || -> io::Result<Self> {
            rustix::io::ioctl_fionbio(&descriptor, true)?;
            let is_terminal = rustix::termios::isatty(&descriptor);
            Ok(Self { is_terminal, descriptor: sys::watch(descriptor, Interest::READABLE | Interest::WRITABLE)? })
        };
        prepare().map_err(pipe_failed)
    }

    /// The next bytes; empty at the end. A terminal whose last user is gone answers EIO, which is its end.
    async fn read(&self) -> Vec<u8> {
        let mut buffer = vec![0; CHUNK];
        let length = self
            .descriptor
            .async_io(Interest::READABLE, |fd| Ok(rustix::io::read(fd, &mut buffer)?))
            .await
            .unwrap_or(0);
        buffer.truncate(length);
        buffer
    }

    /// What is there now, if anything.
    fn try_read(&self) -> Option<Vec<u8>> {
        let mut buffer = vec![0; CHUNK];
        let length = rustix::io::read(&self.descriptor, &mut buffer).ok().filter(|length| *length > 0)?;
        buffer.truncate(length);
        Some(buffer)
    }

    fn drain(&self, mut take: impl FnMut(&[u8])) {
        while let Some(chunk) = self.try_read() {
            take(&chunk);
        }
    }

    async fn collect_until(
        &self,
        tail: &mut Tail,
        end: impl Future<Output = Result<(), TaskError>>,
    ) -> Result<(), TaskError> {
        tokio::pin!(end);
        let mut open = true;
        loop {
            tokio::select! {
                result = &mut end => return result,
                chunk = self.read(), if open => {
                    open = !chunk.is_empty();
                    tail.push(&chunk);
                }
            }
        }
    }

    async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.descriptor.async_io(Interest::WRITABLE, |fd| Ok(rustix::io::write(fd, bytes)?)).await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    fn resize(&self, size: TerminalSize) {
        let size = rustix::termios::Winsize { ws_row: size.rows, ws_col: size.cols, ws_xpixel: 0, ws_ypixel: 0 };
        if let Err(error) = rustix::termios::tcsetwinsize(self.descriptor.as_fd(), size) {
            tracing::debug!(%error, "terminal not resized");
        }
    }
}

fn null() -> Result<OwnedFd, TaskError> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null");
    null.map(OwnedFd::from).map_err(|error| TaskError::Internal(format!("/dev/null: {error}")))
}

fn pipe_failed(error: io::Error) -> TaskError {
    TaskError::Internal(format!("exec: {error}"))
}

#[cfg(test)]
mod tests {
    use super::{KEPT_OUTPUT, Tail};

    #[test]
    fn the_end_of_the_output_is_kept() {
        let mut tail = Tail::default();
        tail.push(&vec![b'a'; KEPT_OUTPUT]);
        tail.push(b"end");
        assert_eq!(tail.0.len(), KEPT_OUTPUT);
        assert!(tail.0.ends_with(b"aend"));
    }
}
