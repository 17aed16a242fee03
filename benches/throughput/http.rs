//! Spends, bets and reservations over HTTP, one in a request, by a service in this process. The load comes from this process too, over
//! connections that are kept, so that both services measured pay for it alike.

use std::sync::Arc;
use std::time::Duration;

use fairledger::db::tokens::Scope;
use fairledger::http::auth::{ApiToken, new_token_id};
use fairledger::http::{App, HttpSettings, serve};
use fairledger::ledger::SpendLedger;
use fairledger::seeds::Seeds;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::Done;
use crate::bets::{Sessions, What, place};
use crate::load::{Load, load};
use crate::spends::{next_run, nonce};

/// A request: its path and its body.
type Request = (String, String);

/// Spends under a key.
pub async fn spends(
    seeds: &Seeds,
    ledger: impl SpendLedger + 'static,
    key_id: &str,
    connections: usize,
    time: Duration,
) -> Done<Load> {
    let (key_id, run) = (key_id.to_owned(), next_run());
    let request = move |caller, call| {
        let nonce = hex::encode(nonce(run, caller, call));
        ("/v1/spends".to_owned(), format!("{{\"keyId\":\"{key_id}\",\"nonce\":\"{nonce}\"}}"))
    };
    requests(seeds, ledger, connections, time, request).await
}

/// Bets or reservations in any of the sessions.
pub async fn bets(
    seeds: &Seeds,
    ledger: impl SpendLedger + 'static,
    sessions: &Sessions,
    what: What,
    connections: usize,
    time: Duration,
) -> Done<Load> {
    let sessions = Arc::clone(sessions);
    let request = move |caller, call| {
        let (session_id, commitment) = sessions[place(caller, call, sessions.len())];
        let (path, game) = match what {
            What::Bets => ("bets", "\"game\":\"dice\"".to_owned()),
            What::Reservations => {
                let rules = format!("\"rules\":{{\"id\":\"bench:1\",\"sha256\":\"{}\"}}", "07".repeat(32));
                ("nonces", format!("\"game\":\"x-bench\",{rules},\"floats\":1"))
            }
        };
        let body = format!("{{\"commitment\":\"{commitment}\",\"betRef\":\"{caller}:{call}\",{game}}}");
        (format!("/v1/sessions/{session_id}/{path}"), body)
    };
    requests(seeds, ledger, connections, time, request).await
}

/// Requests to a service over the given ledgers. One more than is measured: the first looks the token up, so that not all do at once.
async fn requests(
    seeds: &Seeds,
    ledger: impl SpendLedger + 'static,
    connections: usize,
    time: Duration,
    request: impl Fn(u64, u64) -> Request + Send + Sync + 'static,
) -> Done<Load> {
    let token = ApiToken::generate();
    let mut tx = seeds.datastore().begin("bench.token").await?;
    tx.ensure_token(&new_token_id(), &token.hash(), &[Scope::Relay, Scope::Engine], None).await?;
    tx.commit().await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let stop = CancellationToken::new();
    // The token stays known for the whole run: looking it up is not what is measured.
    let settings =
        HttpSettings { token_ttl: Duration::from_secs(3600), requests_max: 4_096, ..HttpSettings::default() };
    let app = App::new(seeds.clone(), ledger, settings);
    let server = tokio::spawn(serve(listener, app, stop.clone().cancelled_owned()));

    let head = format!(
        " HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n",
        token.expose()
    );
    let mut clients = Vec::with_capacity(connections);
    for _ in 0..connections {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        clients.push(Mutex::new((stream, Vec::with_capacity(2_048))));
    }
    let (clients, head, request) = (Arc::new(clients), Arc::new(head), Arc::new(request));
    send(&clients[0], &head, request(u64::from(u32::MAX), 0)).await?;
    let measured = load(connections, time, move |caller, call| {
        let (clients, head, request) = (Arc::clone(&clients), Arc::clone(&head), Arc::clone(&request));
        async move { send(&clients[caller as usize], &head, request(caller, call)).await }
    })
    .await?;
    stop.cancel();
    server.await?;
    Ok(measured)
}

/// Sends one request and reads its answer; an error for any answer but 201.
async fn send(client: &Mutex<(TcpStream, Vec<u8>)>, head: &str, (path, body): Request) -> Done<bool> {
    let mut client = client.lock().await;
    let (stream, buffer) = &mut *client;
    let request = format!("POST {path}{head}Content-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await?;
    buffer.clear();
    loop {
        if stream.read_buf(buffer).await? == 0 {
            return Err("the service hung up".into());
        }
        let Some(end) = buffer.windows(4).position(|part| part == b"\r\n\r\n") else { continue };
        let text = std::str::from_utf8(&buffer[..end])?;
        let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).ok_or("no length")?;
        if buffer.len() >= end + 4 + length.parse::<usize>()? {
            let created = text.starts_with("HTTP/1.1 201");
            return if created { Ok(true) } else { Err(String::from_utf8_lossy(buffer).into_owned().into()) };
        }
    }
}
