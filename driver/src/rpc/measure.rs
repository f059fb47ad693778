//! Measures the agent's calls: their number by status code, and their duration.
//!
//! A call is measured only if metrics are configured. The duration ends when the answer begins: the streams of a call
//! may stay open for as long as their task.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

use futures_util::future::Either;
use tonic::{
    Code,
    codegen::http::{HeaderMap, Request, Response},
};
use tower::{Layer, Service};

use super::state::Plugin;

/// The calls with names of their own. The agent chooses the name of a call.
const METHODS: [&str; 22] = [
    "PluginInfo",
    "ConfigSchema",
    "SetConfig",
    "TaskConfigSchema",
    "Capabilities",
    "Fingerprint",
    "RecoverTask",
    "StartTask",
    "WaitTask",
    "StopTask",
    "DestroyTask",
    "InspectTask",
    "TaskStats",
    "TaskEvents",
    "SignalTask",
    "ExecTask",
    "ExecTaskStreaming",
    "CreateNetwork",
    "DestroyNetwork",
    "Check",
    "Shutdown",
    "StreamStdio",
];
const OTHER: &str = "other";
/// The call that is answered when the task ends.
const WAIT: &str = "WaitTask";

/// Measures the calls of a service.
#[derive(Clone)]
pub struct MeasureLayer(Plugin);

impl MeasureLayer {
    /// Measures if this plugin has metrics.
    pub fn new(plugin: Plugin) -> Self {
        Self(plugin)
    }
}

impl<S> Layer<S> for MeasureLayer {
    type Service = Measure<S>;

    fn layer(&self, inner: S) -> Measure<S> {
        Measure { inner, plugin: self.0.clone() }
    }
}

/// A measured service.
#[derive(Clone)]
pub struct Measure<S> {
    inner: S,
    plugin: Plugin,
}

type Answer<R, E> = Pin<Box<dyn Future<Output = Result<Response<R>, E>> + Send>>;

impl<S, B, R> Service<Request<B>> for Measure<S>
where
    S: Service<Request<B>, Response = Response<R>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    R: 'static,
{
    type Response = Response<R>;
    type Error = S::Error;
    type Future = Either<S::Future, Answer<R, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let Some(node) = self.plugin.opened().filter(|node| node.recorder().is_some()) else {
            return Either::Left(self.inner.call(request));
        };
        let method = method(request.uri().path());
        let began = Instant::now();
        let answer = self.inner.call(request);
        Either::Right(Box::pin(async move {
            let answer = answer.await;
            let code = answer.as_ref().map_or(Code::Unavailable, |answer| code(answer.headers()));
            if let Some(recorder) = node.recorder() {
                recorder.rpc(method, name(code), (method != WAIT).then(|| began.elapsed()));
            }
            answer
        }))
    }
}

/// The name of a call in a path such as `/package.Service/Call`.
fn method(path: &str) -> &'static str {
    let name = path.rsplit('/').next().unwrap_or(path);
    METHODS.iter().find(|known| **known == name).copied().unwrap_or(OTHER)
}

/// The status code of an answer. An answer without a body has it in its headers; otherwise the call has begun well.
fn code(headers: &HeaderMap) -> Code {
    headers.get("grpc-status").map_or(Code::Ok, |value| Code::from_bytes(value.as_bytes()))
}

/// The code's name in the gRPC specification.
fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::method;

    #[test]
    fn calls_have_bounded_names() {
        assert_eq!(method("/hashicorp.nomad.plugins.drivers.proto.Driver/StartTask"), "StartTask");
        assert_eq!(method("/x/AnythingElse"), "other");
        assert_eq!(method(""), "other");
    }
}
