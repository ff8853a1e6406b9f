//! Variables of OpenTelemetry that any process honours: a layer below our own settings, which win.

use std::time::Duration;

use figment::value::{Dict, Map, Value};
use figment::{Error, Metadata, Profile, Provider};
use protocol::settings::Problems;

use super::span;

/// Variables that belong to endpoints, and the settings of `log.otlp` for which they stand.
const ENDPOINTS: [(&str, &str); 3] = [
    ("OTEL_EXPORTER_OTLP_ENDPOINT", "endpoint"),
    ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "traces_endpoint"),
    ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "metrics_endpoint"),
];

/// Files of TLS to the collector, and the settings of `log.otlp.tls` for which they stand.
const FILES: [(&str, &str); 3] = [
    ("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca_file"),
    ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "cert_file"),
    ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "key_file"),
];

/// Variables as one layer of settings.
#[derive(Debug, Default)]
pub(super) struct Variables {
    otlp: Dict,
    trace_share: Option<f64>,
    /// `OTEL_SDK_DISABLED`: nothing is sent, whatever else is set.
    pub(super) is_disabled: bool,
}

impl Variables {
    /// Reads variables by `get`. If the settings name the collector, variables do not name another.
    ///
    /// # Errors
    /// Variables whose values are not valid.
    pub(super) fn read(
        get: impl Fn(&str) -> Option<String>,
        has_endpoint: bool,
    ) -> Result<Variables, Problems> {
        if !cfg!(feature = "otlp") {
            return Ok(Variables::default());
        }
        let get = |name: &str| get(name).filter(|value| !value.trim().is_empty());
        let mut problems = Problems::default();
        let mut otlp = Dict::new();
        if !has_endpoint {
            endpoints(&get, &mut otlp, &mut problems);
        }
        if let Some(text) = get("OTEL_EXPORTER_OTLP_TIMEOUT") {
            match text.trim().parse().map(Duration::from_millis) {
                Ok(time) => _ = otlp.insert("timeout".into(), span::write(time).into()),
                Err(_) => refuse(&mut problems, "OTEL_EXPORTER_OTLP_TIMEOUT", "milliseconds"),
            }
        }
        resource(&get, &mut otlp, &mut problems);
        let files = FILES.iter();
        let files = files.filter_map(|(name, key)| Some(((*key).to_owned(), get(name)?.into())));
        let files: Dict = files.collect();
        if !files.is_empty() {
            otlp.insert("tls".into(), files.into());
        }
        let trace_share = sampler(&get, &mut problems);
        if !problems.is_empty() {
            return Err(problems);
        }
        let sdk_disabled = get("OTEL_SDK_DISABLED");
        Ok(Variables {
            otlp,
            trace_share,
            is_disabled: sdk_disabled.is_some_and(|it| it.trim().eq_ignore_ascii_case("true")),
        })
    }
}

fn endpoints(get: &impl Fn(&str) -> Option<String>, otlp: &mut Dict, problems: &mut Problems) {
    for (name, key) in ENDPOINTS {
        if let Some(endpoint) = get(name) {
            otlp.insert(key.into(), endpoint.into());
        }
    }
    let protocol = "OTEL_EXPORTER_OTLP_PROTOCOL";
    let other = get(protocol).filter(|protocol| protocol.trim() != "grpc");
    if !otlp.is_empty() && other.is_some() {
        refuse(problems, protocol, "grpc, which collectors take on 4317");
    }
}

fn resource(get: &impl Fn(&str) -> Option<String>, otlp: &mut Dict, problems: &mut Problems) {
    let mut attributes = Dict::new();
    for pair in pairs(get("OTEL_RESOURCE_ATTRIBUTES").as_deref()) {
        match pair {
            Some((key, value)) => _ = attributes.insert(key, value.into()),
            None => {
                refuse(problems, "OTEL_RESOURCE_ATTRIBUTES", "key=value, …");
                return;
            }
        }
    }
    for (attribute, key) in [
        ("service.name", "service"),
        ("service.instance.id", "instance"),
    ] {
        if let Some(value) = attributes.remove(attribute) {
            otlp.insert(key.into(), value);
        }
    }
    if let Some(service) = get("OTEL_SERVICE_NAME") {
        otlp.insert("service".into(), service.into());
    }
    if !attributes.is_empty() {
        otlp.insert("attributes".into(), attributes.into());
    }
}

/// Share of messages that begin a trace: messages within a trace are as their sender wants.
fn sampler(get: &impl Fn(&str) -> Option<String>, problems: &mut Problems) -> Option<f64> {
    let (name, argument) = ("OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG");
    let sampler = get(name)?;
    let sampler = sampler.trim();
    match sampler.strip_prefix("parentbased_").unwrap_or(sampler) {
        "always_on" => Some(1.0),
        "always_off" => Some(0.0),
        "traceidratio" => {
            let share = get(argument).map_or(Ok(1.0), |text| text.trim().parse());
            let share = share.ok().filter(|share| (0.0..=1.0).contains(share));
            if share.is_none() {
                refuse(problems, argument, "a share from 0 to 1");
            }
            share
        }
        _ => {
            let right = "always_on, always_off or traceidratio, each also behind parentbased_";
            refuse(problems, name, right);
            None
        }
    }
}

