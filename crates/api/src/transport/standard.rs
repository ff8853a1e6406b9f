//! gRPC's own services beside ours, on the network: health, and reflection if the settings want it.

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::{HealthReporter, health_reporter};
use tonic_reflection::server::Builder;

use crate::envelope::DESCRIPTORS;

/// Streaming methods among them: such a stream ends as soon as its server stops, and nobody waits
/// for it.
const STREAMING: [&str; 3] = [
    "/grpc.health.v1.Health/Watch",
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
];

pub(super) fn is_streaming(path: &str) -> bool {
    STREAMING.contains(&path)
}

/// Health of a server, and its reflection.
#[derive(Clone, Debug)]
pub struct StandardServices {
    /// Full names of the services that share the server's health.
    pub services: &'static [&'static str],
    /// True while new work is welcome.
    pub ready: watch::Receiver<bool>,
    /// Reflection: callers may ask for services and messages by name.
    pub reflection: bool,
}

impl StandardServices {
    /// Adds them to routes. Health is updated until the handle is dropped.
    pub(super) fn add(
        self,
        mut routes: Routes,
        stop: CancellationToken,
    ) -> (Routes, AbortOnDropHandle<()>) {
        let (reporter, health) = health_reporter();
        if self.reflection {
            routes = self.with_reflection(routes);
        }
        let health_task = tokio::spawn(self.follow(reporter, stop));
        (
            routes.add_service(health),
            AbortOnDropHandle::new(health_task),
        )
    }

    fn with_reflection(&self, mut routes: Routes) -> Routes {
        let builder = || {
            let builder = Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
                .with_service_name("grpc.health.v1.Health");
            let names = self.services.iter();
            names.fold(builder, |builder, name| builder.with_service_name(*name))
        };
        match (builder().build_v1(), builder().build_v1alpha()) {
            (Ok(new), Ok(old)) => routes = routes.add_service(new).add_service(old),
            (Err(error), _) | (_, Err(error)) => {
                tracing::error!(%error, "gRPC reflection is off: cannot decode the descriptors");
            }
        }
        routes
    }

    async fn follow(mut self, reporter: HealthReporter, stop: CancellationToken) {
        loop {
            let is_ready = *self.ready.borrow_and_update();
            self.report(&reporter, is_ready && !stop.is_cancelled())
                .await;
            if stop.is_cancelled() {
                return;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                result = self.ready.changed() => if result.is_err() {
                    // Nobody reports any more whether it is ready.
                    self.report(&reporter, false).await;
                    return;
                },
            }
        }
    }

    async fn report(&self, reporter: &HealthReporter, is_ready: bool) {
        let status = if is_ready {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        // The empty name stands for the whole server.
        for name in self.services.iter().copied().chain([""]) {
            reporter.set_service_status(name, status).await;
        }
    }
}
