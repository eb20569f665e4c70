//! The pages over HTTP/1.1.
//!
//! Only `GET` and `HEAD`. The page loads its scripts and styles from here and nothing from
//! elsewhere (a content security policy says so), and no other page can read from here: answers
//! carry no permission to, and a `Host` header must be an address, `localhost` or a name that was
//! announced, so that a name of a stranger's that points here (DNS rebinding) is refused.
//!
//! Connections and viewers are bounded. Newcomers are always let in: when there are too many, the
//! oldest connection goes that has no viewer at its end, so that peers who open connections and say
//! nothing, however many, do not keep out whoever asks whether the server is well.

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{self, HeaderValue};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};
use tokio_stream::Stream;
use tower::Layer;

use super::feed::{Feed, Mark};
use super::metrics;
use crate::accept::Backoff;

const PAGE: &str = include_str!("../../assets/dashboard.html");
const STYLE: &str = include_str!("../../assets/dashboard.css");
const SCRIPT: &str = include_str!("../../assets/dashboard.js");
const UPLOT_STYLE: &str = include_str!("../../../../third-party/uplot/uPlot.min.css");
const UPLOT_SCRIPT: &str = include_str!("../../../../third-party/uplot/uPlot.iife.min.js");
const UPLOT_LICENCE: &str = include_str!("../../../../third-party/uplot/LICENSE");

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Connections that may be open, and viewers among them.
const CONNECTIONS: usize = 256;
const VIEWERS: usize = 64;

/// How long a connection may take to ask for something, also between two questions.
const QUESTION: Duration = Duration::from_secs(10);

/// How often a viewer gets an event at most.
const TICK: Duration = Duration::from_secs(1);

/// Where and for whom.
#[derive(Clone, Debug)]
pub struct Options {
    /// The address to listen on.
    pub address: SocketAddr,
    /// Names under which the dashboard may be asked for, beside addresses and `localhost`.
    pub hosts: Vec<String>,
}

impl Options {
    /// Under its address alone.
    pub fn at(address: SocketAddr) -> Self {
        Self {
            address,
            hosts: Vec::new(),
        }
    }
}

/// Why there is no dashboard.
#[derive(Debug, thiserror::Error)]
#[error("the dashboard cannot listen on {address}: {error}")]
pub struct DashboardError {
    /// The address.
    pub address: SocketAddr,
    /// Why.
    pub error: io::Error,
}

/// A dashboard that is being served; dropping it ends that.
pub struct Running {
    /// Its address, whose port may have been 0 before.
    pub address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Serves the dashboard of a feed.
///
/// # Errors
/// When the address cannot be had.
pub async fn serve(options: Options, feed: Feed) -> Result<Running, DashboardError> {
    let wrap = |error| DashboardError {
        address: options.address,
        error,
    };
    let listener = TcpListener::bind(options.address).await.map_err(wrap)?;
    let address = listener.local_addr().map_err(wrap)?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "the dashboard can be read by everybody who reaches this address");
    }
    let hosts: HashSet<String> = options
        .hosts
        .iter()
        .map(|host| host.to_ascii_lowercase())
        .collect();
    let router = router(feed, hosts);
    let task = tokio::spawn(accept(listener, router));
    Ok(Running { address, task })
}

fn router(feed: Feed, hosts: HashSet<String>) -> Router {
    let viewers = Arc::new(Semaphore::new(VIEWERS));
    let asset = |kind: &'static str, text: &'static str| {
        get(move || async move { ([(header::CONTENT_TYPE, kind)], text) })
    };
    let script = "text/javascript; charset=utf-8";
    let style = "text/css; charset=utf-8";
    Router::new()
        .route("/", asset("text/html; charset=utf-8", PAGE))
        .route("/dashboard.css", asset(style, STYLE))
        .route("/dashboard.js", asset(script, SCRIPT))
        .route("/uplot.css", asset(style, UPLOT_STYLE))
        .route("/uplot.js", asset(script, UPLOT_SCRIPT))
        .route(
            "/uplot-licence.txt",
            asset("text/plain; charset=utf-8", UPLOT_LICENCE),
        )
        .route("/api/status", get(status))
        .route(
            "/events",
            get(move |feed, seat| events(feed, seat, viewers)),
        )
        .route("/metrics", get(metrics_text))
        .route("/healthz", get(health))
        .fallback(async || (StatusCode::NOT_FOUND, "there is nothing here\n"))
        .layer(middleware::from_fn(move |request, next| {
            let allowed = host_is_allowed(&request, &hosts);
            guard(allowed, request, next)
        }))
        .with_state(feed)
}

async fn accept(listener: TcpListener, router: Router) {
    let mut tasks = JoinSet::new();
    let mut open = Open::default();
    let mut backoff = Backoff::default();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = tasks.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                backoff.reset();
                let _ = stream.set_nodelay(true);
                let seat = Seat::default();
                let service = Extension(seat.clone()).layer(router.clone());
                let service = TowerToHyperService::new(service);
                let handle = tasks.spawn(async move {
                    let mut http = hyper::server::conn::http1::Builder::new();
                    http.timer(TokioTimer::new())
                        .header_read_timeout(QUESTION)
                        .max_buf_size(16 * 1024);
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
                open.enter(handle, seat);
            }
            Err(error) => {
                let what = "the dashboard cannot accept a connection";
                backoff.wait(&error, what).await;
            }
        }
    }
}

