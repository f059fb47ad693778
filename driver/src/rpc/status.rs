//! The only place where an error becomes a gRPC status.
//!
//! UNAVAILABLE and CANCELLED are never used, because an agent takes them for the death of the plugin.

use prost::Message;
use proto::structs::RecoverableError;
use tonic::{Code, Status};

use crate::error::TaskError;

impl From<TaskError> for Status {
    fn from(error: TaskError) -> Self {
        of(&error)
    }
}

/// The status of a failed call. Each one tells whether the restart policy may try again; only StartTask's caller
/// reads that.
fn of(error: &TaskError) -> Status {
    let code = code(error);
    let message = error.to_string();
    let details = tonic_types::pb::Status {
        // An agent turns the whole status into INTERNAL if this code differs from the outer one.
        code: code as i32,
        message: message.clone(),
        details: vec![recoverable(error.recoverable())],
    };
    Status::with_details(code, message, details.encode_to_vec().into())
}

fn recoverable(recoverable: bool) -> prost_types::Any {
    prost_types::Any {
        type_url: "type.googleapis.com/hashicorp.nomad.plugins.shared.structs.RecoverableError".to_owned(),
        value: RecoverableError { recoverable }.encode_to_vec(),
    }
}

fn code(error: &TaskError) -> Code {
    match error {
        TaskError::Config(_)
        | TaskError::Plan(_)
        | TaskError::Confinement(_)
        | TaskError::Signal(_)
        | TaskError::Prefix(_)
        | TaskError::Invalid(_) => Code::InvalidArgument,
        TaskError::Pull { .. }
        | TaskError::Start(_)
        | TaskError::Network(_)
        | TaskError::Volume(_)
        | TaskError::Exec(_)
        | TaskError::Refused(_)
        | TaskError::Cancelled => Code::FailedPrecondition,
        TaskError::Unknown(_) => Code::NotFound,
        TaskError::AlreadyStarted(_) => Code::AlreadyExists,
        TaskError::NotOffered(_) => Code::Unimplemented,
        TaskError::Internal(_) => Code::Internal,
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use tonic::Code;

    use super::of;
    use crate::error::TaskError;

    #[test]
    fn the_inner_code_equals_the_outer_code() {
        for (error, code) in [
            (TaskError::Unknown("a".into()), Code::NotFound),
            (TaskError::Internal("a".into()), Code::Internal),
            (TaskError::AlreadyStarted("a".into()), Code::AlreadyExists),
        ] {
            let status = of(&error);
            let inner = tonic_types::pb::Status::decode(status.details()).unwrap();
            assert_eq!(status.code(), code);
            assert_eq!((inner.code, inner.message.as_str()), (code as i32, status.message()));
            assert_eq!(inner.details.len(), 1);
        }
    }
}
