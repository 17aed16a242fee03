//! A TCP proxy in front of PostgreSQL that cuts connections at a chosen place of the protocol: above all between a commit and
//! its answer, where the caller cannot know the outcome.
//!
//! It reads the protocol's messages (PostgreSQL's documentation, "Message Formats"): a length-prefixed startup message, then messages of a
//! type byte and a length. For that it hands out URLs that ask for no TLS.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Where a connection is to be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// The message is not passed on.
    Before,
    /// The message is passed on and carried out; its answer is not passed back.
    After,
    /// The client's connection ends at once; the server gets the message later, when told.
    Later,
}

/// At which statement.
#[derive(Debug, Clone, PartialEq, Eq)]
enum At {
    Text(Vec<u8>),
    /// So many statements from now on, of whichever connection, come before it.
    Number(u32),
}

/// How bytes are passed on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Pace {
    /// As they come.
    #[default]
    Full,
    /// Each message so much later.
    Late(Duration),
    /// Byte by byte, each in a packet of its own.
    Trickle,
}

#[derive(Debug)]
struct Shared {
    target: Mutex<PgConnectOptions>,
    /// The next message that is cut at, of whichever connection.
    armed: Mutex<Option<(Cut, At)>>,
    /// In place of a cut at a message the connection stays open and says nothing more.
    mute: AtomicBool,
    /// Nothing is passed on in either direction, and nobody is told.
    silent: watch::Sender<bool>,
    /// Cuts are resets.
    resets: AtomicBool,
    pace: Mutex<Pace>,
    /// Messages that are to be passed on later may go.
    later: watch::Sender<bool>,
    /// Counts cuts of everything at once.
    cut_all: watch::Sender<u64>,
    /// Connections cut at a message so far.
    cuts: watch::Sender<u64>,
    open: watch::Sender<bool>,
}

/// Listens on a port of its own while it lives; its connections end with it.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// A proxy to the server that `url` leads to, over a socket or TCP.
    pub async fn start(url: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(PgConnectOptions::from_str(url).unwrap()),
            armed: Mutex::new(None),
            mute: AtomicBool::new(false),
            silent: watch::Sender::new(false),
            resets: AtomicBool::new(false),
            pace: Mutex::default(),
            later: watch::Sender::new(false),
            cut_all: watch::Sender::new(0),
            cuts: watch::Sender::new(0),
            open: watch::Sender::new(true),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared)));
        Self { address, shared, accepting }
    }

    /// The same database as the same role as `url`, through this proxy.
    pub fn url(&self, url: &str) -> String {
        let (credentials, rest) = url.split_once("://").unwrap().1.rsplit_once('@').expect("a URL of the harness");
        let database = rest.split_once('/').unwrap().1.split('?').next().unwrap();
        format!("postgres://{credentials}@{}/{database}?sslmode=disable", self.address)
    }

    /// New connections lead to the server of another URL.
    pub fn lead_to(&self, url: &str) {
        *self.shared.target.lock().unwrap() = PgConnectOptions::from_str(url).unwrap();
    }

    /// The database of the first URL as a role that needs no password.
    pub fn url_as(&self, role: &str, database: &str) -> String {
        self.url(&format!("postgres://{role}@proxied/{database}"))
    }

    /// Cuts every connection there is. New ones are taken.
    pub fn cut_now(&self) {
        self.shared.cut_all.send_modify(|count| *count += 1);
    }

    /// Cuts every connection, and every new one at once, until [`Proxy::open`]: the server is gone.
    pub fn close(&self) {
        self.shared.open.send_replace(false);
        self.cut_now();
    }

    pub fn open(&self) {
        self.shared.open.send_replace(true);
    }

    /// The next time that a client runs a statement whose text contains `needle`, as a simple query or by executing a prepared one, the server
    /// carries it out, and the connection is cut in place of the answer. It happens once.
    pub fn cut_after_client_sends(&self, needle: &[u8]) {
        *self.shared.armed.lock().unwrap() = Some((Cut::After, At::Text(needle.to_vec())));
    }

    /// The same, but the server never gets the statement, only the end of the connection.
    pub fn cut_before(&self, needle: &[u8]) {
        *self.shared.armed.lock().unwrap() = Some((Cut::Before, At::Text(needle.to_vec())));
    }

    /// The same, but the server gets the statement after all, at [`Proxy::deliver`].
    pub fn cut_and_deliver_later(&self, needle: &[u8]) {
        self.shared.later.send_replace(false);
        *self.shared.armed.lock().unwrap() = Some((Cut::Later, At::Text(needle.to_vec())));
    }

    pub fn deliver(&self) {
        self.shared.later.send_replace(true);
    }

    /// Cuts after so many statements more, whatever they are: before the next one, or in place of its answer.
    pub fn cut_at_number(&self, statements: u32, carried_out: bool) {
        let cut = if carried_out { Cut::After } else { Cut::Before };
        *self.shared.armed.lock().unwrap() = Some((cut, At::Number(statements)));
    }

    /// Whether a cut that was asked for has not happened yet; it does not happen any more.
    pub fn disarm(&self) -> bool {
        self.shared.armed.lock().unwrap().take().is_some()
    }

    /// Connections cut at a message so far.
    pub fn cuts(&self) -> u64 {
        *self.shared.cuts.borrow()
    }

    /// From now on, where a connection would be cut at a message, its host vanishes instead: the connection stays open and nothing more
    /// comes.
    pub fn vanish_instead_of_cuts(&self) {
        self.shared.mute.store(true, Ordering::SeqCst);
    }

    /// The database's host vanishes: nothing is passed on any more, on old and on new connections, until [`Proxy::speak`].
    pub fn fall_silent(&self) {
        self.shared.silent.send_replace(true);
    }

    pub fn speak(&self) {
        self.shared.silent.send_replace(false);
    }

    /// Connections made from now on end by a reset.
    pub fn reset_instead_of_closing(&self) {
        self.shared.resets.store(true, Ordering::SeqCst);
    }

    pub fn pace(&self, pace: Pace) {
        *self.shared.pace.lock().unwrap() = pace;
    }

    /// Waits until that many connections in all were cut at a message.
    pub async fn await_cuts(&self, count: u64) {
        self.shared.cuts.subscribe().wait_for(|cuts| *cuts >= count).await.unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut_now();
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        let Ok((client, _)) = listener.accept().await else { return };
        if !*shared.open.borrow() {
            continue;
        }
        let shared = Arc::clone(&shared);
        // Subscribed here, so that no cut falls between.
        let mut cut_all = shared.cut_all.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                // A broken connection is what this is for.
                _ = forward(client, &shared) => {}
                _ = cut_all.changed() => {}
            }
        });
    }
}

