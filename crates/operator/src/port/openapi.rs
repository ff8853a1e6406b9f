//! Schema of the operators' API in OpenAPI 3.1: the table of routes, with the types of requests and
//! answers.

use axum::http::Method;
use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::PREFIX;
use super::guard::OURS;
use super::routes::{Input, Place, ROUTES, Route};
use crate::answer::ErrorAnswer;

/// Version of the API, which its paths bear.
const VERSION: &str = "1";
const JSON: &str = "application/json";

/// Builds the whole document.
pub(super) fn document() -> Value {
    // Requests have fields that may be missing; answers have all of theirs.
    let mut answers = SchemaSettings::draft2020_12()
        .with(|settings| settings.definitions_path = "/components/schemas".into())
        .for_serialize()
        .into_generator();
    let mut requests = SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator();
    let refusal = answers.subschema_for::<ErrorAnswer>();
    let mut paths = Map::new();
    for route in &ROUTES {
        let operation = operation(route, &mut answers, &mut requests, &refusal);
        let path = paths.entry(format!("{PREFIX}{}", route.path));
        let methods = path.or_insert_with(|| json!({}));
        methods[route.method.as_str().to_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Packetboat, operators' API",
            "version": VERSION,
            "description": "docs/operations/api.md describes it for people.",
        },
        "paths": paths,
        "components": {
            "schemas": answers.take_definitions(true),
            "securitySchemes": { "token": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{ "token": [] }, {}],
    })
}

fn operation(
    route: &Route,
    answers: &mut SchemaGenerator,
    requests: &mut SchemaGenerator,
    refusal: &Schema,
) -> Value {
    let answer = (route.answer.schema)(answers);
    let mut parameters = path_parameters(route.path);
    let mut operation = json!({
        "operationId": id(route),
        "summary": route.summary,
        "description": format!("Needs {}.", route.needs.words()),
        "responses": {
            "200": { "description": "Answer", "content": { JSON: { "schema": answer } } },
            "default": { "description": "Refusal", "content": { JSON: { "schema": refusal } } },
        },
    });
    if let Some(Input {
        place,
        form,
        example,
    }) = &route.input
    {
        let schema = (form.schema)(requests);
        match place {
            Place::Query => parameters.extend(query_parameters(&schema)),
            Place::Body => {
                let example: Value = serde_json::from_str(example).unwrap_or_default();
                operation["requestBody"] = json!({
                    "required": true,
                    "content": { JSON: { "schema": schema, "example": example } },
                });
            }
        }
    }
    if route.input.is_none() && route.method == Method::POST {
        parameters.push(guard_header());
    }
    if !parameters.is_empty() {
        operation["parameters"] = parameters.into();
    }
    operation
}

/// `get_dead_letters_tasks_id` for `GET /dead-letters/tasks/{id}`.
fn id(route: &Route) -> String {
    let words = route.path.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.filter(|word| !word.is_empty());
    let method = route.method.as_str().to_lowercase();
    words.fold(method, |id, word| format!("{id}_{word}"))
}

fn path_parameters(path: &str) -> Vec<Value> {
    let names = path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?;
        name.strip_suffix('}')
    });
    names
        .map(|name| {
            let schema = json!({ "type": "string" });
            json!({ "name": name, "in": "path", "required": true, "schema": schema })
        })
        .collect()
}

/// Header by which the guard knows a request without a body.
fn guard_header() -> Value {
    json!({
        "name": OURS.as_str(),
        "in": "header",
        "required": true,
        "description": "Any value. Required for a request that changes something without a body, \
                        as a form of another page cannot send it. `content-type: application/json` \
                        works as well.",
        "schema": { "type": "string" },
        "example": "1",
    })
}

