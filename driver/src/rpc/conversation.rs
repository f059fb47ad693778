//! The messages of ExecTaskStreaming, parsed and built. Pure functions.

use proto::driver::{
    ExecTaskStreamingIoOperation, ExecTaskStreamingRequest, ExecTaskStreamingResponse,
    exec_task_streaming_request::Setup,
};
use runtime::{ExecExit, TerminalSize};

use super::convert;
use crate::{
    error::TaskError,
    task::exec::{ExecInput, ExecOutput},
};

/// The exit code of a command that was not executed, as with docker. 126 and 127 concern its program.
const NOT_EXECUTED: i32 = 125;

/// The state of a conversation. After the first message, any order of messages is valid.
#[derive(Debug)]
pub struct Conversation {
    stdin_closed: bool,
}

/// The content of one message. A heartbeat has none.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ParsedMessage {
    /// The new size of the terminal.
    pub size: Option<TerminalSize>,
    /// Input for the command.
    pub input: Vec<ExecInput>,
}

impl Conversation {
    /// Begins with the first message, which must contain a set-up. Its other content counts as well.
    pub fn begin(first: Option<ExecTaskStreamingRequest>) -> Result<(Self, Setup, ParsedMessage), TaskError> {
        let mut message = first.unwrap_or_default();
        let setup = message.setup.take();
        let setup = setup.ok_or_else(|| TaskError::Invalid("exec: the first message has no setup".to_owned()))?;
        let mut conversation = Self { stdin_closed: false };
        let parsed = conversation.parse(message);
        Ok((conversation, setup, parsed))
    }

    /// Parses a further message. A second set-up is ignored, and so is input after the end of the input.
    pub fn parse(&mut self, message: ExecTaskStreamingRequest) -> ParsedMessage {
        let size = message.tty_size.map(|size| {
            let cells = |count: i32| u16::try_from(count.max(0)).unwrap_or(u16::MAX);
            TerminalSize { rows: cells(size.height), cols: cells(size.width) }
        });
        let mut input = Vec::new();
        if let Some(stdin) = message.stdin.filter(|_| !self.stdin_closed) {
            if !stdin.data.is_empty() {
                input.push(ExecInput::Stdin(stdin.data));
            }
            if stdin.close {
                self.stdin_closed = true;
                input.push(ExecInput::CloseStdin);
            }
        }
        ParsedMessage { size, input }
    }
}

/// The replies for a command that could not be executed. Nomad's command line shows no error text, so the text goes
/// to the command's output.
pub fn error_replies(error: &TaskError, terminal: bool) -> [ExecTaskStreamingResponse; 2] {
    let text = if terminal {
        ExecOutput::Stdout(format!("oci-rs: {error}\r\n").into_bytes())
    } else {
        ExecOutput::Stderr(format!("oci-rs: {error}\n").into_bytes())
    };
    [text, ExecOutput::Exited(ExecExit { exit_code: NOT_EXECUTED, signal: 0 })].map(reply)
}