fn refuse(problems: &mut Problems, name: &str, right: &str) {
    let remedy = format!("Remove it, or use settings of log.otlp; it may be {right}");
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

impl Provider for Variables {
    fn metadata(&self) -> Metadata {
        Metadata::named("variables of OpenTelemetry (OTEL_…)")
    }

    fn data(&self) -> Result<Map<Profile, Dict>, Error> {
        let mut settings = Dict::new();
        if !self.otlp.is_empty() {
            let log = Dict::from([("otlp".to_owned(), Value::from(self.otlp.clone()))]);
            settings.insert("log".into(), log.into());
        }
        if let Some(share) = self.trace_share {
            let boat = Dict::from([("trace_share".to_owned(), Value::from(share))]);
            settings.insert("boat".into(), boat.into());
        }
        Ok(Map::from([(Profile::Default, settings)]))
    }
}

#[cfg(all(test, feature = "otlp"))]
mod tests {
    use figment::Figment;
    use figment::providers::{Format, Serialized, Toml};

    use super::*;
    use crate::settings::Settings;

    fn read(variables: &[(&str, &str)], has_endpoint: bool) -> Result<Variables, Problems> {
        let get = |name: &str| {
            let pair = variables.iter().find(|(key, _)| *key == name);
            pair.map(|(_, value)| (*value).to_owned())
        };
        Variables::read(get, has_endpoint)
    }

    fn settings(variables: &[(&str, &str)], file: &str) -> Settings {
        let has_endpoint = file.contains("endpoint");
        let variables = read(variables, has_endpoint).expect("they can be read");
        Figment::from(Serialized::defaults(Settings::default()))
            .merge(variables)
            .merge(Toml::string(file))
            .extract()
            .expect("settings")
    }

    const ALL_VARIABLES: [(&str, &str); 9] = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4317"),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "http://b:4317"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
        ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/a/ca.crt"),
        ("OTEL_SERVICE_NAME", "quay"),
        (
            "OTEL_RESOURCE_ATTRIBUTES",
            "service.name=other, service.instance.id=quay-7,region=north%20sea",
        ),
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.25"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
    ];

    #[test]
    fn variables_of_opentelemetry_are_settings() {
        let settings = settings(&ALL_VARIABLES, "");
        let otlp = &settings.log.otlp;
        let expose = |link: &Option<protocol::settings::Link>| {
            link.as_ref().map(|link| link.expose().to_owned())
        };
        assert_eq!(expose(&otlp.endpoint).as_deref(), Some("http://a:4317"));
        let metrics = expose(&otlp.metrics_endpoint);
        assert_eq!(metrics.as_deref(), Some("http://b:4317"));
        assert_eq!(otlp.traces_endpoint, None);
        assert_eq!(otlp.timeout, Duration::from_millis(2500));
        assert_eq!(otlp.tls.ca_file.as_deref(), Some("/a/ca.crt".as_ref()));
        assert_eq!(otlp.service, "quay");
        assert_eq!(otlp.instance.as_deref(), Some("quay-7"));
        assert_eq!(otlp.attributes["region"], "north sea");
        assert!((settings.boat.trace_share - 0.25).abs() < 1e-9);
    }

    #[test]
    fn settings_win_over_variables() {
        let file = "[boat]\ntrace_share = 0.5\n[log.otlp]\nendpoint = 'http://c:1'\n\
                    service = 'pier'\ntimeout = '1s'\n[log.otlp.attributes]\nregion = 'south'\n";
        let settings = settings(&ALL_VARIABLES, file);
        let otlp = &settings.log.otlp;
        assert_eq!(otlp.endpoint, Some("http://c:1".into()));
        assert_eq!(
            otlp.metrics_endpoint, None,
            "the settings name one for both"
        );
        assert_eq!(otlp.service, "pier");
        assert_eq!(otlp.timeout, Duration::from_secs(1));
        assert_eq!(otlp.attributes["region"], "south");
        assert!((settings.boat.trace_share - 0.5).abs() < 1e-9);
    }

    #[test]
    fn without_variables_nothing_changes() {
        let plain = settings(&[], "").print().expect("TOML");
        assert_eq!(plain, Settings::default().print().expect("TOML"));
        let empty = settings(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")], "");
        assert_eq!(empty.log.otlp.endpoint, None);
    }

    #[test]
    fn values_that_say_nothing_are_refused_by_name() {
        for (name, value) in [
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "soon"),
            ("OTEL_RESOURCE_ATTRIBUTES", "region"),
            ("OTEL_RESOURCE_ATTRIBUTES", "region=%zz"),
            ("OTEL_TRACES_SAMPLER", "jaeger_remote"),
        ] {
            let problems = read(&[(name, value)], false).expect_err(value);
            assert!(problems.to_string().starts_with(name), "{problems}");
        }
        let ratio = [
            ("OTEL_TRACES_SAMPLER", "traceidratio"),
            ("OTEL_TRACES_SAMPLER_ARG", "2"),
        ];
        assert!(read(&ratio, false).is_err());
        let http = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://a:4318"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ];
        let problems = read(&http, false).expect_err("another protocol");
        assert!(problems.to_string().contains("4317"), "{problems}");
        assert!(read(&http, true).is_ok(), "the settings say where");
    }

    #[test]
    fn the_switch_is_read_as_its_specification_says() {
        let is_disabled = |value| {
            let variables = read(&[("OTEL_SDK_DISABLED", value)], false);
            variables.expect("it can be read").is_disabled
        };
        assert!(is_disabled("true") && is_disabled("TRUE"));
        assert!(!is_disabled("false") && !is_disabled("1"));
        let mut otlp = settings(&ALL_VARIABLES, "").log.otlp;
        otlp.disable();
        assert_eq!((otlp.traces(), otlp.metrics()), (None, None));
    }
}
