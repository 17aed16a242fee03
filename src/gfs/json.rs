//! Strict reading and canonical writing of JSON (GFS/1.0 section 6.2; RFC 8785; RFC 7493 for what is refused).
//!
//! Keeps I12: [`parse`] is bounded in size and depth. What two readers could read differently is refused here, so that
//! a hash or a signature never covers something that another program sees otherwise: duplicate keys, lone surrogates,
//! numbers beyond binary64. NUL is refused because PostgreSQL's `text` and `jsonb` cannot hold it.
//!
//! Every number is a binary64 as soon as it is read, and then written in one way only: integral within 2^53 as a JSON
//! integer, anything else as a float. So `3.0` is `3`, `-0` is `0`, and 9007199254740993 is 9007199254740992.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;

use bigdecimal::BigDecimal;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use serde_json::{Map, Number, Value};

/// How much JSON is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The longest text, in bytes.
    pub bytes: usize,
    /// The deepest value: the root is at depth 0, and a scalar in a container counts as a level. Above 126 the reader's
    /// own recursion limit comes first.
    pub depth: usize,
}

impl Limits {
    /// An untrusted record (GFS/1.0 section 7): 65,536 bytes, depth 12.
    pub const RECORD: Self = Self { bytes: 65_536, depth: 12 };
}

/// Why a text is not taken, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{detail}", prefix(field))]
pub struct JsonError {
    /// The member at fault, such as `params.rows` or `result[2]`; empty at the root. Shortened when very long.
    pub field: String,
    /// What is wrong. Never repeats a value.
    pub detail: String,
}

/// `field: `, or nothing at the root.
pub(super) fn prefix(field: &str) -> String {
    if field.is_empty() { String::new() } else { format!("{field}: ") }
}

/// The longest field name in an error, in characters: keys come from the caller and end up in answers and logs.
const FIELD_CHARS_MAX: usize = 200;

/// Reads one JSON text.
///
/// # Errors
/// [`JsonError`] for a text past `limits`, not well-formed JSON in UTF-8, with anything after the value, or with a
/// duplicate key at any depth, a lone surrogate, a NUL in a string or key, or a number that binary64 cannot hold.
pub fn parse(text: &[u8], limits: Limits) -> Result<Value, JsonError> {
    if text.len() > limits.bytes {
        let detail = format!("is {} bytes long, more than {}", text.len(), limits.bytes);
        return Err(JsonError { field: String::new(), detail });
    }
    let mut path = Path::default();
    let mut reader = serde_json::Deserializer::from_slice(text);
    let value = Node { path: &mut path, depth: 0, depth_max: limits.depth }
        .deserialize(&mut reader)
        .and_then(|value| reader.end().map(|()| value));
    value.map_err(|error| JsonError { field: path.shortened(), detail: error.to_string() })
}

/// The member, if any, of a text that [`parse`] takes, that is an integer which would be written as another one: binary64 does not hold it.
/// Decimal fractions are not looked at: those that programs write are read as the same binary64 that was written.
#[must_use]
pub fn inexact_integer(text: &[u8]) -> Option<String> {
    let mut digits = 0;
    let is_long = |byte: &u8| {
        digits = match byte {
            b'0'..=b'9' => digits + 1,
            b'.' => digits,
            _ => 0,
        };
        digits > EXACT_DIGITS
    };
    if !text.iter().any(is_long) {
        return None;
    }
    let mut path = Path::default();
    let value: &RawValue = serde_json::from_slice(text).ok()?;
    leads_to_inexact(value, &mut path).then(|| path.shortened())
}

/// Integers of so many digits are exact whatever they are.
const EXACT_DIGITS: usize = 15;

/// A longer number is not looked at, and counts as one that is changed: no program writes so many digits of a binary64.
const NUMBER_BYTES_MAX: usize = 1_100;

/// No binary64 but 0 and infinity has an exponent of more.
const EXPONENT_MAX: i32 = 400;

