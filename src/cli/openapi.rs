//! `openapi`: prints the description of the HTTP API, the same as `/openapi.json`.

use std::process::ExitCode;

use crate::http;

use super::CliError;

pub(super) fn run() -> Result<ExitCode, CliError> {
    let text = serde_json::to_string_pretty(&http::openapi()).map_err(|error| CliError::Refused(error.to_string()))?;
    show!("{text}");
    Ok(ExitCode::SUCCESS)
}
