//! Variables of OpenTelemetry that any process honours, where the settings leave something open.

use std::time::Duration;

use protocol::settings::Problems;

use crate::telemetry::OtlpConfig;

const TRACES_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
const METRICS_ENDPOINT: &str = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT";

/// Attributes of the resource, read by the exporter.
pub(crate) const RESOURCE_ATTRIBUTES: &str = "OTEL_RESOURCE_ATTRIBUTES";

/// Fills `otlp` from variables, read by `get`. If the settings name a collector, variables do not
/// name another. Those of the resource (`OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`) are read
/// by the exporter.
///
/// # Errors
/// Variables whose values are not valid.
pub(super) fn apply(
    otlp: &mut OtlpConfig,
    get: impl Fn(&str) -> Option<String>,
) -> Result<(), Problems> {
    if !cfg!(feature = "otlp") {
        return Ok(());
    }
    let get = |name: &str| get(name).filter(|value| !value.trim().is_empty());
    let mut problems = Problems::default();
    let is_disabled =
        get("OTEL_SDK_DISABLED").is_some_and(|it| it.trim().eq_ignore_ascii_case("true"));
    if is_disabled {
        otlp.disable();
        return Ok(());
    }
    if otlp.endpoint.is_none() {
        let link = |name| get(name).map(|value| value.as_str().into());
        otlp.endpoint = link("OTEL_EXPORTER_OTLP_ENDPOINT");
        otlp.traces_endpoint = link(TRACES_ENDPOINT);
        otlp.metrics_endpoint = link(METRICS_ENDPOINT);
        let name = "OTEL_EXPORTER_OTLP_PROTOCOL";
        let protocol = get(name).filter(|protocol| protocol.trim() != "grpc");
        if protocol.is_some() && (otlp.traces().is_some() || otlp.metrics().is_some()) {
            refuse(&mut problems, name, "grpc, which collectors take on 4317");
        }
    }
    for (name, file) in [
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", &mut otlp.tls.ca_file),
        (
            "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
            &mut otlp.tls.cert_file,
        ),
        ("OTEL_EXPORTER_OTLP_CLIENT_KEY", &mut otlp.tls.key_file),
    ] {
        if file.is_none() {
            *file = get(name).map(Into::into);
        }
    }
    for (name, endpoint) in [
        (TRACES_ENDPOINT, &otlp.traces_endpoint),
        (METRICS_ENDPOINT, &otlp.metrics_endpoint),
    ] {
        if let Some(endpoint) = endpoint
            && let Some((reason, remedy)) = otlp.refusal(endpoint)
        {
            problems.refuse(name, format!("{endpoint:?}"), reason, remedy);
        }
    }
    for (name, time) in [
        ("OTEL_EXPORTER_OTLP_TIMEOUT", &mut otlp.timeout),
        ("OTEL_METRIC_EXPORT_INTERVAL", &mut otlp.metrics_interval),
    ] {
        match get(name).map(|text| text.trim().parse()) {
            Some(Ok(millis @ 1..)) => *time = Duration::from_millis(millis),
            Some(_) => refuse(&mut problems, name, "milliseconds, at least 1"),
            None => {}
        }
    }
    let attributes = get(RESOURCE_ATTRIBUTES);
    if pairs(attributes.as_deref()).iter().any(Option::is_none) {
        refuse(&mut problems, RESOURCE_ATTRIBUTES, "key=value, …");
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems)
    }
}

fn refuse(problems: &mut Problems, name: &str, expected: &str) {
    let remedy = format!("Remove it, or use settings of log.otlp; it may be {expected}");
    problems.refuse(name, "", "unsupported value", &remedy);
}

/// Reads `key=value` pairs between commas, values percent-encoded; `None` for a piece that is no
/// pair.
pub(crate) fn pairs(text: Option<&str>) -> Vec<Option<(String, String)>> {
    let pairs = text.unwrap_or_default().split(',').map(str::trim);
    let pairs = pairs.filter(|pair| !pair.is_empty());
    let read = |pair: &str| {
        let (key, value) = pair.split_once('=')?;
        let key = key.trim();
        let value = percent_decode(value.trim())?;
        (!key.is_empty()).then(|| (key.to_owned(), value))
    };
    pairs.map(read).collect()
}

