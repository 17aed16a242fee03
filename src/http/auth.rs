//! Who may call what: bearer tokens and their scopes, and how many requests may be under way.
//!
//! Keeps I6 (a token is known by its SHA-256 only, and its own type redacts it) and I12 (requests under way are counted; past the
//! bound they are refused at once). Both happen before a body is read, so precedence is: `unavailable` of a service that is stopping,
//! `unauthenticated`, `forbidden`, `quarantined` (for a change), `overloaded`, everything else. Only where a token has to be looked up in
//! the database can `overloaded` come before the two: when too many are being looked up, or no connection is free, nobody knows.

use std::collections::HashMap;
use std::future::Future;
use std::marker::PhantomData;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::FromRequestParts;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use rand::Rng as _;
use rand::rand_core::UnwrapErr;
use rand::rngs::SysRng;
use sha2::{Digest as _, Sha256};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::Instrument as _;
use zeroize::Zeroizing;

use super::App;
use super::guesses::client_address;
use super::problem::Problem;
use super::serve::Stopping;
use crate::db::tokens::Scope;
use crate::db::{Datastore, DbError};

/// What every token begins with, so that secret scanners find stray ones.
const PREFIX: &str = "flt_";

/// Characters of a token: the prefix and 32 bytes in base64url.
const TOKEN_CHARS: usize = PREFIX.len() + 43;

/// How long it is remembered at least that a token was valid once, when there is room.
const WAS_VALID: Duration = Duration::from_secs(60 * 60);

/// Tokens remembered at the most.
const CACHE_MAX: usize = 1_024;

/// Tokens looked up in the database at once.
const LOOK_UPS_MAX: usize = 8;

/// A bearer token: `flt_` and 256 random bits in base64url. Shown once, when it is made; stored as its hash.
pub struct ApiToken(Zeroizing<String>);

impl ApiToken {
    /// Makes one from the operating system's generator.
    ///
    /// # Panics
    /// When the operating system has no randomness to give.
    #[must_use]
    pub fn generate() -> Self {
        let mut bytes = Zeroizing::new([0; 32]);
        UnwrapErr(SysRng).fill_bytes(bytes.as_mut());
        Self(Zeroizing::new(format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes.as_slice()))))
    }

    /// Reads one; `None` for a text of another form.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let random = text.strip_prefix(PREFIX).filter(|_| text.len() == TOKEN_CHARS)?;
        let form = random.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        form.then(|| Self(Zeroizing::new(text.to_owned())))
    }

    /// SHA-256 of the text: what is stored. A fast hash will do, because there are 2^256 texts to try.
    #[must_use]
    pub fn hash(&self) -> [u8; 32] {
        Sha256::digest(self.0.as_bytes()).into()
    }

    /// The text in clear.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl std::fmt::Debug for ApiToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiToken(redacted)")
    }
}

/// Makes the public name of a token, for listing and revoking: 12 characters of `a-z0-9`. No secret.
#[must_use]
pub fn new_token_id() -> String {
    const ALPHABET: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    (0..12).map(|_| char::from(ALPHABET[rand::random_range(0..ALPHABET.len())])).collect()
}

/// Valid tokens, remembered for a few seconds; a token that is revoked or expires is refused when its time here is over, at the latest.
/// Invalid ones are not remembered: a new token works at once. That a token was valid once is remembered longer: looking it up again is no
/// stranger's request.
pub(super) struct TokenCache {
    entries: Mutex<HashMap<[u8; 32], Entry>>,
    look_ups: Semaphore,
    ttl: Duration,
}

struct Entry {
    scopes: Vec<Scope>,
    until: Instant,
}

impl TokenCache {
    pub(super) fn new(ttl: Duration) -> Self {
        Self { entries: Mutex::default(), look_ups: Semaphore::new(LOOK_UPS_MAX), ttl }
    }

    /// Whether a token was valid not long ago.
    fn was_valid(&self, hash: &[u8; 32]) -> bool {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner).contains_key(hash)
    }

    /// Whether a remembered token has a scope; `None` when it is not remembered.
    fn remembered(&self, hash: &[u8; 32], scope: Scope) -> Option<bool> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = entries.get(hash).filter(|entry| entry.until > Instant::now())?;
        Some(has(&entry.scopes, scope))
    }

    fn remember(&self, hash: [u8; 32], scopes: Vec<Scope>) {
        let now = Instant::now();
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= CACHE_MAX {
            entries.retain(|_, entry| entry.until > now);
        } else if entries.len() >= CACHE_MAX / 2 {
            entries.retain(|_, entry| entry.until + WAS_VALID > now);
        }
        // More valid tokens than places within seconds: the others are looked up each time.
        if entries.len() < CACHE_MAX {
            entries.insert(hash, Entry { scopes, until: now + self.ttl });
        }
    }

    /// Whether a token has a scope, from memory or the database; `None` when it is not valid.
    ///
    /// Tokens are never compared as texts. Here and in the database the SHA-256 of what was sent is looked up: how long that takes may tell
    /// something of the hash, which a guesser cannot steer towards one that is stored, and nothing of the token. A test holds the code to it:
    /// `a_token_is_known_by_its_hash_alone`.
    async fn look_up(&self, store: &Datastore, hash: &[u8; 32], scope: Scope) -> Result<Option<bool>, DbError> {
        // Whoever waits here has a place, so the queue is bounded.
        let _place = self.look_ups.acquire().await.map_err(|_| DbError::Overloaded)?;
        if let Some(allowed) = self.remembered(hash, scope) {
            return Ok(Some(allowed));
        }
        let mut tx = store.snapshot("token.get").await?;
        let scopes = tx.token_scopes(hash).await?;
        tx.rollback().await;
        let Some(scopes) = scopes else {
            self.entries.lock().unwrap_or_else(PoisonError::into_inner).remove(hash);
            return Ok(None);
        };
        let allowed = has(&scopes, scope);
        self.remember(*hash, scopes);
        Ok(Some(allowed))
    }
}