/// Leaves the path where it found one.
fn leads_to_inexact(value: &RawValue, path: &mut Path) -> bool {
    let text = value.get();
    match text.as_bytes().first() {
        Some(b'{') => {
            let members: BTreeMap<String, &RawValue> = serde_json::from_str(text).unwrap_or_default();
            members.into_iter().any(|(key, member)| {
                let parent = path.enter_key(&key);
                let found = leads_to_inexact(member, path);
                if !found {
                    path.leave(parent);
                }
                found
            })
        }
        Some(b'[') => {
            let items: Vec<&RawValue> = serde_json::from_str(text).unwrap_or_default();
            items.into_iter().enumerate().any(|(index, item)| {
                let parent = path.enter_index(index);
                let found = leads_to_inexact(item, path);
                if !found {
                    path.leave(parent);
                }
                found
            })
        }
        Some(b'-' | b'0'..=b'9') => !is_exact(text),
        _ => false,
    }
}

/// Whether a number is no integer, or one that is written as it was read.
fn is_exact(number: &str) -> bool {
    if number.len() <= EXACT_DIGITS || number.len() > NUMBER_BYTES_MAX {
        return number.len() <= EXACT_DIGITS;
    }
    // What a caller makes up must not become a number of a billion digits.
    if let Some((_, exponent)) = number.split_once(['e', 'E'])
        && !exponent.parse::<i32>().is_ok_and(|exponent| exponent.abs() <= EXPONENT_MAX)
    {
        return exponent.starts_with('-');
    }
    let (Ok(read), Ok(binary64)) = (number.parse::<BigDecimal>(), number.parse::<f64>()) else { return false };
    // In the digits that are written: the shortest that are read as the same binary64.
    !read.is_integer() || binary64.to_string().parse() == Ok(read)
}

/// The number as JSON has it: integral within 2^53 as an integer, otherwise a float; `null` if it is not finite.
#[must_use]
pub fn number(n: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if n.fract() == 0.0 && n.abs() <= EXACT {
        // Exact, by the bound; and -0 becomes 0.
        Value::from(n as i64)
    } else {
        Value::from(n)
    }
}

/// Whether a text is the finite number as canonical JSON has it.
#[must_use]
pub fn number_is(n: f64, text: &[u8]) -> bool {
    match plain_decimal(text) {
        Some(read) => read == n,
        None => n.is_finite() && ryu_js::Buffer::new().format(n).as_bytes() == text,
    }
}

/// The binary64 that a text is the canonical form of, where that can be told by its looks: no sign and no exponent, no digit too many, at
/// most [`EXACT_DIGITS`] of them. Two such decimals are never read as the same binary64, so none is a shorter form of another; and the
/// quotient of two numbers that binary64 holds is the nearest to the decimal. Most results are of this form, and writing a number takes five
/// times as long.
fn plain_decimal(text: &[u8]) -> Option<f64> {
    const POWERS: [f64; 7] = [1.0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6];
    let (mut digits, mut read, mut point) = (0, 0_u64, None);
    for byte in text {
        match byte {
            b'0'..=b'9' if digits < EXACT_DIGITS => {
                read = read * 10 + u64::from(byte - b'0');
                digits += 1;
            }
            b'.' if point.is_none() => point = Some(digits),
            _ => return None,
        }
    }
    let whole = point.unwrap_or(digits);
    let fraction = digits - whole;
    let superfluous = (whole > 1 && text[0] == b'0') || (point.is_some() && (fraction == 0 || text.ends_with(b"0")));
    if whole == 0 || superfluous {
        return None;
    }
    Some(read as f64 / POWERS.get(fraction)?)
}

/// The value with every number as [`parse`] would have left it, for a value that another reader made (a `jsonb` column,
/// `serde_json` itself).
#[must_use]
pub fn normalised(value: &Value) -> Value {
    match value {
        Value::Number(n) => number(binary64(n)),
        Value::Array(items) => items.iter().map(normalised).collect(),
        Value::Object(map) => map.iter().map(|(key, value)| (key.clone(), normalised(value))).collect(),
        other => other.clone(),
    }
}

