//! What HTTP demands of a message as a whole, whatever it asks: one host, and a body that is read to its end before the next request.

use std::ops::Not as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header::{EXPECT, HOST};
use axum::http::uri::Authority;
use axum::http::{HeaderValue, Request, Version};
use http_body::{Frame, SizeHint};

/// How much of a body that nobody wants is read, and for how long, so that its connection can go on.
const UNWANTED_BYTES_MAX: usize = 64 * 1024;
const UNWANTED_TIME_MAX: Duration = Duration::from_millis(100);

/// What is wrong with a request's host: proxies that read it otherwise than we do would take it for somebody else's (RFC 9112, section 3.2;
/// RFC 9113, section 8.3.1).
#[derive(Clone, Copy, Debug)]
pub(super) struct Malformed(pub(super) &'static str);

impl Malformed {
    pub(super) fn look<B>(request: &Request<B>) -> Option<Self> {
        let mut hosts = request.headers().get_all(HOST).iter();
        let (host, more) = (hosts.next(), hosts.next().is_some());
        let unlike = |host: &HeaderValue| {
            let default = if request.uri().scheme_str() == Some("http") { 80 } else { 443 };
            let named = |authority: &Authority| {
                (authority.host().to_ascii_lowercase(), authority.port_u16().unwrap_or(default))
            };
            let host = Authority::try_from(host.as_bytes());
            request
                .uri()
                .authority()
                .is_some_and(|authority| host.is_ok_and(|host| named(&host) == named(authority)).not())
        };
        match request.version() {
            Version::HTTP_11 if host.is_none() => Some(Self("the header Host is missing")),
            _ if more => Some(Self("the header Host stands twice")),
            Version::HTTP_2 if host.is_some_and(unlike) => Some(Self("the header Host is unlike :authority")),
            _ => None,
        }
    }
}

/// The body of an HTTP/1 request, of which whoever answers may leave some. What is left would stand where the next request is looked for, so it
/// is read, or the answer says that the connection ends.
pub(super) struct Lent {
    body: Shared,
    /// The client waits to be asked for it.
    awaited: bool,
}

impl Lent {
    /// Lends a request's body to whoever handles it; none when nothing can be left of it.
    pub(super) fn out_of(request: &mut Request<Body>) -> Option<Self> {
        if request.version() > Version::HTTP_11 || request.body().is_end_stream() {
            return None;
        }
        let whole = std::mem::take(request.body_mut());
        let body = Shared(Arc::new(Mutex::new(Reading { body: whole, ended: false })));
        *request.body_mut() = Body::new(body.clone());
        Some(Self { body, awaited: request.headers().contains_key(EXPECT) })
    }

    /// Reads what is left of it, if that is soon done. False when something stays.
    pub(super) async fn read_rest(mut self) -> bool {
        if self.awaited || self.body.is_end_stream() {
            return self.body.is_end_stream();
        }
        let mut unwanted = 0;
        let reading = std::future::poll_fn(|cx| {
            while unwanted <= UNWANTED_BYTES_MAX {
                match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                    None => return Poll::Ready(true),
                    Some(Err(_)) => break,
                    Some(Ok(frame)) => unwanted += frame.data_ref().map_or(0, Bytes::len),
                }
            }
            Poll::Ready(false)
        });
        tokio::time::timeout(UNWANTED_TIME_MAX, reading).await.unwrap_or(false)
    }
}

struct Reading {
    body: Body,
    /// Of a chunked body only reading it tells.
    ended: bool,
}

#[derive(Clone)]
struct Shared(Arc<Mutex<Reading>>);

impl Shared {
    fn reading(&self) -> MutexGuard<'_, Reading> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for Shared {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let mut reading = self.reading();
        let frame = ready!(Pin::new(&mut reading.body).poll_frame(cx));
        reading.ended |= frame.is_none();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let reading = self.reading();
        reading.ended || reading.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.reading().body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_names_one_host() {
        let fault = |version, uri: &str, hosts: &[&str]| {
            let mut request = Request::builder().version(version).uri(uri);
            for host in hosts {
                request = request.header(HOST, *host);
            }
            Malformed::look(&request.body(()).unwrap()).map(|Malformed(words)| words)
        };
        let (one, two) = (Version::HTTP_11, Version::HTTP_2);
        for (version, uri, hosts) in [
            (one, "/", &["a"] as &[_]),
            (Version::HTTP_10, "/", &[]),
            (two, "https://a:1/", &[]),
            (two, "https://a:1/", &["A:1"]),
            (two, "https://a/", &["a:443"]),
            (two, "http://a:80/", &["a"]),
            (two, "/", &["a"]),
        ] {
            assert_eq!(fault(version, uri, hosts), None, "{version:?} {uri} {hosts:?}");
        }
        assert_eq!(fault(one, "/", &[]), Some("the header Host is missing"));
        for version in [Version::HTTP_10, one, two] {
            assert_eq!(fault(version, "https://a/", &["a", "a"]), Some("the header Host stands twice"));
        }
        for (uri, host) in [("https://a:1/", "a:2"), ("https://a/", "b"), ("https://a/", "a:80"), ("https://a/", "a b")]
        {
            assert_eq!(fault(two, uri, &[host]), Some("the header Host is unlike :authority"), "{uri} {host}");
        }
    }
}