async fn forward(client: TcpStream, shared: &Shared) -> io::Result<()> {
    client.set_nodelay(true)?;
    if shared.resets.load(Ordering::SeqCst) {
        client.set_zero_linger()?;
    }
    let target = shared.target.lock().unwrap().clone();
    if let Some(folder) = target.get_socket() {
        let socket = folder.join(format!(".s.PGSQL.{}", target.get_port()));
        return exchange(client, UnixStream::connect(socket).await?, shared).await;
    }
    let server = TcpStream::connect((target.get_host(), target.get_port())).await?;
    server.set_nodelay(true)?;
    exchange(client, server, shared).await
}

async fn exchange(client: TcpStream, server: impl AsyncRead + AsyncWrite, shared: &Shared) -> io::Result<()> {
    let (from_client, mut to_client) = client.into_split();
    let (from_server, mut to_server) = tokio::io::split(server);
    let (mut requests, mut answers) = (Messages::new(from_client, true), Messages::new(from_server, false));
    let mut statements = Statements::default();
    // Answers still owed: each ends with ReadyForQuery.
    let mut owed = 0_u32;
    // The statement at which to cut has gone to the server, and then the message that has the server answer and, in the extended
    // protocol, commit.
    let (mut cutting, mut complete) = (false, false);
    loop {
        tokio::select! {
            message = requests.next(), if !complete => {
                let Some(message) = message? else { return Ok(()) };
                match statements.running(&message).and_then(|text| shared.take_armed(text)) {
                    Some(Cut::Before) => return shared.cut().await,
                    Some(Cut::Later) => {
                        drop((requests, to_client));
                        shared.cuts.send_modify(|cuts| *cuts += 1);
                        shared.later.subscribe().wait_for(|now| *now).await.map_err(io::Error::other)?;
                        to_server.write_all(&message.bytes).await?;
                        // Its answer; or the end of the connection, before which it was carried out or not.
                        answers.next().await?;
                        return Ok(());
                    }
                    Some(Cut::After) => cutting = true,
                    None => {}
                }
                if message.ends_exchange {
                    owed += 1;
                    complete = cutting;
                }
                shared.pass(&message.bytes, &mut to_server).await?;
            }
            message = answers.next() => {
                let Some(message) = message? else { return Ok(()) };
                if message.kind == b'Z' {
                    owed = owed.saturating_sub(1);
                    if complete && owed == 0 {
                        return shared.cut().await;
                    }
                }
                if !cutting {
                    shared.pass(&message.bytes, &mut to_client).await?;
                }
            }
        }
    }
}

