//! Connections: accepted within bounds, ended in order.
//!
//! Keeps I12: connections are counted, headers have a time and a size.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Request;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use hyper_util::server::graceful::{GracefulShutdown, Watcher};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::guesses::Peer;
use super::message::Malformed;
use super::metrics::Metrics;
use super::tls::Tls;
use super::{App, HttpSettings, router};

/// The longest headers of a request, in bytes.
const HEADER_BYTES_MAX: usize = 32 * 1024;

/// Requests that one HTTP/2 connection may have under way.
const STREAMS_MAX: u32 = 128;

/// How long to wait after a failure to accept: usually the process is out of file descriptors, and trying at once would spin.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// Cuts the connection that a request came over. Answers wait for their client; only they know when it has been too long.
#[derive(Clone, Debug, Default)]
pub(super) struct Cut(CancellationToken);

impl Cut {
    pub(super) fn now(&self) {
        self.0.cancel();
    }
}

/// Set when the service is told to stop. A request that begins after that, on a connection that is open already, is refused.
#[derive(Clone, Debug, Default)]
pub(super) struct Stopping(CancellationToken);

impl Stopping {
    pub(super) fn begun(&self) -> bool {
        self.0.is_cancelled()
    }
}

/// Serves until `shutdown` resolves. Then nothing more is accepted, requests that begin are answered `unavailable`, requests under way end
/// (those that take longer than [`HttpSettings::shutdown_timeout`] are cut off), and changes under way are waited for as long.
pub async fn serve(listener: TcpListener, app: App, shutdown: impl Future<Output = ()> + Send) {
    serve_with(listener, None, app, shutdown).await;
}

/// The same over TLS, where there is a certificate.
pub async fn serve_with(listener: TcpListener, tls: Option<Tls>, app: App, shutdown: impl Future<Output = ()> + Send) {
    let settings = app.settings().clone();
    let router = router(app.clone());
    let builder = connections(&settings);
    let places = Arc::new(Semaphore::new(settings.connections_max));
    let graceful = GracefulShutdown::new();
    let stopping = Stopping::default();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = async {
            // Never closed; were it, the loop would only stop accepting.
            let place = places.clone().acquire_owned().await.ok()?;
            Some((listener.accept().await, place))
        };
        let (stream, address, place) = tokio::select! {
            biased;
            () = &mut shutdown => break,
            accepted = accepted => match accepted {
                Some((Ok((stream, address)), place)) => (stream, address, place),
                Some((Err(error), _)) => {
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
                None => break,
            },
        };
        // Answers are short: waiting to fill a packet only costs time.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "a connection ended at once");
            continue;
        }
        let connection = Connection {
            builder: builder.clone(),
            router: router.clone(),
            watcher: graceful.watcher(),
            stopping: stopping.clone(),
            peer: Peer(address.ip()),
            tls: tls.clone(),
            header_timeout: settings.header_timeout,
            metrics: Arc::clone(app.metrics()),
        };
        tokio::spawn(async move {
            connection.run(stream).await;
            drop(place);
        });
    }
    // Before connections are told to end, so that whatever they still take is refused.
    stopping.0.cancel();
    drop(listener);
    app.readiness().not_ready("the service is stopping");
    let ending = async {
        graceful.shutdown().await;
        app.changes_ended().await;
    };
    if tokio::time::timeout(settings.shutdown_timeout, ending).await.is_err() {
        tracing::warn!("some requests took too long to end and are cut off");
    }
}

/// What one connection needs.
struct Connection {
    builder: Builder<TokioExecutor>,
    router: Router,
    watcher: Watcher,
    stopping: Stopping,
    peer: Peer,
    tls: Option<Tls>,
    header_timeout: Duration,
    metrics: Arc<Metrics>,
}

impl Connection {
    async fn run(self, stream: TcpStream) {
        let metrics = Arc::clone(&self.metrics);
        let _open = metrics.connection_open();
        match &self.tls {
            None => self.serve(stream).await,
            Some(tls) => {
                if let Some(stream) = tls.accept(stream, self.header_timeout, &self.metrics).await {
                    self.serve(stream).await;
                }
            }
        }
    }

    async fn serve(self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let (cut, asked) = (Cut::default(), CancellationToken::new());
        let service = TowerToHyperService::new(self.router.map_request({
            let (cut, asked, stopping, peer) = (cut.clone(), asked.clone(), self.stopping.clone(), self.peer);
            move |mut request: Request<_>| {
                asked.cancel();
                request.extensions_mut().insert(cut.clone());
                request.extensions_mut().insert(stopping.clone());
                request.extensions_mut().insert(peer);
                if let Some(malformed) = Malformed::look(&request) {
                    request.extensions_mut().insert(malformed);
                }
                request
            }
        }));
        let connection = self.builder.serve_connection(TokioIo::new(stream), service).into_owned();
        // The time for headers begins only when it is known which HTTP is spoken: until then nobody else looks at the clock.
        let nothing_asked = async {
            if tokio::time::timeout(self.header_timeout, asked.cancelled()).await.is_ok() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            ended = self.watcher.watch(connection) => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection ended early");
                }
            }
            () = nothing_asked => tracing::debug!("a connection that asked for nothing was closed"),
            () = cut.0.cancelled() => tracing::debug!("a connection was cut: its client takes nothing"),
        }
    }
}

pub(super) fn connections(settings: &HttpSettings) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.header_timeout)
        .max_buf_size(HEADER_BYTES_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX as u32) // a small constant
        .keep_alive_interval(settings.header_timeout)
        .keep_alive_timeout(settings.header_timeout);
    builder
}