fn has(scopes: &[Scope], scope: Scope) -> bool {
    scopes.contains(&scope) || scopes.contains(&Scope::Admin)
}

/// What an endpoint asks of its caller.
pub(super) trait Need: Send + Sync + 'static {
    /// The scope; none for a public endpoint.
    const SCOPE: Option<Scope>;
}

/// Anyone may call.
pub(super) struct Public;

impl Need for Public {
    const SCOPE: Option<Scope> = None;
}

/// A token with scope `admin`.
pub(super) struct Admin;

impl Need for Admin {
    const SCOPE: Option<Scope> = Some(Scope::Admin);
}

/// A token with scope `relay`.
pub(super) struct Relay;

impl Need for Relay {
    const SCOPE: Option<Scope> = Some(Scope::Relay);
}

/// A token with scope `engine`.
pub(super) struct Engine;

impl Need for Engine {
    const SCOPE: Option<Scope> = Some(Scope::Engine);
}

/// A token with scope `dispute`.
pub(super) struct Dispute;

impl Need for Dispute {
    const SCOPE: Option<Scope> = Some(Scope::Dispute);
}

/// Proof that the caller may call, and one of the places for requests under way. The first argument of every handler, so that nothing
/// of the request is looked at before.
pub(super) struct Access<N> {
    app: App,
    place: OwnedSemaphorePermit,
    need: PhantomData<fn() -> N>,
}

impl<N: Need> FromRequestParts<App> for Access<N> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        if parts.extensions.get::<Stopping>().is_some_and(Stopping::begun) {
            return Err(Problem::unavailable("the service is stopping"));
        }
        let places = if N::SCOPE.is_some() { &app.inner.places } else { &app.inner.public_places };
        // Whatever wants a token and is no look-up changes something.
        let change = N::SCOPE.is_some() && !parts.method.is_safe();
        let take_place = || {
            if change && app.datastore().quarantine().is_some() {
                return Err(Problem::quarantined());
            }
            places.clone().try_acquire_owned().map_err(|_| Problem::overloaded())
        };
        let place = match N::SCOPE {
            None => take_place()?,
            Some(scope) => {
                let hash = bearer(parts).ok_or_else(Problem::unauthenticated)?.hash();
                let (allowed, place) = match app.inner.tokens.remembered(&hash, scope) {
                    Some(true) => (true, Some(take_place()?)),
                    Some(false) => (false, None),
                    None => {
                        // Made-up tokens must not take the places of those that are valid; and nobody who only sends a request slowly
                        // may take those of whoever sends a token.
                        let known = app.inner.tokens.was_valid(&hash);
                        let address = client_address(parts, &app.settings().trusted_proxies);
                        if let Some(after) =
                            address.filter(|_| !known).and_then(|address| app.inner.guesses.held_for(address))
                        {
                            return Err(Problem::too_many_unknown_tokens(after));
                        }
                        let places = if known { &app.inner.places } else { &app.inner.stranger_places };
                        let _looking = places.clone().try_acquire_owned().map_err(|_| Problem::overloaded())?;
                        let looking_up = app.inner.tokens.look_up(app.datastore(), &hash, scope);
                        // A database that says nothing must not keep the places of look-ups.
                        let found = tokio::time::timeout(app.settings().request_timeout, looking_up).await;
                        let found = found.map_err(|_| Problem::unavailable("the answer took too long"))??;
                        let Some(allowed) = found else {
                            if let Some(address) = address {
                                app.inner.guesses.failed(address);
                            }
                            return Err(Problem::unauthenticated());
                        };
                        (allowed, if allowed { Some(take_place()?) } else { None })
                    }
                };
                place.filter(|_| allowed).ok_or_else(|| Problem::forbidden(scope))?
            }
        };
        Ok(Self { app: app.clone(), place, need: PhantomData })
    }
}

