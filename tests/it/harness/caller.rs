//! Calls of a running service over HTTP.

use std::path::PathBuf;

use serde_json::{Value, json};

use super::Service;

/// A client of HTTP, for what needs no more than one request.
pub fn http_client() -> reqwest::Client {
    // With the feature otlp, reqwest wants to know how it would speak TLS. All but the first time it has been told.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::new()
}

/// A caller of a running service.
#[derive(Clone)]
pub struct Caller {
    base_url: String,
    token: String,
    client: reqwest::Client,
}

impl Caller {
    pub fn new(service: &Service, token: &str) -> Self {
        Self::at(&service.base_url, token)
    }

    /// Of a service at `http://HOST:PORT`.
    pub fn at(base_url: &str, token: &str) -> Self {
        Self { base_url: base_url.to_owned(), token: token.to_owned(), client: http_client() }
    }

    pub async fn try_call(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<(u16, Value), reqwest::Error> {
        let url = format!("{}{path}", self.base_url);
        let mut request = self.client.request(method.parse().unwrap(), url).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let answer = request.send().await?;
        Ok((answer.status().as_u16(), answer.json().await?))
    }

    /// Takes the whole of an answer, and nothing of it.
    pub async fn drain(&self, path: &str) -> Result<(), reqwest::Error> {
        let url = format!("{}{path}", self.base_url);
        let mut answer = self.client.get(url).bearer_auth(&self.token).send().await?.error_for_status()?;
        while answer.chunk().await?.is_some() {}
        Ok(())
    }

    pub async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        self.try_call(method, path, body).await.unwrap()
    }

    /// A POST that succeeds.
    #[track_caller]
    pub fn post(&self, path: &str, body: Value) -> impl Future<Output = Value> + use<'_> {
        let path = path.to_owned();
        async move {
            let (status, answer) = self.call("POST", &path, Some(body)).await;
            assert!((200..300).contains(&status), "POST {path}: {status} {answer}");
            answer
        }
    }

    pub async fn session(&self) -> Value {
        self.post("/v1/sessions", json!({})).await
    }

    /// Takes a bet on dice under a session's commitment.
    pub async fn dice(&self, session: &Value, bet_ref: &str) -> Value {
        let body = json!({ "commitment": session["commitment"], "betRef": bet_ref, "game": "dice" });
        self.post(&format!("/v1/sessions/{}/bets", id(session)), body).await
    }

    /// Rotates the session of a view; gives the view after it.
    pub async fn rotate(&self, session: &Value) -> Value {
        let body = json!({ "commitment": session["commitment"] });
        let mut answer = self.post(&format!("/v1/sessions/{}/rotate", id(session)), body).await;
        answer["session"].take()
    }
}

/// The id of the session that a view shows.
pub fn id(session: &Value) -> &str {
    session["sessionId"].as_str().unwrap()
}

/// A data folder that PostgreSQL's own user can pass through.
pub fn data_folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::Builder::new()
        .prefix("fl")
        .permissions(std::os::unix::fs::PermissionsExt::from_mode(0o711))
        .tempdir()
        .unwrap();
    let data = folder.path().join("data");
    (folder, data)
}
