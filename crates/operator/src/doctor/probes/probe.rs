//! Periodic probes of each part, for alarms.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use metrics::gauge;
use tokio_util::sync::CancellationToken;

use crate::doctor::Doctor;
use crate::doctor::rules::{Answer, Inspection};

/// Interval of probes: an alarm waits for minutes.
const PROBE_INTERVAL: Duration = Duration::from_secs(15);

impl Doctor {
    /// Probes each part again and again, until `stop`; `part_up` shows the outcome.
    pub fn probing(self, stop: CancellationToken) -> Arc<Doctor> {
        let doctor = Arc::new(self);
        let prober = doctor.clone();
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            loop {
                prober.probe().await;
                tokio::time::sleep(PROBE_INTERVAL).await;
            }
        }));
        doctor
    }

    /// Asks all parts concurrently, each under the same deadline.
    async fn probe(&self) {
        let answers = join_all(self.questions()).await;
        answers.iter().for_each(show);
    }
}

fn show(answer: &Answer) {
    let is_up = matches!(answer.duration, Inspection::Saw(_));
    gauge!("part_up", "part" => answer.check.label()).set(if is_up { 1.0 } else { 0.0 });
}

#[cfg(test)]
mod tests {
    use backend::clock::{SeededEntropy, SystemClock};
    use backend::embedded::Engine;
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::Access;
    use crate::doctor::rules::Check;
    use crate::doctor::{DoctorSettings, Parts, Stores};
    use crate::in_memory::Environment;
    use crate::lifecycle::Phases;
    use crate::port::Operators;

    /// Lines of `/metrics` about the parts after `act`.
    fn render_gauges(act: impl FnOnce()) -> Vec<String> {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, act);
        let text = recorder.handle().render();
        let lines = text.lines().filter(|line| line.starts_with("part_up{"));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn each_part_that_answers_is_up() {
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SeededEntropy::new(1)));
        let environment = Environment::over(Engine::memory(), clock, entropy);
        let doctor = Doctor::new(Parts {
            settings: DoctorSettings::default(),
            role: None,
            stores: Stores::Memory,
            access: Access::from(&environment.expect("stores in memory").backends),
            phases: Phases::default(),
            operators: Operators::default(),
            desk: None,
            certificates: None,
        });
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().expect("a runtime");
        let up = render_gauges(|| runtime.block_on(doctor.probe()));
        for part in ["log", "mailbox", "discovery", "ledger", "audit-store"] {
            let line = format!("part_up{{part=\"{part}\"}} 1");
            assert!(up.contains(&line), "{part}: {up:?}");
        }
    }

    #[test]
    fn one_that_fails_or_hangs_is_down_until_it_answers() {
        let answer = |duration| Answer {
            check: Check::Log,
            duration,
        };
        let late = answer(Inspection::Late(Duration::from_secs(3)));
        let failure = answer(Inspection::Failed("no brokers".to_owned()));
        let saw = answer(Inspection::Saw(Duration::from_secs(2)));
        let line = |value| vec![format!("part_up{{part=\"log\"}} {value}")];
        assert_eq!(render_gauges(|| show(&late)), line(0));
        assert_eq!(render_gauges(|| show(&failure)), line(0));
        let turns = [saw.clone(), late, saw];
        assert_eq!(render_gauges(|| turns.iter().for_each(show)), line(1));
    }
}