/// Whether a scalar or empty container lies deeper than `depth_max` levels below this value. Looks no further than that.
pub(super) fn is_deeper(value: &Value, depth_max: usize) -> bool {
    let Some(below) = depth_max.checked_sub(1) else {
        return match value {
            Value::Array(items) => !items.is_empty(),
            Value::Object(map) => !map.is_empty(),
            _ => false,
        };
    };
    match value {
        Value::Array(items) => items.iter().any(|item| is_deeper(item, below)),
        Value::Object(map) => map.values().any(|item| is_deeper(item, below)),
        _ => false,
    }
}

/// The number as binary64.
pub(super) fn binary64(n: &Number) -> f64 {
    // Always there: without `arbitrary_precision` a number is an i64, a u64 or an f64.
    n.as_f64().unwrap_or(f64::NAN)
}

/// The canonical text: no white space, keys sorted by UTF-16 code units, strings and numbers as `JSON.stringify` has
/// them. Recurses as deep as the value.
#[must_use]
pub fn canonical(value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, value);
    out
}

/// [`canonical`] of an object.
#[must_use]
pub fn canonical_map(map: &Map<String, Value>) -> String {
    let mut out = String::new();
    write_map(&mut out, map);
    out
}

fn write_value(out: &mut String, value: &Value) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(true) => out.push_str("true"),
        Value::Bool(false) => out.push_str("false"),
        // A `Value` holds no infinity and no NaN, and this writer prints -0 as 0.
        Value::Number(n) => out.push_str(ryu_js::Buffer::new().format(binary64(n))),
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_value(out, item);
            }
            out.push(']');
        }
        Value::Object(map) => write_map(out, map),
    }
}

fn write_map(out: &mut String, map: &Map<String, Value>) {
    let mut members: Vec<_> = map.iter().collect();
    members.sort_unstable_by(|(a, _), (b, _)| utf16_order(a, b));
    out.push('{');
    for (i, (key, value)) in members.into_iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        write_string(out, key);
        out.push(':');
        write_value(out, value);
    }
    out.push('}');
}

/// The order of JavaScript's `<`: an emoji (a surrogate pair, from U+D800) comes before U+E000 to U+FFFF, which bytes
/// and code points would have the other way round.
fn utf16_order(a: &str, b: &str) -> Ordering {
    a.encode_utf16().cmp(b.encode_utf16())
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\t' => out.push_str("\\t"),
            '\n' => out.push_str("\\n"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '\0'..='\u{1f}' => out.push_str(&format!("\\u{:04x}", u32::from(c))),
            _ => out.push(c),
        }
    }
    out.push('"');
}

/// Where the reader is. Grows on the way in and shrinks only on success, so after an error it names the place.
#[derive(Default)]
struct Path(String);

impl Path {
    /// Enters a member, and gives the length to come back to.
    fn enter_key(&mut self, key: &str) -> usize {
        let parent = self.0.len();
        if parent > 0 {
            self.0.push('.');
        }
        self.0.push_str(key);
        parent
    }

    fn enter_index(&mut self, index: usize) -> usize {
        let parent = self.0.len();
        self.0.push_str(&format!("[{index}]"));
        parent
    }

    fn leave(&mut self, parent: usize) {
        self.0.truncate(parent);
    }

    fn shortened(&self) -> String {
        self.0.chars().take(FIELD_CHARS_MAX).collect()
    }
}

/// Reads one value at one depth.
struct Node<'p> {
    path: &'p mut Path,
    depth: usize,
    depth_max: usize,
}

impl Node<'_> {
    fn below(&mut self) -> Node<'_> {
        Node { path: self.path, depth: self.depth + 1, depth_max: self.depth_max }
    }
}

/// What the keys begin with by which `serde_json` tells values of its own from objects.
const SERDE_JSON_PRIVATE: &str = "$serde_json::private::";

fn without_nul<E: serde::de::Error>(text: String) -> Result<String, E> {
    if text.contains('\0') { Err(E::custom("a NUL character is not taken")) } else { Ok(text) }
}