/// Whether a connection has become a viewer's.
#[derive(Clone, Debug, Default)]
struct Seat(Arc<AtomicBool>);

/// The open connections, oldest first.
#[derive(Default)]
struct Open(VecDeque<(AbortHandle, Seat)>);

impl Open {
    /// Notes a connection. If there are too many now, the oldest without a viewer ends: it had its
    /// time, or nobody waits for its answer. There are fewer viewers than connections, so there is
    /// one.
    fn enter(&mut self, connection: AbortHandle, seat: Seat) {
        if self.0.len() >= CONNECTIONS {
            self.0.retain(|(connection, _)| !connection.is_finished());
        }
        if self.0.len() >= CONNECTIONS {
            let seated = |(_, seat): &(AbortHandle, Seat)| seat.0.load(Ordering::Relaxed);
            let oldest = self.0.iter().position(|open| !seated(open));
            if let Some((oldest, _)) = oldest.and_then(|oldest| self.0.remove(oldest)) {
                oldest.abort();
            }
        }
        self.0.push_back((connection, seat));
    }
}

/// Checks and headers that all answers share.
async fn guard(allowed: bool, request: Request, next: Next) -> Response {
    let mut response = if !allowed {
        let text =
            "this name is not one of the dashboard's; use its address, or announce the name\n";
        (StatusCode::MISDIRECTED_REQUEST, text).into_response()
    } else if !matches!(*request.method(), Method::GET | Method::HEAD) {
        (StatusCode::METHOD_NOT_ALLOWED, "this page only shows\n").into_response()
    } else {
        next.run(request).await
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers.insert(
        "cross-origin-resource-policy",
        HeaderValue::from_static("same-origin"),
    );
    response
}

fn host_is_allowed(request: &Request, hosts: &HashSet<String>) -> bool {
    let mut given = request.headers().get_all(header::HOST).iter();
    let (Some(host), None) = (given.next(), given.next()) else {
        return false;
    };
    let Ok(host) = host.to_str() else {
        return false;
    };
    let name = match host.rsplit_once(':') {
        // The last colon of a bare IPv6 address is no port; such a header is wrong anyway.
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let name = name
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_ascii_lowercase();
    name == "localhost" || name.parse::<IpAddr>().is_ok() || hosts.contains(&name)
}

async fn status(State(feed): State<Feed>) -> Response {
    json(&feed.snapshot(usize::MAX))
}

fn json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text + "\n").into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn metrics_text(State(feed): State<Feed>, headers: HeaderMap) -> Response {
    let accept = headers.get_all(header::ACCEPT).iter();
    let accept: Vec<&str> = accept.filter_map(|value| value.to_str().ok()).collect();
    let format = metrics::Format::accepted(&accept.join(","));
    match metrics::text(&feed, format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.media_type())], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn health(State(feed): State<Feed>) -> Response {
    let snapshot = feed.snapshot(0);
    let code = match snapshot.trouble {
        None => StatusCode::OK,
        Some(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let body = serde_json::json!({
        "status": if code == StatusCode::OK { "ok" } else { "trouble" },
        "phase": snapshot.phase,
        "round": snapshot.round,
        "waiting": snapshot.waiting,
        "trouble": snapshot.trouble,
    });
    (code, json(&body)).into_response()
}

async fn events(
    State(feed): State<Feed>,
    Extension(seat): Extension<Seat>,
    viewers: Arc<Semaphore>,
) -> Response {
    let Ok(permit) = viewers.try_acquire_owned() else {
        let text = "too many viewers\n";
        return (StatusCode::SERVICE_UNAVAILABLE, text).into_response();
    };
    seat.0.store(true, Ordering::Relaxed);
    let sse = Sse::new(viewer(feed, permit)).keep_alive(KeepAlive::new().interval(TICK * 15));
    let mut response = sse.into_response();
    // A proxy that buffers would turn a live page into a slow one.
    let name = "x-accel-buffering";
    response
        .headers_mut()
        .insert(name, HeaderValue::from_static("no"));
    response.map(Body::new)
}

/// Events of one viewer: first everything, then what is new, once per tick.
fn viewer(feed: Feed, seat: OwnedSemaphorePermit) -> impl Stream<Item = Result<Event, Infallible>> {
    let (sender, receiver) = tokio::sync::mpsc::channel(2);
    tokio::spawn(async move {
        let _seat = seat;
        let mut ticks = tokio::time::interval(TICK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut mark: Option<Mark> = None;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                () = sender.closed() => return,
            }
            let (whole, points, next) = feed.points_since(mark);
            mark = Some(next);
            let mut ready = Vec::with_capacity(2);
            if whole || !points.is_empty() {
                let name = if whole { "history" } else { "points" };
                let data = serde_json::to_string(&points).unwrap_or_default();
                ready.push(Event::default().event(name).data(data));
            }
            ready.push(Event::default().event("status").data(&*feed.page_event()));
            for event in ready {
                // A viewer that does not read waits here, and nobody else does.
                if sender.send(Ok(event)).await.is_err() {
                    return;
                }
            }
        }
    });
    tokio_stream::wrappers::ReceiverStream::new(receiver)
}