/// The message for a part of a command's output.
pub fn reply(output: ExecOutput) -> ExecTaskStreamingResponse {
    let operation = |data, close| Some(ExecTaskStreamingIoOperation { data, close });
    let empty = ExecTaskStreamingResponse::default();
    match output {
        ExecOutput::Stdout(data) => ExecTaskStreamingResponse { stdout: operation(data, false), ..empty },
        ExecOutput::Stderr(data) => ExecTaskStreamingResponse { stderr: operation(data, false), ..empty },
        ExecOutput::CloseStdout => ExecTaskStreamingResponse { stdout: operation(Vec::new(), true), ..empty },
        ExecOutput::CloseStderr => ExecTaskStreamingResponse { stderr: operation(Vec::new(), true), ..empty },
        ExecOutput::Exited(exit) => {
            ExecTaskStreamingResponse { exited: true, result: Some(convert::exec_result(&exit)), ..empty }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{option, prelude::*};
    use proto::driver::exec_task_streaming_request::TerminalSize as WireSize;

    use super::*;

    fn message(stdin: Option<(Vec<u8>, bool)>, size: Option<(i32, i32)>, setup: bool) -> ExecTaskStreamingRequest {
        ExecTaskStreamingRequest {
            setup: setup.then(Setup::default),
            tty_size: size.map(|(height, width)| WireSize { height, width }),
            stdin: stdin.map(|(data, close)| ExecTaskStreamingIoOperation { data, close }),
        }
    }

    /// Heartbeats, input, its end, sizes and set-ups, each alone or with others.
    fn any_message() -> impl Strategy<Value = ExecTaskStreamingRequest> {
        let stdin = option::of((proptest::collection::vec(any::<u8>(), 0..4), proptest::bool::weighted(0.2)));
        (stdin, option::weighted(0.3, any::<(i32, i32)>()), proptest::bool::weighted(0.1))
            .prop_map(|(stdin, size, setup)| message(stdin, size, setup))
    }

    proptest! {
        #[test]
        fn any_order_of_messages_is_parsed(messages in proptest::collection::vec(any_message(), 0..20)) {
            let begun = Conversation::begin(messages.first().cloned());
            if messages.first().is_none_or(|first| first.setup.is_none()) {
                // Also if a size, input or a heartbeat comes before the set-up.
                prop_assert!(matches!(begun, Err(TaskError::Invalid(_))));
                return Ok(());
            }
            let (mut conversation, _, first) = begun.unwrap();
            let further = messages[1..].iter().cloned().map(|next| conversation.parse(next));
            let parsed: Vec<ParsedMessage> = std::iter::once(first).chain(further).collect();

            let close = messages.iter().position(|message| message.stdin.as_ref().is_some_and(|stdin| stdin.close));
            let until_close = &messages[..close.map_or(messages.len(), |at| at + 1)];
            let sent: Vec<u8> = until_close
                .iter()
                .filter_map(|message| message.stdin.clone())
                .flat_map(|stdin| stdin.data)
                .collect();
            let inputs: Vec<&ExecInput> = parsed.iter().flat_map(|parsed| &parsed.input).collect();
            let bytes = |input: &&ExecInput| match input {
                ExecInput::Stdin(data) => data.clone(),
                ExecInput::CloseStdin => Vec::new(),
            };
            prop_assert_eq!(inputs.iter().flat_map(bytes).collect::<Vec<u8>>(), sent, "every byte once, in order");
            prop_assert!(!inputs.iter().any(|input| matches!(input, ExecInput::Stdin(data) if data.is_empty())));
            let closes = inputs.iter().filter(|input| matches!(input, ExecInput::CloseStdin)).count();
            prop_assert_eq!(closes, usize::from(close.is_some()));
            let closed_last = matches!(inputs.last(), Some(ExecInput::CloseStdin));
            prop_assert!(close.is_none() || closed_last, "after all that was sent");
            let sizes = messages.iter().filter(|message| message.tty_size.is_some()).count();
            prop_assert_eq!(parsed.iter().filter(|parsed| parsed.size.is_some()).count(), sizes);
        }
    }

    #[test]
    fn sizes_are_clamped_to_those_of_a_terminal() {
        let size = |height, width| {
            let parsed = Conversation { stdin_closed: false }.parse(message(None, Some((height, width)), false));
            parsed.size.map(|size| (size.rows, size.cols))
        };
        assert_eq!(size(50, 132), Some((50, 132)));
        assert_eq!(size(-1, 70_000), Some((0, u16::MAX)));
    }

    #[test]
    fn the_result_has_a_message_of_its_own() {
        let reply = reply(ExecOutput::Exited(ExecExit { exit_code: 3, signal: 0 }));
        assert!(reply.exited && reply.stdout.is_none() && reply.stderr.is_none());
        assert_eq!(reply.result.unwrap().exit_code, 3);
    }
}
