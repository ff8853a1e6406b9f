//! Metrics of the servers, scraped as Prometheus does.

use std::time::Duration;

use anyhow::{Context, Result};

const SCRAPE_TIMEOUT: Duration = Duration::from_secs(10);

/// Scraper of some servers' metrics.
pub(super) struct Scraper {
    http: reqwest::Client,
    pages: Vec<String>,
}

/// One scrape of all servers.
#[derive(Debug, Default)]
pub(super) struct ScrapedMetrics(String);

impl Scraper {
    pub(super) fn new(health: &[String]) -> Result<Scraper> {
        let http = reqwest::Client::builder().timeout(SCRAPE_TIMEOUT).build();
        Ok(Scraper {
            http: http.context("a client for metrics")?,
            pages: health.iter().map(|url| format!("{url}/metrics")).collect(),
        })
    }

    pub(super) async fn look(&self) -> Result<ScrapedMetrics> {
        let mut text = String::new();
        for page in &self.pages {
            let answer = self.http.get(page).send().await?.error_for_status()?;
            text.push_str(&answer.text().await?);
            text.push('\n');
        }
        Ok(ScrapedMetrics(text))
    }
}

impl ScrapedMetrics {
    #[cfg(test)]
    pub(super) fn of(text: String) -> ScrapedMetrics {
        ScrapedMetrics(text)
    }

    /// Sum of all samples of this name; if `label` is given, of those that carry it.
    pub(super) fn sum(&self, name: &str, label: &str) -> f64 {
        self.samples(name)
            .filter(|(labels, _)| labels.contains(label))
            .map(|(_, value)| value)
            .sum()
    }

    /// Labels and values of all samples of this name.
    pub(super) fn samples<'a>(&'a self, name: &'a str) -> impl Iterator<Item = (&'a str, f64)> {
        self.0.lines().filter_map(move |line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = match rest.strip_prefix('{') {
                Some(rest) => rest.split_once("} ")?,
                None => ("", rest.strip_prefix(' ')?),
            };
            Some((labels, value.parse().ok()?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_name_and_label() {
        let text = "# HELP boat_sessions Admitted sessions
boat_sessions 12
boat_sessions 3
boat_sessions_other 100
calls{call=\"connect\",result=\"ok\"} 5
calls{call=\"disconnect\",result=\"ok\"} 7
";
        let metrics = ScrapedMetrics(text.to_owned());
        assert_eq!(metrics.sum("boat_sessions", ""), 15.0);
        assert_eq!(metrics.sum("calls", "call=\"connect\""), 5.0);
        assert_eq!(metrics.sum("calls", ""), 12.0);
        assert_eq!(metrics.sum("nothing", ""), 0.0);
    }
}
