//! Where settings come from, and which place wins.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::definitions::{CONFIG_ENV, DEFINITIONS, Definition};
use super::{SettingError, read_secret_file};

/// The texts of settings as they were given, by place. Made once at the start.
#[derive(Default)]
pub struct Sources {
    /// By the name of the flag without its dashes.
    flags: BTreeMap<String, Zeroizing<String>>,
    /// By the name of the variable. An empty variable counts as not set.
    env: BTreeMap<String, Zeroizing<String>>,
    file: BTreeMap<String, Zeroizing<String>>,
    file_path: Option<PathBuf>,
}

/// A setting's text, where it came from and whether it may be shown.
pub(super) struct Found {
    pub origin: String,
    pub text: Zeroizing<String>,
    pub secret: bool,
}

impl Sources {
    /// Puts the places together and reads the TOML file, which `config` names, or else the variable `FAIRLEDGER_CONFIG`.
    ///
    /// # Errors
    /// A variable that is not text; a file that cannot be read, is not TOML or has a key that is no setting.
    pub fn new(
        flags: BTreeMap<String, String>,
        config: Option<PathBuf>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, SettingError> {
        let mut sources = Self {
            flags: flags.into_iter().map(|(name, text)| (name, Zeroizing::new(text))).collect(),
            ..Self::default()
        };
        for (name, text) in env {
            let Some(name) = name.to_str().filter(|name| is_ours(name)) else { continue };
            let text = text.into_string().map_err(|_| SettingError {
                name: name.to_owned(),
                origin: format!("variable {name}"),
                reason: "is not UTF-8".to_owned(),
            })?;
            if !text.is_empty() {
                sources.env.insert(name.to_owned(), Zeroizing::new(text));
            }
        }
        let path = config.or_else(|| sources.env.get(CONFIG_ENV).map(|path| PathBuf::from(path.as_str())));
        if let Some(path) = path {
            sources.file = read_toml(&path)?;
            sources.file_path = Some(path);
        }
        Ok(sources)
    }

    /// Variables named `FAIRLEDGER_...` that no setting has: worth a warning, and no more, since some platforms set such variables by
    /// themselves for a service of that name.
    pub fn unknown_variables(&self) -> impl Iterator<Item = &str> {
        let known = |name: &str| {
            name == CONFIG_ENV
                || DEFINITIONS.iter().any(|definition| {
                    name == definition.env
                        || definition.has_file() && name.strip_suffix("_FILE") == Some(definition.env)
                })
        };
        self.env.keys().map(String::as_str).filter(move |name| !known(name))
    }

    /// Finds a setting in the first place that has it, its default last.
    pub(super) fn find(&self, name: &str) -> Result<Option<Found>, SettingError> {
        let Some(definition) = DEFINITIONS.iter().find(|definition| definition.name == name) else {
            return Err(SettingError {
                name: name.to_owned(),
                origin: "program".to_owned(),
                reason: "is not among the definitions of settings".to_owned(),
            });
        };
        let file_name = format!("{name}-file");
        let file_path = self.file_path.as_deref().unwrap_or(Path::new(""));
        let places = [
            (&self.flags, name.to_owned(), file_name.clone(), "flag --"),
            (&self.env, definition.env.to_owned(), format!("{}_FILE", definition.env), "variable "),
            (&self.file, name.to_owned(), file_name, "key "),
        ];
        for (number, (texts, key, file_key, what)) in places.into_iter().enumerate() {
            let place = if number == 2 { format!(" of {}", file_path.display()) } else { String::new() };
            let found = look(definition, texts, &key, &file_key, |key| format!("{what}{key}{place}"))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(definition.default.map(|default| Found {
            origin: "default".to_owned(),
            text: Zeroizing::new(default.to_owned()),
            secret: false,
        }))
    }
}

/// Looks in one place, for the text itself and for a file that holds it.
fn look(
    definition: &Definition,
    texts: &BTreeMap<String, Zeroizing<String>>,
    key: &str,
    file_key: &str,
    origin: impl Fn(&str) -> String,
) -> Result<Option<Found>, SettingError> {
    let file = texts.get(file_key).filter(|_| definition.has_file());
    let secret = definition.is_secret();
    let error =
        |key: &str, reason: String| SettingError { name: definition.name.to_owned(), origin: origin(key), reason };
    match (texts.get(key), file) {
        (Some(_), Some(_)) => Err(error(key, format!("is set twice: {file_key} is set too"))),
        (Some(text), None) => Ok(Some(Found { origin: origin(key), text: text.clone(), secret })),
        (None, Some(path)) => {
            let text = read_secret_file(Path::new(path.as_str())).map_err(|reason| error(file_key, reason))?;
            Ok(Some(Found { origin: origin(file_key), text, secret }))
        }
        (None, None) => Ok(None),
    }
}

fn is_ours(name: &str) -> bool {
    name.starts_with("FAIRLEDGER_")
        || DEFINITIONS
            .iter()
            .any(|definition| definition.env == name || name.strip_suffix("_FILE") == Some(definition.env))
}

/// Reads the file. Its lines may hold secrets, so no error repeats any of them.
fn read_toml(path: &Path) -> Result<BTreeMap<String, Zeroizing<String>>, SettingError> {
    let origin = format!("file {}", path.display());
    let error = |name: &str, reason: String| SettingError { name: name.to_owned(), origin: origin.clone(), reason };
    let text = Zeroizing::new(
        std::fs::read_to_string(path).map_err(|fault| error("config", format!("cannot be read: {fault}")))?,
    );
    let table: toml::Table = toml::from_str(&text).map_err(|fault| {
        let before = fault.span().and_then(|span| text.get(..span.start)).unwrap_or("");
        // The message of a syntax error speaks of TOML, but that of a key given twice names the key, which is no secret.
        error("config", format!("line {}: {}", before.matches('\n').count() + 1, fault.message()))
    })?;
    let mut texts = BTreeMap::new();
    for (key, value) in table {
        let known = DEFINITIONS.iter().any(|definition| {
            key == definition.name || definition.has_file() && key.strip_suffix("-file") == Some(definition.name)
        });
        if !known {
            return Err(error(&key, "is not a setting; `fairledger --help` lists them".to_owned()));
        }
        let text = match value {
            toml::Value::String(text) => text,
            toml::Value::Integer(number) => number.to_string(),
            toml::Value::Boolean(value) => value.to_string(),
            _ => return Err(error(&key, "must be a text, a whole number, true or false".to_owned())),
        };
        texts.insert(key, Zeroizing::new(text));
    }
    Ok(texts)
}
