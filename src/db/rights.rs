//! Placeholder of the branch `embed`, replaced when the branches meet.

/// The names of the roles that migrations grant rights to.
#[derive(Debug, Clone)]
pub struct Roles {
    /// What `serve` works as.
    pub service: String,
    /// What a dispute team's queries work as.
    pub read: String,
}

impl Default for Roles {
    fn default() -> Self {
        Self { service: "fairledger_service".into(), read: "fairledger_read".into() }
    }
}
