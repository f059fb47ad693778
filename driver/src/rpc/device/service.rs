//! The device plugin service. Its two streams end only with their client: an end would mean that the plugin has failed.

use std::{pin::Pin, time::Duration};

use proto::device::{
    FingerprintRequest, FingerprintResponse, ReserveRequest, ReserveResponse, StatsRequest, StatsResponse,
    device_plugin_server::DevicePlugin,
};
use tokio::sync::mpsc;
use tokio_stream::{Stream, wrappers::ReceiverStream};
use tonic::{Request, Response, Status};

use super::{Devices, convert};
use crate::{
    blocking::blocking,
    device_plugin::{self, Offer},
    rpc,
};

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The shortest time between two statistics. Nomad asks for one second.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(100);

#[tonic::async_trait]
impl DevicePlugin for Devices {
    type FingerprintStream = Messages<FingerprintResponse>;
    type StatsStream = Messages<StatsResponse>;

    /// All devices at once, then after each change.
    async fn fingerprint(&self, _: Request<FingerprintRequest>) -> Result<Response<Self::FingerprintStream>, Status> {
        let (sender, receiver) = mpsc::channel(1);
        let mut offer = Offer::new(self.config());
        tokio::spawn(async move {
            loop {
                let next = tokio::select! {
                    next = offer.next() => next,
                    () = sender.closed() => return,
                };
                let message = match next {
                    Ok((same, groups)) => {
                        offer = same;
                        Ok(convert::fingerprint(&groups))
                    }
                    Err(error) => {
                        // The client has the error, or is gone: both end the stream.
                        sender.send(Err(error.into())).await.ok();
                        return;
                    }
                };
                if sender.send(message).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }

    async fn reserve(&self, request: Request<ReserveRequest>) -> Result<Response<ReserveResponse>, Status> {
        let (config, ids) = (self.config(), request.into_inner().device_ids);
        let reservation = blocking(move || device_plugin::reserve(&config, &ids)).await?;
        Ok(Response::new(convert::reservation(reservation)))
    }

    /// The health of the devices, in the client's interval.
    async fn stats(&self, request: Request<StatsRequest>) -> Result<Response<Self::StatsStream>, Status> {
        let interval = rpc::convert::duration(request.into_inner().collection_interval).max(SHORTEST_INTERVAL);
        let (sender, receiver) = mpsc::channel(1);
        let config = self.config();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(interval);
            loop {
                tokio::select! {
                    _ = ticks.tick() => {}
                    () = sender.closed() => return,
                }
                let config = config.clone();
                let groups = blocking(move || Ok(device_plugin::current(&config))).await;
                let message = groups.map(|groups| convert::stats(&groups)).map_err(Status::from);
                if sender.send(message).await.is_err() {
                    return;
                }
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver))))
    }
}
