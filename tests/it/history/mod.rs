//! Looking through the whole history, on a real PostgreSQL.

mod arriving;
mod bundle;
mod bundle_states;
mod coverage;
mod export;
mod past;
pub mod plans;
mod queries;
mod replica;
mod secrecy;
mod tampering;
mod world;

use fairledger::history::model::RecordPage;
use fairledger::history::{Filters, History, HistoryError, PageRequest};
use serde_json::Value;

fn request(filters: &Filters, after: Option<String>, limit: u32) -> PageRequest {
    PageRequest { filters: filters.clone(), after, limit }
}

async fn page(history: &History, filters: &Filters, after: Option<String>, limit: u32) -> RecordPage {
    history.page(request(filters, after, limit)).await.unwrap()
}

/// Every bet that fits, page by page, as JSON. All pages have the same `asOf`.
async fn all(history: &History, filters: &Filters, limit: u32) -> Vec<Value> {
    let first = page(history, filters, None, limit).await;
    let as_of = first.as_of;
    let (mut found, mut after) = (texts(&first), first.next_after);
    while let Some(token) = after {
        let page = page(history, filters, Some(token), limit).await;
        assert!(page.records.len() <= limit as usize);
        assert_eq!(page.as_of, as_of);
        found.extend(texts(&page));
        after = page.next_after;
    }
    found
}

fn texts(page: &RecordPage) -> Vec<Value> {
    page.records.iter().map(|bet| serde_json::to_value(bet).unwrap()).collect()
}

#[track_caller]
fn refused_for(result: Result<RecordPage, HistoryError>, name: &str) {
    match result {
        Err(HistoryError::Invalid { field, .. }) => assert_eq!(field, name),
        other => panic!("expected {name} to be refused, got {other:?}"),
    }
}