/// The one bearer token of a request.
fn bearer(parts: &Parts) -> Option<ApiToken> {
    let mut headers = parts.headers.get_all(AUTHORIZATION).iter();
    let header = headers.next()?.to_str().ok()?;
    if headers.next().is_some() {
        return None;
    }
    let (scheme, token) = header.split_once(' ')?;
    ApiToken::parse(token.trim()).filter(|_| scheme.eq_ignore_ascii_case("bearer"))
}

impl<N> Access<N> {
    /// What the endpoints work on.
    pub(super) fn app(&self) -> &App {
        &self.app
    }

    /// Reads something, for as long as a request may take.
    ///
    /// # Errors
    /// The reader's, or `unavailable` when the time is over.
    pub(super) async fn read<T, E, F>(&self, work: impl FnOnce(App) -> F) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, E>>,
        E: Into<Problem>,
    {
        match tokio::time::timeout(self.app.settings().request_timeout, work(self.app.clone())).await {
            Ok(done) => done.map_err(Into::into),
            Err(_) => Err(Problem::unavailable("the answer took too long")),
        }
    }

    /// Makes a change in a task of its own, which runs to its end whether or not the caller waits: one that goes away leaves nothing
    /// half done, and what is under way keeps its place until it is over.
    ///
    /// # Errors
    /// The change's; `outcome_unknown` when it takes longer than a request may; `internal` when it panics.
    pub(super) async fn change<T, E, F>(self, work: impl FnOnce(App) -> F) -> Result<T, Problem>
    where
        F: Future<Output = Result<T, E>> + Send + 'static,
        T: Send + 'static,
        E: Into<Problem> + Send + 'static,
    {
        let Self { app, place, .. } = self;
        let work = work(app.clone());
        let task = async move {
            let done = work.await;
            drop(place);
            done
        };
        let task = app.inner.changes.spawn(task.instrument(tracing::Span::current()));
        match tokio::time::timeout(app.settings().request_timeout, task).await {
            Ok(Ok(done)) => done.map_err(Into::into),
            Ok(Err(_panicked)) => {
                tracing::error!("a change panicked");
                Err(Problem::internal())
            }
            Err(_) => Err(Problem::outcome_unknown()),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    fn token_of(headers: &[&str]) -> Option<ApiToken> {
        let mut request = Request::builder();
        for header in headers {
            request = request.header(AUTHORIZATION, *header);
        }
        bearer(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn a_token_survives_its_text_and_nothing_else_is_one() {
        let token = ApiToken::generate();
        let text = token.expose().to_owned();
        assert_eq!(ApiToken::parse(&text).map(|token| token.hash()), Some(token.hash()));
        assert_ne!(ApiToken::generate().hash(), token.hash());
        for bad in [
            "",
            "flt_",
            &text[1..],
            &format!("{text}x"),
            &text.replace("flt_", "flx_"),
            &format!("flt_{}", "!".repeat(43)),
        ] {
            assert!(ApiToken::parse(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn a_token_redacts_itself_i6() {
        assert_eq!(format!("{:?}", ApiToken::generate()), "ApiToken(redacted)");
    }

    #[test]
    fn token_ids_have_the_form_that_the_database_wants() {
        let id = new_token_id();
        assert!(id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()), "{id}");
        assert_ne!(id, new_token_id());
    }

    #[test]
    fn exactly_one_bearer_token_is_taken() {
        let token = ApiToken::generate();
        let text = token.expose();
        assert!(token_of(&[&format!("Bearer {text}")]).is_some());
        assert!(token_of(&[&format!("bearer  {text}")]).is_some());
        for bad in [
            vec![],
            vec![text.to_owned()],
            vec![format!("Basic {text}")],
            vec!["Bearer".to_owned()],
            vec![format!("Bearer {text} x")],
            vec![format!("Bearer {text}"), format!("Bearer {text}")],
        ] {
            let headers: Vec<&str> = bad.iter().map(String::as_str).collect();
            assert!(token_of(&headers).is_none(), "{headers:?}");
        }
    }

    #[test]
    fn admin_includes_every_scope() {
        assert!(has(&[Scope::Admin], Scope::Engine));
        assert!(has(&[Scope::Relay, Scope::Engine], Scope::Engine));
        assert!(!has(&[Scope::Relay, Scope::Dispute], Scope::Engine));
    }

    #[test]
    fn the_cache_forgets_and_is_bounded() {
        let hash = |n: usize| Sha256::digest(n.to_be_bytes()).into();
        let short = TokenCache::new(Duration::ZERO);
        short.remember(hash(0), vec![Scope::Engine]);
        assert_eq!(short.remembered(&hash(0), Scope::Engine), None);
        let long = TokenCache::new(Duration::from_secs(60));
        for n in 0..CACHE_MAX + 10 {
            long.remember(hash(n), vec![Scope::Engine]);
        }
        assert_eq!(long.entries.lock().unwrap().len(), CACHE_MAX);
        assert_eq!(long.remembered(&hash(0), Scope::Engine), Some(true));
        assert_eq!(long.remembered(&hash(0), Scope::Relay), Some(false));
    }
}
