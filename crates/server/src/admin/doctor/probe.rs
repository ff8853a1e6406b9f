//! Whether each part answers, for alarms.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use metrics::gauge;
use protocol::doctor::{Answer, Looked};
use tokio_util::sync::CancellationToken;

use super::Doctor;

/// How often each part is asked: an alarm waits for minutes.
const EVERY: Duration = Duration::from_secs(15);

impl Doctor {
    /// Asks each part its small question again and again, until `stop`, and shows in `part_up` whether it answered.
    pub fn probing(self, stop: CancellationToken) -> Arc<Doctor> {
        let doctor = Arc::new(self);
        let prober = doctor.clone();
        tokio::spawn(stop.run_until_cancelled_owned(async move {
            loop {
                prober.probe().await;
                tokio::time::sleep(EVERY).await;
            }
        }));
        doctor
    }

    /// Each has a deadline of its own, the same for all.
    async fn probe(&self) {
        let answers = join_all(self.questions()).await;
        answers.iter().for_each(show);
    }
}

fn show(answer: &Answer) {
    let is_up = matches!(answer.took, Looked::Saw(_));
    gauge!("part_up", "part" => answer.check.name()).set(if is_up { 1.0 } else { 0.0 });
}

#[cfg(test)]
mod tests {
    use backend::clock::{SeededEntropy, SystemClock};
    use backend::embedded::Engine;
    use metrics_exporter_prometheus::PrometheusBuilder;
    use protocol::doctor::Check;
    use protocol::mailbox::SessionCapacity;

    use super::*;
    use crate::admin::Operators;
    use crate::admin::doctor::{Parts, Stores};
    use crate::compose::embedded::Config;
    use crate::compose::{Access, Environment};
    use crate::phase::Phases;
    use crate::settings::Settings;

    /// What `/metrics` says of the parts then, line by line.
    fn shown(act: impl FnOnce()) -> Vec<String> {
        let recorder = PrometheusBuilder::new().build_recorder();
        metrics::with_local_recorder(&recorder, act);
        let text = recorder.handle().render();
        let lines = text.lines().filter(|line| line.starts_with("part_up{"));
        lines.map(str::to_owned).collect()
    }

    #[test]
    fn each_part_that_answers_is_up() {
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SeededEntropy::new(1)));
        let environment = Environment::over(
            Engine::memory(),
            &Config::default(),
            SessionCapacity::default(),
            clock,
            entropy,
        );
        let doctor = Doctor::new(Parts {
            settings: Settings::default(),
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
        let up = shown(|| runtime.block_on(doctor.probe()));
        for part in ["log", "mailbox", "discovery", "ledger", "history"] {
            let line = format!("part_up{{part=\"{part}\"}} 1");
            assert!(up.contains(&line), "{part}: {up:?}");
        }
    }

    #[test]
    fn one_that_fails_or_hangs_is_down_until_it_answers() {
        let of = |took| Answer {
            check: Check::Log,
            took,
        };
        let late = of(Looked::Late(Duration::from_secs(3)));
        let failed = of(Looked::Failed("no brokers".to_owned()));
        let saw = of(Looked::Saw(Duration::from_secs(2)));
        let line = |value| vec![format!("part_up{{part=\"log\"}} {value}")];
        assert_eq!(shown(|| show(&late)), line(0));
        assert_eq!(shown(|| show(&failed)), line(0));
        let turns = [saw.clone(), late, saw];
        assert_eq!(shown(|| turns.iter().for_each(show)), line(1));
    }
}
