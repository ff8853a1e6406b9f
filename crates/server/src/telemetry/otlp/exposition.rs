//! The numbers of `/metrics` in OTLP: read from the text for Prometheus, so that both show the same
//! numbers and counting costs nothing more.

use std::collections::BTreeMap;

use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use opentelemetry_proto::tonic::metrics::v1::summary_data_point::ValueAtQuantile;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, Sum,
    Summary, SummaryDataPoint,
};

/// Period of the counting, in nanoseconds since 1970.
#[derive(Clone, Copy)]
pub(super) struct Period {
    pub(super) start: u64,
    pub(super) end: u64,
}

/// Reads the exposition format, and skips other lines.
pub(super) fn read(exposition: &str, period: Period) -> Vec<Metric> {
    let mut metrics = Vec::new();
    let mut family: Option<Family<'_>> = None;
    for line in exposition.lines() {
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            metrics.extend(family.take().and_then(|family| family.metric(period)));
            family = kind.split_once(' ').map(|(name, kind)| Family {
                name,
                kind,
                samples: Vec::new(),
            });
        } else if let (Some(family), Some(sample)) = (&mut family, Sample::read(line)) {
            family.samples.push(sample);
        }
    }
    metrics.extend(family.and_then(|family| family.metric(period)));
    metrics
}

/// Samples of one name.
struct Family<'a> {
    name: &'a str,
    kind: &'a str,
    samples: Vec<Sample<'a>>,
}

/// One line, such as `name{label="value"} 12`.
struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
}

impl<'a> Sample<'a> {
    fn read(line: &'a str) -> Option<Sample<'a>> {
        let end = line.find(['{', ' '])?;
        let (name, mut rest) = line.split_at(end);
        let mut labels = Vec::new();
        if let Some(inside) = rest.strip_prefix('{') {
            rest = inside;
            while !rest.starts_with('}') {
                let (label, tail) = rest.split_once("=\"")?;
                let (value, tail) = parse_quoted(tail)?;
                labels.push((label.trim_start_matches(','), value));
                rest = tail;
            }
            rest = &rest[1..];
        }
        let value = rest.split_whitespace().next()?;
        let value = match value {
            "+Inf" => f64::INFINITY,
            "-Inf" => f64::NEG_INFINITY,
            value => value.parse().ok()?,
        };
        Some(Sample {
            name,
            labels,
            value,
        })
    }
}

/// Splits at the closing quote: the value before it, and the rest behind it.
fn parse_quoted(rest: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut letters = rest.char_indices();
    loop {
        match letters.next()? {
            (end, '"') => return Some((value, &rest[end + 1..])),
            (_, '\\') => value.push(match letters.next()?.1 {
                'n' => '\n',
                other => other,
            }),
            (_, other) => value.push(other),
        }
    }
}

impl Family<'_> {
    fn metric(self, period: Period) -> Option<Metric> {
        let temporality = AggregationTemporality::Cumulative.into();
        let data = match self.kind {
            "counter" => Data::Sum(Sum {
                data_points: self.points(period),
                aggregation_temporality: temporality,
                is_monotonic: true,
            }),
            "gauge" => Data::Gauge(Gauge {
                data_points: self.points(period),
            }),
            "histogram" => Data::Histogram(Histogram {
                data_points: self.series("le").map(|one| one.histogram(period)).collect(),
                aggregation_temporality: temporality,
            }),
            "summary" => Data::Summary(Summary {
                data_points: (self.series("quantile"))
                    .map(|one| one.summary(period))
                    .collect(),
            }),
            _ => return None,
        };
        Some(Metric {
            name: self.name.to_owned(),
            data: Some(data),
            ..Metric::default()
        })
    }

    fn points(&self, period: Period) -> Vec<NumberDataPoint> {
        (self.samples.iter())
            .map(|sample| NumberDataPoint {
                attributes: attributes(&sample.labels),
                start_time_unix_nano: period.start,
                time_unix_nano: period.end,
                value: Some(Value::AsDouble(sample.value)),
                ..NumberDataPoint::default()
            })
            .collect()
    }

    /// Groups samples with the same labels, `bound` aside.
    fn series(&self, bound: &str) -> impl Iterator<Item = Series> {
        let mut all: BTreeMap<Vec<(&str, String)>, Series> = BTreeMap::new();
        for sample in &self.samples {
            let mut labels = sample.labels.clone();
            let bounds = labels.extract_if(.., |(name, _)| *name == bound);
            let at = bounds.last().and_then(|(_, at)| match at.as_str() {
                "+Inf" => Some(f64::INFINITY),
                at => at.parse().ok(),
            });
            let attributes = attributes(&labels);
            let series = all.entry(labels).or_insert_with(|| Series {
                attributes,
                ..Series::default()
            });
            match at {
                Some(at) => series.bounds.push((at, sample.value)),
                None if sample.name.ends_with("_sum") => series.sum = sample.value,
                None if sample.name.ends_with("_count") => series.count = sample.value as u64,
                None => {}
            }
        }
        all.into_values()
    }
}

