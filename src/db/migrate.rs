//! Placeholder of the branch `embed` for the migrator, so that the test harness compiles; replaced when the branches meet.

use super::rights::Roles;

/// What a migration did.
#[derive(Debug)]
pub struct Report;

/// Why migrating failed.
#[derive(Debug, thiserror::Error)]
#[error("migrating failed")]
pub struct MigrateError;

/// Applies nothing.
///
/// # Errors
/// None.
pub async fn run(_url: &str, _roles: &Roles) -> Result<Report, MigrateError> {
    Ok(Report)
}
