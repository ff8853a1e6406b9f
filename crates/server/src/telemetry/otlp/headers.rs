//! Metadata of each call to the collector.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use arc_swap::ArcSwap;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, KeyAndValueRef, MetadataMap};
use tonic::service::Interceptor;
use tonic::{Request, Status};

use crate::settings::variables::pairs;

/// Headers in the variable that any OTLP program reads.
pub(super) fn variable() -> Option<String> {
    std::env::var("OTEL_EXPORTER_OTLP_HEADERS").ok()
}

/// Metadata for calls, as file and variable have it now. Clones share it.
#[derive(Clone)]
pub(super) struct Headers {
    file: Option<PathBuf>,
    /// Headers of `OTEL_EXPORTER_OTLP_HEADERS`, over which the file wins.
    variable: MetadataMap,
    current: Arc<ArcSwap<MetadataMap>>,
}

impl Headers {
    pub(super) fn load(file: Option<&Path>, variable: Option<&str>) -> Result<Headers> {
        let variable = from_variable(variable)?;
        let current = merge_headers(&variable, file)?;
        Ok(Headers {
            file: file.map(Path::to_owned),
            variable,
            current: Arc::new(ArcSwap::from_pointee(current)),
        })
    }

    /// Reads the file again; blocks for a small file.
    pub(super) fn reload(&self) -> Result<()> {
        if let Some(file) = &self.file {
            let current = merge_headers(&self.variable, Some(file))?;
            self.current.store(Arc::new(current));
        }
        Ok(())
    }
}

impl Interceptor for Headers {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        for header in self.current.load().iter() {
            if let KeyAndValueRef::Ascii(name, value) = header {
                request.metadata_mut().insert(name, value.clone());
            }
        }
        Ok(request)
    }
}

fn merge_headers(variable: &MetadataMap, file: Option<&Path>) -> Result<MetadataMap> {
    let mut headers = variable.clone();
    if let Some(file) = file {
        for header in read_headers(file)?.iter() {
            if let KeyAndValueRef::Ascii(name, value) = header {
                headers.insert(name, value.clone());
            }
        }
    }
    Ok(headers)
}

fn from_variable(text: Option<&str>) -> Result<MetadataMap> {
    let mut headers = MetadataMap::new();
    for pair in pairs(text) {
        let header = pair.and_then(|(name, value)| parse(&name, &value));
        let Some((name, value)) = header else {
            bail!(
                "OTEL_EXPORTER_OTLP_HEADERS: headers are name=value, … with values percent-encoded"
            );
        };
        headers.insert(name, value);
    }
    Ok(headers)
}

/// Reads `name: value` lines; skips empty ones and those that begin with `#`. An error never
/// repeats a value.
pub(super) fn read_headers(file: &Path) -> Result<MetadataMap> {
    let lines = std::fs::read_to_string(file)
        .with_context(|| format!("reading log.otlp.headers_file {}", file.display()))?;
    let mut headers = MetadataMap::new();
    for (number, line) in lines.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let header = line.split_once(':');
        let header = header.and_then(|(name, value)| parse(name, value));
        let Some((name, value)) = header else {
            let (file, number) = (file.display(), number + 1);
            bail!("{file}, line {number}: a header is `name: value`");
        };
        headers.insert(name, value);
    }
    Ok(headers)
}

fn parse(name: &str, value: &str) -> Option<(AsciiMetadataKey, AsciiMetadataValue)> {
    let name = name.trim().to_ascii_lowercase().parse().ok()?;
    let mut value: AsciiMetadataValue = value.trim().parse().ok()?;
    value.set_sensitive(true);
    Some((name, value))
}