#[derive(Default)]
struct Series {
    attributes: Vec<KeyValue>,
    /// Bounds, each with the count at or below it; or quantiles, each with its value.
    bounds: Vec<(f64, f64)>,
    sum: f64,
    count: u64,
}

impl Series {
    /// Converts a histogram: a bucket of Prometheus counts all samples at or below its bound, one
    /// of OTLP only its own.
    fn histogram(self, period: Period) -> HistogramDataPoint {
        let mut below = 0;
        let counts = self.bounds.iter().map(|&(_, upto)| {
            let upto = upto as u64;
            upto.saturating_sub(std::mem::replace(&mut below, upto))
        });
        HistogramDataPoint {
            bucket_counts: counts.collect(),
            explicit_bounds: (self.bounds.iter())
                .map(|(bound, _)| *bound)
                .filter(|bound| bound.is_finite())
                .collect(),
            attributes: self.attributes,
            start_time_unix_nano: period.start,
            time_unix_nano: period.end,
            count: self.count,
            sum: Some(self.sum),
            ..HistogramDataPoint::default()
        }
    }

    fn summary(self, period: Period) -> SummaryDataPoint {
        let values = self.bounds.into_iter();
        SummaryDataPoint {
            quantile_values: values
                .map(|(quantile, value)| ValueAtQuantile { quantile, value })
                .collect(),
            attributes: self.attributes,
            start_time_unix_nano: period.start,
            time_unix_nano: period.end,
            count: self.count,
            sum: self.sum,
            ..SummaryDataPoint::default()
        }
    }
}

fn attributes(labels: &[(&str, String)]) -> Vec<KeyValue> {
    let labels = labels.iter();
    labels
        .map(|(name, value)| attribute(name, text(value)))
        .collect()
}

pub(super) fn attribute(key: &str, value: Any) -> KeyValue {
    KeyValue {
        key: key.to_owned(),
        value: Some(AnyValue { value: Some(value) }),
        ..KeyValue::default()
    }
}

pub(super) fn text(text: impl Into<String>) -> Any {
    Any::StringValue(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Period = Period { start: 1, end: 2 };

    /// Text that our recorder renders.
    fn render_metrics(count: impl FnOnce()) -> String {
        let recorder = metrics_exporter_prometheus::PrometheusBuilder::new()
            .set_buckets_for_metric(
                metrics_exporter_prometheus::Matcher::Suffix("_seconds".into()),
                &[0.1, 1.0],
            )
            .expect("buckets")
            .build_recorder();
        metrics::with_local_recorder(&recorder, count);
        recorder.handle().render()
    }

    #[test]
    fn prometheus_text_is_parsed() {
        let text = render_metrics(|| {
            metrics::counter!("boat_sends_total", "result" => "a \"b\"\nc\\d").increment(3);
            metrics::counter!("boat_sends_total", "result" => "no").increment(1);
            metrics::gauge!("boat_sessions").set(-2.5);
            for seconds in [0.05, 0.5, 0.6, 7.0] {
                metrics::histogram!("boat_wait_seconds", "lane" => "1").record(seconds);
            }
            metrics::histogram!("boat_bytes").record(5.0);
        });
        let metrics = read(&text, PERIOD);
        let data = |name: &str| {
            let metric = metrics.iter().find(|metric| metric.name == name);
            metric.and_then(|metric| metric.data.clone()).expect(name)
        };
        let Data::Sum(sum) = data("boat_sends_total") else {
            panic!("a counter");
        };
        assert!(sum.is_monotonic && sum.data_points.len() == 2);
        let labels: Vec<_> = sum.data_points.iter().map(|p| &p.attributes[0]).collect();
        let odd = attribute("result", super::text("a \"b\"\nc\\d"));
        assert!(labels.contains(&&odd), "{labels:?}");
        let Data::Gauge(gauge) = data("boat_sessions") else {
            panic!("a gauge");
        };
        assert_eq!(gauge.data_points[0].value, Some(Value::AsDouble(-2.5)));
        let Data::Histogram(histogram) = data("boat_wait_seconds") else {
            panic!("a histogram");
        };
        let [point] = &histogram.data_points[..] else {
            panic!("one of them: {histogram:?}");
        };
        assert_eq!(point.bucket_counts, [1, 2, 1]);
        assert_eq!(point.explicit_bounds, [0.1, 1.0]);
        assert_eq!((point.count, point.sum), (4, Some(8.15)));
        assert_eq!(point.attributes, [attribute("lane", super::text("1"))]);
        let Data::Summary(summary) = data("boat_bytes") else {
            panic!("a summary");
        };
        assert_eq!(summary.data_points[0].count, 1);
        assert!(!summary.data_points[0].quantile_values.is_empty());
    }

    #[test]
    fn nonsense_is_passed_over() {
        for text in [
            "",
            "a",
            "a{",
            "a{b=\"",
            "a{b=\"c\"}",
            "# TYPE",
            "# TYPE a\nb",
            "# TYPE a counter\na{b=} x\na{\n",
        ] {
            for metric in read(text, PERIOD) {
                assert!(matches!(metric.data, Some(Data::Sum(sum)) if sum.data_points.is_empty()));
            }
        }
    }
}