impl<'de> DeserializeSeed<'de> for Node<'_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        if self.depth > self.depth_max {
            return Err(D::Error::custom(format!("is nested deeper than {} levels", self.depth_max)));
        }
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Value, E> {
        Ok(Value::Bool(b))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Value, E> {
        Ok(number(n as f64))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Value, E> {
        Ok(number(n as f64))
    }

    fn visit_f64<E>(self, n: f64) -> Result<Value, E> {
        Ok(number(n))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Value, E> {
        without_nul(text.to_owned()).map(Value::String)
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut seq: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        loop {
            let parent = self.path.enter_index(items.len());
            let item = seq.next_element_seed(self.below())?;
            self.path.leave(parent);
            match item {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let key = without_nul(key)?;
            // Not data to whoever reads the value with serde_json again: its text would come in unchecked.
            if key.starts_with(SERDE_JSON_PRIVATE) {
                return Err(A::Error::custom("a key of serde_json's own is not taken"));
            }
            let parent = self.path.enter_key(&key);
            if map.contains_key(&key) {
                return Err(A::Error::custom("the key stands twice in its object"));
            }
            let value = access.next_value_seed(self.below())?;
            self.path.leave(parent);
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Result<Value, JsonError> {
        parse(text.as_bytes(), Limits::RECORD)
    }

    #[track_caller]
    fn refused(text: &[u8], field: &str, why: &str) {
        let error = parse(text, Limits::RECORD).expect_err("must be refused");
        assert_eq!(error.field, field, "{error}");
        assert!(error.detail.contains(why), "{error}");
    }

    #[test]
    fn ordinary_json_is_read() {
        let value = read(r#" {"a":[1,2.5,"x",null,true,{}],"b":{"c":-7}} "#).unwrap();
        assert_eq!(value, json!({"a": [1, 2.5, "x", null, true, {}], "b": {"c": -7}}));
    }

    #[test]
    fn integers_that_binary64_would_change_are_found() {
        for exact in [
            "9007199254740992",
            "-9007199254740994",
            "100000000000000000000000",
            "[0.1,1e300,-0,9007199254740993.5,0.10000000000000001,123456789012345.0000000,1.7976931348623157e308,1234567890123456789e-999999999]",
            r#"{"9007199254740993":"9007199254740993 \" 9007199254740993","b":"\\"}"#,
        ] {
            assert_eq!(inexact_integer(exact.as_bytes()), None, "{exact}");
        }
        for (text, place) in [
            ("9007199254740993", ""),
            (r#"{"z":1,"a":{"b":["x\"", -9007199254740993]}}"#, "a.b[1]"),
            ("[1,123456789012345678901]", "[1]"),
            ("[18446744073709551616]", "[0]"),
            ("[9007199254740993.0]", "[0]"),
            ("[9007199254740993e0]", "[0]"),
            ("[0.9007199254740993e16]", "[0]"),
            ("[0.00000000000000001e999999999]", "[0]"),
            ("[900719925474099.3e1]", "[0]"),
            ("[9007199254.740993e6]", "[0]"),
            (&format!("[0.{}]", "1".repeat(1_100)), "[0]"),
            ("[100000000000000000000001]", "[0]"),
        ] {
            assert_eq!(inexact_integer(text.as_bytes()).as_deref(), Some(place), "{text}");
        }
    }

    #[test]
    fn duplicate_keys_are_refused_at_any_depth() {
        refused(br#"{"a":1,"a":2}"#, "a", "twice");
        refused(br#"{"a":[0,{"b":{"c":1,"\u0063":1}}]}"#, "a[1].b.c", "twice");
        assert!(read(r#"{"a":{"a":1},"A":1}"#).is_ok());
    }

    #[test]
    fn a_number_is_its_canonical_text_and_no_other() {
        let written = |n: f64| ryu_js::Buffer::new().format(n).to_owned();
        let numbers = (0..=10_000_u32).map(|roll| f64::from(roll) / 100.0);
        let odd =
            [0.000_001, 0.1 + 0.2, 1e21, 1e-7, 123_456_789.123_456, 999_999_999_999_999.0, 0.123_456_7, -1.5, 1e15];
        for n in numbers.chain(odd) {
            let text = written(n);
            assert!(number_is(n, text.as_bytes()), "{text}");
            for other in [
                format!("0{text}"),
                format!("{text}0"),
                format!("{text}.0"),
                format!("{text}."),
                text.replace("0.", "."),
            ] {
                assert_eq!(number_is(n, other.as_bytes()), other == text, "{other}");
            }
            assert!(!number_is(f64::from_bits(n.to_bits() + 1), text.as_bytes()), "{text}");
        }
        assert!(number_is(-0.0, b"0"));
        for n in [f64::NAN, f64::INFINITY] {
            assert!(!number_is(n, b"0") && !number_is(n, written(n).as_bytes()));
        }
    }

    /// Whoever reads a value that was checked here with serde_json once more takes such an object for its own.
    #[test]
    fn keys_of_serde_json_are_refused() {
        for name in ["RawValue", "Number", "more"] {
            let text = format!(r#"{{"a":[{{"$serde_json::private::{name}":"\"\\u0000\""}}]}}"#);
            refused(text.as_bytes(), "a[0]", "serde_json");
        }
        refused(br#"{"\u0024serde_json::private::RawValue":"1"}"#, "", "serde_json");
    }

    #[test]
    fn lone_surrogates_are_refused() {
        refused(br#"{"a":"\ud800"}"#, "a", "hex escape");
        refused(br#"{"a":"\ud800x"}"#, "a", "hex escape");
        refused(br#"{"a":["x","\udc00"]}"#, "a[1]", "surrogate");
        refused(br#"{"a":{"\udead":1}}"#, "a", "surrogate");
        refused(b"{\"a\":\"\xed\xa0\x80\"}", "a", "unicode");
        assert_eq!(read(r#""\ud83d\ude00""#).unwrap(), json!("😀"));
    }

    #[test]
    fn nul_is_refused() {
        refused(br#"{"a":"x\u0000"}"#, "a", "NUL");
        refused(br#"{"a":{"\u0000":1}}"#, "a", "NUL");
        refused(b"{\"a\":\"\0\"}", "a", "control character");
        refused(b"{}\0", "", "trailing");
    }

    #[test]
    fn numbers_beyond_binary64_are_refused() {
        refused(br#"{"a":{"b":1e400}}"#, "a.b", "out of range");
        refused(br#"[-1e309]"#, "[0]", "out of range");
        let digits = "9".repeat(400);
        refused(digits.as_bytes(), "", "out of range");
        assert_eq!(read("1.7976931348623157e308").unwrap(), json!(f64::MAX));
        assert_eq!(read("1e-400").unwrap(), json!(0));
        assert_eq!(read("5e-324").unwrap(), json!(5e-324));
    }

    #[test]
    fn text_that_is_not_json_is_refused() {
        for text in [
            "",
            " ",
            "{",
            "[1,]",
            "{\"a\":1,}",
            "{a:1}",
            "'a'",
            "01",
            "+1",
            ".5",
            "1.",
            "NaN",
            "Infinity",
            "nul",
            "1 2",
            "{} {}",
            "// x\n1",
            "\u{feff}1",
        ] {
            assert!(read(text).is_err(), "{text}");
        }
        refused(b"{\"a\":1} x", "", "trailing");
        refused(br#"{"params":{"rows":}}"#, "params.rows", "expected value");
        refused(b"\"\xff\"", "", "unicode");
        refused(b"\xff", "", "expected value");
    }

    #[test]
    fn depth_counts_scalars_and_starts_at_zero() {
        let nested = |levels: usize, inner: &str| format!("{}{inner}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(read(&nested(12, "0")).is_ok());
        assert!(read(&nested(13, "")).is_ok()); // The innermost array is at depth 12.
        assert!(read(&nested(13, "0")).unwrap_err().detail.contains("deeper than 12"));
        assert!(read(&nested(14, "")).is_err());
        assert!(read(&"[".repeat(60_000)).is_err());
        assert!(read(&"{\"a\":".repeat(10_000)).is_err());
        let shallow = Limits { bytes: 100, depth: 0 };
        assert_eq!(parse(b"1", shallow), Ok(json!(1)));
        assert_eq!(parse(b"{}", shallow), Ok(json!({})));
        assert_eq!(parse(b"[1]", shallow).unwrap_err().field, "[0]");
    }

    #[test]
    fn depth_of_a_value_agrees_with_depth_of_its_text() {
        for levels in 0..16 {
            for inner in ["", "0", "{\"a\":1}"] {
                if levels == 0 && inner.is_empty() {
                    continue;
                }
                let text = format!("{}{inner}{}", "[".repeat(levels), "]".repeat(levels));
                let value: Value = serde_json::from_str(&text).unwrap();
                assert_eq!(is_deeper(&value, 12), read(&text).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn size_is_bounded_to_the_byte() {
        let fits = format!("\"{}\"", "a".repeat(65_534));
        assert!(read(&fits).is_ok());
        refused(format!("{fits} ").as_bytes(), "", "65537 bytes");
    }

    #[test]
    fn field_in_an_error_is_shortened() {
        let text = format!("{{\"{}\":x}}", "é".repeat(5_000));
        assert_eq!(read(&text).unwrap_err().field.chars().count(), FIELD_CHARS_MAX);
    }

    #[test]
    fn numbers_are_normalised() {
        for (text, expected) in [
            ("3.0", "3"),
            ("-0", "0"),
            ("-0.0", "0"),
            ("1e2", "100"),
            ("9007199254740993", "9007199254740992"),
            ("-9007199254740993", "-9007199254740992"),
            ("9007199254740994", "9007199254740994"),
            ("18446744073709551615", "18446744073709552000"),
            ("1e21", "1e+21"),
            ("123456789012345678901234567890", "1.2345678901234568e+29"),
            ("1e-7", "1e-7"),
            ("0.000001", "0.000001"),
            ("5e-324", "5e-324"),
            ("1.7976931348623157e308", "1.7976931348623157e+308"),
            ("100000000000000000000", "100000000000000000000"),
            // Rounds wrongly in the last place without `float_roundtrip`.
            ("51.24817837550540", "51.2481783755054"),
            ("2.638344616030823e-256", "2.638344616030823e-256"),
        ] {
            assert_eq!(canonical(&read(text).unwrap()), expected, "{text}");
        }
        assert!(read("3.0").unwrap().is_i64());
        assert!(read("-0").unwrap().is_i64());
        assert!(read("9007199254740993").unwrap().is_i64());
        assert!(read("9007199254740994").unwrap().is_f64());
        assert_eq!(number(f64::NAN), Value::Null);
    }

    #[test]
    fn normalised_is_what_parse_gives() {
        let text = r#"{"a":[3.0,-0.0,9007199254740993,1e300,{"b":18446744073709551615}],"c":"3.0"}"#;
        assert_eq!(normalised(&serde_json::from_str(text).unwrap()), read(text).unwrap());
    }

    #[test]
    fn keys_are_sorted_by_utf16_code_units() {
        // The example of RFC 8785 section 3.2.3: a surrogate pair sorts before U+FB33.
        let value = json!({"\u{20ac}": 1, "\r": 2, "\u{fb33}": 3, "1": 4, "\u{1f600}": 5, "\u{80}": 6, "\u{f6}": 7});
        assert_eq!(
            canonical(&value),
            "{\"\\r\":2,\"1\":4,\"\u{80}\":6,\"\u{f6}\":7,\"\u{20ac}\":1,\"\u{1f600}\":5,\"\u{fb33}\":3}"
        );
        assert_eq!(canonical(&json!({"ab": 1, "a": 2, "": 3})), r#"{"":3,"a":2,"ab":1}"#);
    }

    #[test]
    fn strings_are_escaped_as_javascript_does() {
        let text = "\u{0}\u{1}\u{8}\t\n\u{b}\u{c}\r\u{1f} \"\\/\u{7f}\u{2028}\u{2029}é😀";
        let expected = "\"\\u0000\\u0001\\b\\t\\n\\u000b\\f\\r\\u001f \\\"\\\\/\u{7f}\u{2028}\u{2029}é😀\"";
        assert_eq!(canonical(&json!(text)), expected);
    }

    #[test]
    fn canonical_of_containers_has_no_white_space() {
        let value = json!({"b": [1, [], {}, null, false], "a": {"y": "", "x": true}});
        assert_eq!(canonical(&value), r#"{"a":{"x":true,"y":""},"b":[1,[],{},null,false]}"#);
        assert_eq!(canonical_map(value.as_object().unwrap()), canonical(&value));
    }
}
