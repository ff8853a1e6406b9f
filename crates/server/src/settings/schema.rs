//! The one source of settings: names, texts, bounds and defaults, from the types themselves.

use std::fmt;
use std::sync::LazyLock;

use protocol::settings::SPAN;
use schemars::generate::SchemaSettings;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, de};
use serde_json::{Map, Value, json};

use super::{Settings, span};

/// Bound of a number without its own: more is a typo.
pub(super) const COUNT_MAX: u64 = 1_000_000_000;

/// Like `COUNT_MAX`, for bytes: 1 TiB.
pub(super) const BYTES_MAX: u64 = 1 << 40;

/// Bound of a duration without its own: longer ones pass the end of the clock.
pub(super) const SPAN_MAX: &str = "7300days";

/// Least duration without a bound of its own: zero is a mistake, unless its schema says `zero`.
pub(super) const SPAN_MIN: &str = "1us";

/// A section of the settings: a table of the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Section {
    /// Path such as `boat.session`; empty for the root.
    pub(super) path: String,
    pub(super) doc: String,
    pub(super) keys: Vec<Key>,
}

/// One setting.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) name: String,
    pub(super) schema: Value,
    /// `None`: unset.
    pub(super) default: Option<Value>,
}

impl Key {
    pub(super) fn doc(&self) -> &str {
        self.schema["description"].as_str().unwrap_or_default()
    }

    pub(super) fn is_span(&self) -> bool {
        self.schema["format"] == SPAN
    }
}

/// The JSON schema of a settings file.
pub fn schema() -> Value {
    SCHEMA.clone()
}

/// All sections, in the order of the types, the root first.
pub(super) fn sections() -> &'static [Section] {
    &SECTIONS
}

static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
    });
    let schema = settings.into_generator().into_root_schema_for::<Settings>();
    let mut schema = schema.to_value();
    let defaults = serde_json::to_value(Settings::default()).unwrap_or_default();
    finish("", &mut schema, Some(&defaults));
    schema["title"] = json!("Settings of Packetboat");
    schema
});

static SECTIONS: LazyLock<Vec<Section>> = LazyLock::new(|| {
    // As text, because a `Value` forgets the order of its keys.
    let defaults = serde_json::to_string(&Settings::default()).unwrap_or_default();
    let defaults: OrderedJson = serde_json::from_str(&defaults).unwrap_or(OrderedJson::Leaf);
    let mut sections = Vec::new();
    collect(String::new(), &SCHEMA, &defaults, &mut sections);
    sections
});

/// Gives bounds to numbers and durations that have none, and each setting its default.
fn finish(name: &str, schema: &mut Value, default: Option<&Value>) {
    let Some(table) = schema.as_object_mut() else {
        return;
    };
    table.remove("default");
    if let Some(Value::Object(properties)) = table.get_mut("properties") {
        for (key, schema) in properties {
            finish(key, schema, default.and_then(|value| value.get(key)));
        }
        return;
    }
    let zero = table.remove("zero").is_some();
    bound(name, zero, table);
    for inner in ["items", "additionalProperties"] {
        if let Some(inner) = table.get_mut(inner) {
            finish(name, inner, None);
        }
    }
    if let Some(default) = default.filter(|value| !value.is_null()) {
        let is_span = table.get("format").is_some_and(|format| format == SPAN);
        table.insert("default".into(), readable(default, is_span));
    }
}

fn bound(name: &str, zero: bool, table: &mut Map<String, Value>) {
    let format = table.get("format").and_then(Value::as_str);
    match format.unwrap_or_default() {
        "uint" | "uint8" | "uint16" | "uint32" | "uint64" => {
            let min = table.get("minimum").and_then(Value::as_u64).unwrap_or(0);
            let min = if zero { min } else { min.max(1) };
            let max = table.get("maximum").and_then(Value::as_u64);
            let default_max = match (name.contains("bytes"), format) {
                (true, Some("uint32")) => u64::from(u32::MAX),
                (true, _) => BYTES_MAX,
                (false, _) => COUNT_MAX,
            };
            table.insert("minimum".into(), min.into());
            table.insert("maximum".into(), max.unwrap_or(default_max).into());
        }
        SPAN => {
            let min = if zero { "0s" } else { SPAN_MIN };
            table.entry("spanMinimum").or_insert_with(|| min.into());
            table
                .entry("spanMaximum")
                .or_insert_with(|| SPAN_MAX.into());
        }
        _ => {}
    }
}

/// A default as a person would write it.
fn readable(value: &Value, is_span: bool) -> Value {
    match value.as_str().map(humantime::parse_duration) {
        Some(Ok(time)) if is_span => span::write(time).into(),
        _ => value.clone(),
    }
}

fn collect(path: String, schema: &Value, default: &OrderedJson, sections: &mut Vec<Section>) {
    let OrderedJson::Table(entries) = default else {
        return;
    };
    let place = sections.len();
    sections.push(Section {
        doc: schema["description"].as_str().unwrap_or_default().into(),
        path: path.clone(),
        keys: Vec::new(),
    });
    for (name, default) in entries {
        let schema = &schema["properties"][name];
        if schema["properties"].is_object() {
            let dot = if path.is_empty() { "" } else { "." };
            collect(format!("{path}{dot}{name}"), schema, default, sections);
            continue;
        }
        let default = schema.get("default").cloned();
        sections[place].keys.push(Key {
            name: name.clone(),
            schema: schema.clone(),
            default,
        });
    }
}

/// JSON whose tables keep their order.
enum OrderedJson {
    Table(Vec<(String, OrderedJson)>),
    Leaf,
}

impl<'de> Deserialize<'de> for OrderedJson {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<OrderedJson, D::Error> {
        from.deserialize_any(Tables)
    }
}

struct Tables;

impl<'de> Visitor<'de> for Tables {
    type Value = OrderedJson;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a table of settings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OrderedJson, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(OrderedJson::Table(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<OrderedJson, A::Error> {
        while list.next_element::<de::IgnoredAny>()?.is_some() {}
        Ok(OrderedJson::Leaf)
    }

    fn visit_unit<E: de::Error>(self) -> Result<OrderedJson, E> {
        Ok(OrderedJson::Leaf)
    }

    fn visit_bool<E: de::Error>(self, _: bool) -> Result<OrderedJson, E> {
        self.visit_unit()
    }

    fn visit_str<E: de::Error>(self, _: &str) -> Result<OrderedJson, E> {
        self.visit_unit()
    }

    fn visit_u64<E: de::Error>(self, _: u64) -> Result<OrderedJson, E> {
        self.visit_unit()
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<OrderedJson, E> {
        self.visit_unit()
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<OrderedJson, E> {
        self.visit_unit()
    }
}
