//! The operators' console: a web application over the desk and the metrics. Its source is in
//! `web/console`; a release has it built in, a debug build reads it from `web/dist`.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rust_embed::Embed;

/// Files of a console, by path; none if it was not built.
type ConsoleFiles = fn(&str) -> Option<Cow<'static, [u8]>>;

const INDEX: &str = "index.html";
/// Page at `/` of a program that was built without Node.
const UNBUILT: &str = include_str!("console/unbuilt.html");

// The folder exists before the console is built: a debug build reads it at run time.
#[derive(Embed)]
#[folder = "../../web/dist"]
#[allow_missing = true]
struct ConsoleAssets;

/// The console that is built into this program.
pub(super) fn built(path: &str) -> Option<Cow<'static, [u8]>> {
    ConsoleAssets::get(&format!("console/{path}")).map(|file| file.data)
}

/// Serves the page at `/`, and its files by their paths. Views within the console come after the
/// `#` of the address.
pub(super) fn routes(files: ConsoleFiles) -> Router {
    let file = move |Path(path): Path<String>| async move { answer(files, &path) };
    Router::new()
        .route("/", get(move || async move { answer(files, INDEX) }))
        .route("/{*path}", get(file))
}

fn answer(files: ConsoleFiles, path: &str) -> Response {
    let unbuilt = (path == INDEX).then_some(Cow::Borrowed(UNBUILT.as_bytes()));
    match files(path).or(unbuilt) {
        Some(bytes) => {
            let headers = [
                (CONTENT_TYPE, media_type(path)),
                (CACHE_CONTROL, caching(path)),
            ];
            (guards(), headers, bytes).into_response()
        }
        None => (
            StatusCode::NOT_FOUND,
            guards(),
            "no such file: the console is at /\n",
        )
            .into_response(),
    }
}

/// Headers by which the page loads nothing from elsewhere, and no other page frames it.
fn guards() -> [(HeaderName, &'static str); 5] {
    let policy = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                  object-src 'none'";
    [
        (CONTENT_SECURITY_POLICY, policy),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ]
}

/// Media type of a file, for each kind that the build makes.
fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map(|(_, extension)| extension) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

/// Caching of a file. Files under `assets/` have a hash in their name and never change.
fn caching(path: &str) -> &'static str {
    if path.starts_with("assets/") {
        "public, max-age=31536000, immutable"
    } else {
        "no-cache"
    }
}