fn query_parameters(schema: &Schema) -> impl Iterator<Item = Value> {
    let fields = schema.get("properties").and_then(Value::as_object);
    fields.into_iter().flatten().map(|(name, schema)| {
        json!({
            "name": name,
            "in": "query",
            "description": schema["description"],
            "schema": schema,
        })
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    fn docs(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../docs/operations")
            .join(name)
    }

    fn is_to_be_written() -> bool {
        std::env::var_os("PACKETBOAT_TEST_WRITE").is_some()
    }

    /// `make settings` writes the file anew.
    #[test]
    fn the_schema_of_the_api_is_what_the_program_answers() {
        let (path, document) = (docs("openapi.json"), document());
        if is_to_be_written() {
            let text = serde_json::to_string_pretty(&document).expect("JSON");
            std::fs::write(&path, text + "\n").expect("written");
        }
        let contents = std::fs::read_to_string(&path).unwrap_or_default();
        let contents: Value = serde_json::from_str(&contents).unwrap_or_default();
        assert!(
            contents == document,
            "docs/operations/openapi.json is old or missing: make settings"
        );
    }

    const BEGIN: &str = "<!-- routes: make settings -->\n";
    const END: &str = "<!-- end of routes -->";

    /// The table of routes for the page.
    fn table() -> String {
        let mut table =
            "\n| request | needs | takes | answers | |\n| --- | --- | --- | --- | --- |\n"
                .to_owned();
        let mut requests = SchemaSettings::draft2020_12()
            .with(|settings| settings.inline_subschemas = true)
            .into_generator();
        for route in &ROUTES {
            let takes = route.input.as_ref().map_or_else(String::new, |input| {
                if input.place == Place::Body {
                    return format!("`{}`", (input.form.name)());
                }
                let schema = (input.form.schema)(&mut requests);
                let names = query_parameters(&schema);
                let names =
                    names.map(|field| format!("`{}`", field["name"].as_str().expect("text")));
                names.collect::<Vec<_>>().join(" ")
            });
            table += &format!(
                "| `{} {}` | {} | {takes} | `{}` | {} |\n",
                route.method,
                route.path,
                route.needs.words(),
                (route.answer.name)(),
                route.summary
            );
        }
        table + "\n"
    }

    /// `make settings` writes the table anew.
    #[test]
    fn the_page_of_the_api_has_the_table_of_routes() {
        let path = docs("api.md");
        let page = std::fs::read_to_string(&path).expect("a page");
        let (head, rest) = page.split_once(BEGIN).expect("a table");
        let (old_table, tail) = rest.split_once(END).expect("an end");
        if is_to_be_written() {
            let page = format!("{head}{BEGIN}{}{END}{tail}", table());
            std::fs::write(&path, page).expect("written");
            return;
        }
        assert_eq!(
            old_table,
            table(),
            "the table of docs/operations/api.md is old: make settings"
        );
    }

    /// Visits each schema of the document.
    fn visit(value: &Value, see: &mut impl FnMut(&Map<String, Value>)) {
        match value {
            Value::Object(fields) => {
                see(fields);
                fields.values().for_each(|field| visit(field, see));
            }
            Value::Array(items) => items.iter().for_each(|item| visit(item, see)),
            _ => {}
        }
    }

    #[test]
    fn every_reference_has_its_schema_and_every_name_is_its_own() {
        let document = document();
        let schemas = document["components"]["schemas"].as_object();
        let schemas = schemas.expect("schemas");
        let mut references = BTreeSet::new();
        visit(&document, &mut |fields| {
            references.extend(
                fields
                    .get("$ref")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
            );
        });
        assert!(references.len() > 20, "{references:?}");
        for reference in references {
            let name = reference.strip_prefix("#/components/schemas/");
            let name = name.expect(&reference);
            assert!(schemas.contains_key(name), "{name}");
        }
        // Two types of one name would be told apart by a number.
        for name in schemas.keys() {
            let ends = name.ends_with(|c: char| c.is_ascii_digit());
            assert!(!ends, "{name} is the name of two types");
        }
        let ids: BTreeSet<String> = ROUTES.iter().map(id).collect();
        assert_eq!(ids.len(), ROUTES.len());
    }

    #[test]
    fn every_field_of_an_answer_is_in_snake_case() {
        let document = document();
        let schemas = &document["components"]["schemas"];
        let is_snake = |name: &String| {
            let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            name.chars().all(fits)
        };
        let mut count = 0;
        visit(schemas, &mut |fields| {
            let names = fields.get("properties").and_then(Value::as_object);
            for name in names.into_iter().flat_map(Map::keys) {
                assert!(is_snake(name), "{name}");
                count += 1;
            }
        });
        assert!(count > 100, "{count}");
    }
}
