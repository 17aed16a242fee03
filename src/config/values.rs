//! Small values of settings: their text forms and bounds.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;

/// The shortest and the longest that a setting allows.
pub(super) struct DurationBounds {
    pub min: Duration,
    pub max: Duration,
}

impl DurationBounds {
    pub(super) fn read(&self, text: &str) -> Result<Duration, String> {
        let duration = parse_duration(text)?;
        if (self.min..=self.max).contains(&duration) {
            Ok(duration)
        } else {
            Err(format!("must be {} to {}", duration_text(self.min), duration_text(self.max)))
        }
    }
}

/// The units, the longest first, in milliseconds.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a whole number with a unit: `250ms`, `10s`, `5m`, `24h`, `90d`.
///
/// # Errors
/// Another form, or a number beyond all calendars.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || "must be a whole number with a unit: ms, s, m, h or d, such as 10s or 90d".to_owned();
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let (_, milliseconds) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(*milliseconds).map(Duration::from_millis).ok_or_else(wrong)
}

/// The same form back: the longest unit that loses nothing.
pub fn duration_text(duration: Duration) -> String {
    let milliseconds = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    UNITS
        .iter()
        .find(|(_, unit)| milliseconds.is_multiple_of(*unit))
        .map_or_else(String::new, |(name, unit)| format!("{}{name}", milliseconds / unit))
}

pub(super) fn integer(text: &str, min: u32, max: u32) -> Result<u32, String> {
    let wrong = || format!("must be a whole number from {min} to {max}");
    text.parse().ok().filter(|number| (min..=max).contains(number)).ok_or_else(wrong)
}

pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

/// PostgreSQL cuts longer names off, and two names could then be one role.
pub(super) fn role_name(text: &str) -> Result<String, String> {
    const BYTES_MAX: usize = 63;
    if text.len() <= BYTES_MAX && !text.is_empty() && !text.contains(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err(format!("must be the name of a role, at most {BYTES_MAX} bytes"))
    }
}

/// The name of an instance.
pub(super) fn instance_name(text: &str) -> Result<String, String> {
    if crate::db::fence::is_instance_name(text) {
        Ok(text.to_owned())
    } else {
        Err("must be 1 to 64 characters of A-Z, a-z, 0-9, '.', '_' and '-'".to_owned())
    }
}

/// Addresses and networks, separated by commas.
pub(super) fn networks(text: &str) -> Result<Vec<IpNet>, String> {
    let network = |text: &str| text.parse().or_else(|_| text.parse::<IpAddr>().map(IpNet::from));
    let networks: Result<_, _> = text.split(',').map(|text| network(text.trim())).collect();
    networks.map_err(|_| "must be addresses or networks separated by commas, such as 10.0.0.0/8, ::1".to_owned())
}

/// The base URL of a collector, without the slash at its end.
pub(super) fn collector(text: &str) -> Result<String, String> {
    let place = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    // What stands before an @ may be a password, and would be shown.
    let fits = place.is_some_and(|place| {
        !place.is_empty() && !place.contains(|c: char| c.is_whitespace() || c.is_control() || "@?#".contains(c))
    });
    if fits {
        Ok(text.trim_end_matches('/').to_owned())
    } else {
        Err("must be a URL such as http://localhost:4318; what the collector asks for goes into OTEL_EXPORTER_OTLP_HEADERS".to_owned())
    }
}