impl Shared {
    /// Ends a connection at a message, or says nothing more on it.
    async fn cut(&self) -> io::Result<()> {
        self.cuts.send_modify(|cuts| *cuts += 1);
        if self.mute.load(Ordering::SeqCst) { std::future::pending().await } else { Ok(()) }
    }

    async fn pass(&self, bytes: &[u8], to: &mut (impl AsyncWrite + Unpin)) -> io::Result<()> {
        // Fails only when the proxy is gone.
        self.silent.subscribe().wait_for(|silent| !silent).await.map_err(io::Error::other)?;
        let pace = *self.pace.lock().unwrap();
        match pace {
            Pace::Full => to.write_all(bytes).await,
            Pace::Late(by) => {
                tokio::time::sleep(by).await;
                to.write_all(bytes).await
            }
            Pace::Trickle => {
                for byte in bytes {
                    to.write_all(std::slice::from_ref(byte)).await?;
                    tokio::task::yield_now().await;
                }
                Ok(())
            }
        }
    }

    fn take_armed(&self, text: &[u8]) -> Option<Cut> {
        let mut armed = self.armed.lock().unwrap();
        let hit = match armed.as_mut() {
            None => false,
            Some((_, At::Text(needle))) => holds_words(text, needle),
            Some((_, At::Number(0))) => true,
            Some((_, At::Number(more))) => {
                *more -= 1;
                false
            }
        };
        if hit { armed.take().map(|(cut, _)| cut) } else { None }
    }
}

/// The texts of a connection's prepared statements, and which one its open portal runs.
#[derive(Debug, Default)]
struct Statements {
    texts: HashMap<Bytes, Bytes>,
    bound: Option<Bytes>,
}

impl Statements {
    /// The text of the statement that the message has the server run.
    fn running<'a>(&'a mut self, message: &'a Message) -> Option<&'a [u8]> {
        let mut body = message.body();
        match message.kind {
            b'Q' => message.bytes.get(5..),
            b'P' => {
                let name = take_text(&mut body);
                self.texts.insert(name, take_text(&mut body));
                None
            }
            b'B' => {
                let _portal = take_text(&mut body);
                self.bound = self.texts.get(&take_text(&mut body)).cloned();
                None
            }
            b'E' => self.bound.as_deref(),
            _ => None,
        }
    }
}

/// Whether the needle stands in a text, and not as the beginning of a longer word: COMMIT is not in READ COMMITTED.
fn holds_words(text: &[u8], needle: &[u8]) -> bool {
    let ends = |at: usize| text.get(at + needle.len()).is_none_or(|next| !next.is_ascii_alphanumeric());
    text.windows(needle.len()).enumerate().any(|(at, part)| part == needle && ends(at))
}

/// Takes a text up to its NUL.
fn take_text(body: &mut Bytes) -> Bytes {
    let end = body.iter().position(|&byte| byte == 0).unwrap_or(body.len());
    let text = body.split_to(end);
    body.advance(usize::from(!body.is_empty()));
    text
}

#[derive(Debug)]
struct Message {
    /// The type byte; 0 for the startup message, which has none.
    kind: u8,
    /// The whole message.
    bytes: Bytes,
    /// The server answers it with ReadyForQuery at the end: startup, Query, Sync.
    ends_exchange: bool,
}

impl Message {
    fn body(&self) -> Bytes {
        self.bytes.slice(if self.kind == 0 { 4 } else { 5 }..)
    }
}

/// Whole messages out of a stream.
struct Messages<R> {
    stream: R,
    buffer: BytesMut,
    startup: bool,
}

impl<R: AsyncRead + Unpin> Messages<R> {
    fn new(stream: R, startup: bool) -> Self {
        Self { stream, buffer: BytesMut::new(), startup }
    }

    /// The next message, `None` at the end. May be cancelled: what was read stays in the buffer.
    async fn next(&mut self) -> io::Result<Option<Message>> {
        loop {
            let type_bytes = usize::from(!self.startup);
            if let Some(length) = self.buffer.get(type_bytes..type_bytes + 4) {
                let length = u32::from_be_bytes(length.try_into().expect("four bytes"));
                let total = type_bytes + usize::try_from(length).map_err(io::Error::other)?;
                if self.buffer.len() >= total {
                    let bytes = self.buffer.split_to(total).freeze();
                    let kind = if self.startup { 0 } else { bytes[0] };
                    let ends_exchange = self.startup || matches!(kind, b'Q' | b'S');
                    self.startup = false;
                    return Ok(Some(Message { kind, bytes, ends_exchange }));
                }
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }
}
