//! `GET /metrics`, and no other page. One request per connection; a slow client takes one of few places for a moment.

use std::{convert::Infallible, sync::Arc, time::Duration};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{self, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::Semaphore;

use super::{
    listen::{Connection, Listener},
    scrape::{Format, Scraper},
};

/// Connections at the same time. Others wait to be accepted.
const CONNECTIONS: usize = 8;
/// The time for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// The time for a whole connection.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause after a failure to accept a connection, for example for lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Answers requests, for ever.
pub async fn serve(listener: &mut Listener, scraper: &Arc<Scraper>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        match listener.accept().await {
            Ok(connection) => {
                let scraper = Arc::clone(scraper);
                tokio::spawn(async move {
                    serve_connection(connection, scraper).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "no connection accepted for metrics");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve_connection(connection: Connection, scraper: Arc<Scraper>) {
    let service = service_fn(move |request| {
        let scraper = Arc::clone(&scraper);
        async move { Ok::<_, Infallible>(answer(&request, &scraper).await) }
    });
    let mut server = http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).keep_alive(false);
    let serving = server.serve_connection(TokioIo::new(connection), service);
    match tokio::time::timeout(CONNECTION_TIMEOUT, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a request for metrics failed"),
        Err(_) => tracing::debug!("a request for metrics took too long"),
    }
}

async fn answer(request: &Request<Incoming>, scraper: &Arc<Scraper>) -> Response<Full<Bytes>> {
    if request.uri().path() != "/metrics" {
        return plain(StatusCode::NOT_FOUND, "the metrics are at /metrics\n");
    }
    if ![Method::GET, Method::HEAD].contains(request.method()) {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is possible\n");
    }
    let accept = request.headers().get_all(header::ACCEPT);
    let accepted = |name: &str| accept.iter().any(|value| value.to_str().is_ok_and(|value| value.contains(name)));
    let format = if accepted("application/openmetrics-text") { Format::OpenMetrics } else { Format::Classic };
    match scraper.scrape(format).await {
        Ok(text) => {
            let mut response = Response::new(Full::new(text));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
            response
        }
        Err(error) => {
            tracing::warn!(%error, "metrics could not be read");
            plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be read, see the driver's log\n")
        }
    }
}

fn plain(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}
