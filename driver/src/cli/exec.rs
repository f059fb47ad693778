//! `oci-rs exec`: a command in a running task, with or without a terminal.

use std::{
    io::{self, IsTerminal, Read, Stdin, Write},
    process::ExitCode,
    sync::Arc,
};

use runtime::{ExecExit, ExecOptions, OtherUser, TerminalSize};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
};

use super::{arguments::ExecArguments, failure::Failure, tasks::Task};
use crate::{
    config::DefaultProfile,
    events::Events,
    node::Node,
    plan::Compute,
    task::exec::{ExecInput, ExecOutput, InteractiveClient, InteractiveCommand, stream},
};

/// The exit code if the command could not be started. A command may end with it too; as with podman.
const NOT_STARTED: u8 = 125;

/// Chunks in flight in each direction.
const IN_FLIGHT: usize = 8;
const CHUNK: usize = 16 << 10;

/// Runs the command; its exit code.
pub fn run(arguments: ExecArguments) -> ExitCode {
    match started(arguments) {
        Ok(exit) => ExitCode::from(u8::try_from(exit.exit_code).unwrap_or(u8::MAX)),
        Err(failure) => {
            failure.report();
            ExitCode::from(NOT_STARTED)
        }
    }
}

fn started(arguments: ExecArguments) -> Result<ExecExit, Failure> {
    let task = Task::find(&arguments.node, &arguments.task)?;
    if !task.is_running() {
        return Err(Failure::Failed(format!("task {} does not run", task.name())));
    }
    if arguments.tty && arguments.interactive && !io::stdin().is_terminal() {
        return Err(Failure::Failed("standard input is no terminal: leave out -t".to_owned()));
    }
    let mut config = task.place.settings.config.clone();
    // The plugin loads the default profile. The command gets that of the task.
    config.policy.apparmor = DefaultProfile::Unconfined;
    let node = Arc::new(Node::open(config, Compute::default(), Events::default()).map_err(Failure::of)?);
    let container = task.view.id.clone();
    let command = InteractiveCommand {
        args: arguments.command,
        options: ExecOptions {
            // Root of the node may do anything in a task.
            user: arguments.user.map(|name| OtherUser { name, allow_any: true }),
            cwd: arguments.workdir,
            ..ExecOptions::default()
        },
        debug_image: None,
        terminal: arguments.tty,
    };
    // While a command has the terminal, that command decides what keys mean.
    let raw = if arguments.tty && arguments.interactive { Some(RawTerminal::new()?) } else { None };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(Failure::of)?;
    let exit = runtime.block_on(async {
        let (client, mut output) = client(arguments.interactive, arguments.tty)?;
        let mut terminated = signal(SignalKind::terminate()).map_err(Failure::of)?;
        let running = stream(node, container, command, client);
        tokio::pin!(running);
        let mut result = None;
        loop {
            tokio::select! {
                done = &mut running, if result.is_none() => result = Some(done.map_err(Failure::of)),
                message = output.recv() => match message {
                    Some(message) => if let Some(exit) = write(message)? { return Ok(exit) },
                    // There is no more output, and no exit was told.
                    None => {
                        let interrupted = || Failure::Failed("the command did not tell its end".to_owned());
                        return Err(result.and_then(Result::err).unwrap_or_else(interrupted));
                    }
                },
                // Dropping the work ends the command, and the terminal becomes as it was.
                _ = terminated.recv() => return Err(Failure::Failed("given up".to_owned())),
            }
        }
    });
    drop(raw);
    // A thread may still read standard input.
    runtime.shutdown_background();
    exit
}

/// The channels of a command that gets the input of this process. Without input, it reads an end at once.
fn client(interactive: bool, terminal: bool) -> Result<(InteractiveClient, mpsc::Receiver<ExecOutput>), Failure> {
    let (input_sender, input) = mpsc::channel(IN_FLIGHT);
    let (size_sender, size) = watch::channel(None);
    let (output, receiver) = mpsc::channel(IN_FLIGHT);
    if interactive {
        std::thread::spawn(move || read_input(&io::stdin(), &input_sender));
    } else {
        drop(input_sender.try_send(ExecInput::CloseStdin));
    }
    if terminal {
        let mut resized = signal(SignalKind::window_change()).map_err(Failure::of)?;
        size_sender.send_replace(terminal_size());
        tokio::spawn(async move {
            while resized.recv().await.is_some() {
                size_sender.send_replace(terminal_size());
            }
        });
    }
    Ok((InteractiveClient { input, size, output }, receiver))
}

/// Passes on standard input until its end.
fn read_input(stdin: &Stdin, input: &mpsc::Sender<ExecInput>) {
    let mut buffer = vec![0; CHUNK];
    loop {
        match stdin.lock().read(&mut buffer) {
            Ok(0) | Err(_) => break,
            Ok(length) => {
                let bytes = buffer.get(..length).unwrap_or_default().to_vec();
                if input.blocking_send(ExecInput::Stdin(bytes)).is_err() {
                    return;
                }
            }
        }
    }
    // The command may have ended.
    drop(input.blocking_send(ExecInput::CloseStdin));
}

/// Writes a part of the output; the command's end, if the message tells it. A reader that has gone away ends the
/// command.
fn write(message: ExecOutput) -> Result<Option<ExecExit>, Failure> {
    let all = |mut to: Box<dyn Write>, bytes: Vec<u8>| to.write_all(&bytes).and_then(|()| to.flush());
    match message {
        ExecOutput::Stdout(bytes) => all(Box::new(io::stdout()), bytes)?,
        ExecOutput::Stderr(bytes) => all(Box::new(io::stderr()), bytes)?,
        ExecOutput::CloseStdout | ExecOutput::CloseStderr => {}
        ExecOutput::Exited(exit) => return Ok(Some(exit)),
    }
    Ok(None)
}

fn terminal_size() -> Option<TerminalSize> {
    let size = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin())).ok()?;
    Some(TerminalSize { rows: size.ws_row, cols: size.ws_col }).filter(|size| size.rows > 0 && size.cols > 0)
}

/// The terminal of standard input in raw mode. Dropped, it becomes as it was.
struct RawTerminal {
    before: Termios,
}

impl RawTerminal {
    fn new() -> Result<Self, Failure> {
        let before = tcgetattr(io::stdin()).map_err(Failure::of)?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw).map_err(Failure::of)?;
        Ok(Self { before })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        // A terminal that was closed needs no mode.
        tcsetattr(io::stdin(), OptionalActions::Now, &self.before).unwrap_or_default();
    }
}
