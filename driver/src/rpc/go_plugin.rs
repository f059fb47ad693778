//! go-plugin's own services: Shutdown, and two streams that an agent opens but never uses for task drivers.

use std::pin::Pin;

use proto::go_plugin::{ConnInfo, Empty, StdioData, grpc_broker_server, grpc_controller_server, grpc_stdio_server};
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Request, Response, Status, Streaming};

type Silent<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The service by which the agent ends this process.
pub fn controller(stop: watch::Sender<bool>) -> grpc_controller_server::GrpcControllerServer<Controller> {
    grpc_controller_server::GrpcControllerServer::new(Controller { stop })
}

/// The stream for a plugin's standard output and error. It is silent, because the log goes to standard error itself.
pub fn stdio() -> grpc_stdio_server::GrpcStdioServer<Stdio> {
    grpc_stdio_server::GrpcStdioServer::new(Stdio)
}

/// The stream over which agents and plugins of other kinds agree on further connections.
pub fn broker() -> grpc_broker_server::GrpcBrokerServer<Broker> {
    grpc_broker_server::GrpcBrokerServer::new(Broker)
}

/// Ends this process.
pub struct Controller {
    stop: watch::Sender<bool>,
}

#[tonic::async_trait]
impl grpc_controller_server::GrpcController for Controller {
    async fn shutdown(&self, _: Request<Empty>) -> Result<Response<Empty>, Status> {
        tracing::debug!("shutdown requested by the agent");
        self.stop.send_replace(true);
        Ok(Response::new(Empty {}))
    }
}

/// Sends nothing.
pub struct Stdio;

#[tonic::async_trait]
impl grpc_stdio_server::GrpcStdio for Stdio {
    type StreamStdioStream = Silent<StdioData>;

    async fn stream_stdio(&self, _: Request<()>) -> Result<Response<Self::StreamStdioStream>, Status> {
        Ok(Response::new(Box::pin(tokio_stream::pending())))
    }
}

/// Agrees on no further connections.
pub struct Broker;

#[tonic::async_trait]
impl grpc_broker_server::GrpcBroker for Broker {
    type StartStreamStream = Silent<ConnInfo>;

    async fn start_stream(&self, _: Request<Streaming<ConnInfo>>) -> Result<Response<Self::StartStreamStream>, Status> {
        Ok(Response::new(Box::pin(tokio_stream::pending())))
    }
}