fn percent_decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                let digits = str::from_utf8(&digits).ok()?;
                u8::from_str_radix(digits, 16).ok()?
            }
            byte => byte,
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(all(test, feature = "otlp"))]
mod tests {
    use super::*;

    fn applied(mut otlp: OtlpConfig, variables: &[(&str, &str)]) -> Result<OtlpConfig, Problems> {
        let get = |name: &str| {
            let pair = variables.iter().find(|(key, _)| *key == name);
            pair.map(|(_, value)| (*value).to_owned())
        };
        apply(&mut otlp, get).map(|()| otlp)
    }

    const ALL_VARIABLES: [(&str, &str); 6] = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "https://b:4317"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
        ("OTEL_METRIC_EXPORT_INTERVAL", "200"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/a/ca.crt"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    ];

    #[test]
    fn variables_fill_what_settings_leave_open() {
        let otlp = applied(OtlpConfig::default(), &ALL_VARIABLES).expect("valid");
        assert_eq!(otlp.traces(), Some(&"http://a:4317".into()));
        assert_eq!(otlp.metrics(), Some(&"https://b:4317".into()));
        assert_eq!(otlp.timeout, Duration::from_millis(2500));
        assert_eq!(otlp.metrics_interval, Duration::from_millis(200));
        assert_eq!(otlp.tls.ca_file.as_deref(), Some("/a/ca.crt".as_ref()));
    }

    #[test]
    fn settings_win_over_variables() {
        let mut settings = OtlpConfig {
            endpoint: Some("http://c:1".into()),
            ..OtlpConfig::default()
        };
        settings.tls.ca_file = Some("/b/ca.crt".into());
        let otlp = applied(settings, &ALL_VARIABLES).expect("valid");
        assert_eq!(otlp.traces(), Some(&"http://c:1".into()));
        assert_eq!(otlp.metrics(), Some(&"http://c:1".into()), "one for both");
        assert_eq!(otlp.tls.ca_file.as_deref(), Some("/b/ca.crt".as_ref()));
    }

    #[test]
    fn without_variables_nothing_changes() {
        let default = OtlpConfig::default();
        assert_eq!(applied(default.clone(), &[]).expect("valid"), default);
        let empty = [("OTEL_EXPORTER_OTLP_ENDPOINT", " ")];
        assert_eq!(applied(default.clone(), &empty).expect("valid"), default);
    }

    #[test]
    fn invalid_values_are_refused_by_name() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "0"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "a:4317"),
            ("OTEL_RESOURCE_ATTRIBUTES", "region"),
            ("OTEL_RESOURCE_ATTRIBUTES", "region=%zz"),
        ] {
            let refusal = applied(OtlpConfig::default(), &[(name, value)]);
            let problems = refusal.expect_err(value);
            assert!(problems.to_string().starts_with(name), "{problems}");
        }
        let http = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ];
        let problems = applied(OtlpConfig::default(), &http).expect_err("another protocol");
        assert!(problems.to_string().contains("4317"), "{problems}");
        let settings = OtlpConfig {
            endpoint: Some("http://c:4317".into()),
            ..OtlpConfig::default()
        };
        assert!(applied(settings, &http).is_ok(), "the settings name one");
    }

    #[test]
    fn otel_sdk_disabled_turns_export_off() {
        let with_switch = |value| {
            let variables = [ALL_VARIABLES[0], ("OTEL_SDK_DISABLED", value)];
            let otlp = applied(OtlpConfig::default(), &variables).expect("valid");
            otlp.traces().is_some()
        };
        assert!(!with_switch("true") && !with_switch("TRUE"));
        assert!(with_switch("false") && with_switch("1"));
    }
}
