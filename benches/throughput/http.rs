//! Spends over HTTP, one in a request, by a service in this process. The load comes from this process too, over connections that are
//! kept, so that both services measured pay for it alike.

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
use crate::load::{Load, load};
use crate::spends::{next_run, nonce};

/// Spends under a key by requests to a service over the given ledger.
pub async fn spends(
    seeds: &Seeds,
    ledger: impl SpendLedger + 'static,
    key_id: &str,
    connections: usize,
    time: Duration,
) -> Done<Load> {
    let token = ApiToken::generate();
    let mut tx = seeds.datastore().begin("bench.token").await?;
    tx.ensure_token(&new_token_id(), &token.hash(), &[Scope::Relay], None).await?;
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
        "POST /v1/spends HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\nContent-Type: application/json\r\n",
        token.expose()
    );
    let mut clients = Vec::with_capacity(connections);
    for _ in 0..connections {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        clients.push(Mutex::new((stream, Vec::with_capacity(2_048))));
    }
    let (clients, head, key_id, run) = (Arc::new(clients), Arc::new(head), Arc::new(key_id.to_owned()), next_run());
    // The token is looked up by one request, and not by all at once.
    send(&clients[0], &head, &key_id, &nonce(run, u64::MAX, 0)).await?;
    let measured = load(connections, time, move |caller, call| {
        let (clients, head, key_id) = (Arc::clone(&clients), Arc::clone(&head), Arc::clone(&key_id));
        async move { send(&clients[caller as usize], &head, &key_id, &nonce(run, caller, call)).await }
    })
    .await?;
    stop.cancel();
    server.await?;
    Ok(measured)
}

/// Sends one request and reads its answer; an error for any answer but 201.
async fn send(client: &Mutex<(TcpStream, Vec<u8>)>, head: &str, key_id: &str, nonce: &[u8]) -> Done<bool> {
    let mut client = client.lock().await;
    let (stream, buffer) = &mut *client;
    let body = format!("{{\"keyId\":\"{key_id}\",\"nonce\":\"{}\"}}", hex::encode(nonce));
    let request = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
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
