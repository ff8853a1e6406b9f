//! Command line, settings, and exit codes.

use crate::all::Dir;
use crate::process::{packetboat, run};

#[test]
fn the_default_settings_check_out() {
    let dir = Dir::new();
    let default = run(&mut packetboat(&["config", "default"])).ok().stdout;
    assert!(default.contains("# key_file = "), "unset ones, too");
    assert!(default.contains("ledger_retention = \"60days\""));
    let file = dir.path("packetboat.toml");
    std::fs::write(&file, &default).expect("a file");
    let file = file.to_string_lossy();
    run(&mut packetboat(&["--config", &file, "config", "check"])).ok();
    let print = run(&mut packetboat(&["--config", &file, "config", "print"])).ok();
    let table = |text: &str| text.parse::<toml::Table>().expect("TOML");
    let without = run(&mut packetboat(&["config", "print"])).ok().stdout;
    assert_eq!(
        table(&print.stdout),
        table(&without),
        "the file says nothing but the defaults"
    );
    // The environment wins over the file.
    let print = run(packetboat(&["--config", &file, "config", "print"])
        .env("PACKETBOAT_BOAT__WEBSOCKET", "127.0.0.1:7777"))
    .ok();
    assert!(print.stdout.contains("127.0.0.1:7777"));
}

#[test]
fn settings_that_cannot_be_end_with_3_and_name_the_key() {
    let dir = Dir::new();
    let file = dir.path("packetboat.toml");
    for (text, named) in [
        ("[boat]\nwebsockt = \"127.0.0.1:9000\"\n", "websockt"),
        ("[boat]\nwebsocket = 9000\n", "websocket"),
        ("[carrier]\nack_wait = \"soon\"\n", "ack_wait"),
        ("[boat]\nwebsocket = \"0.0.0.0:9000\"\n", "key_file"),
        ("[ferry]\n", "ferry"),
        (
            "[station.sessions.per_platform]\nweb = 65\n",
            "station.sessions.per_platform.web",
        ),
        (
            "[station.sessions.per_platform]\nphone = 2\n",
            "station.sessions.per_platform.phone",
        ),
        ("[station]\nlisten = \"0.0.0.0:9100\"\n", "station.listen"),
        ("[station.auth]\nstale_max = \"1h\"\n", "stale_max"),
        ("[log]\nlevel = \"[[\"\n", "log.level"),
        ("[boat]\nconnections_max = 0\n", "boat.connections_max"),
        (
            "[boat.session]\nheartbeat = \"0s\"\n",
            "boat.session.heartbeat",
        ),
        (
            "[boat.session]\nframe_bytes_max = 4294967295\n",
            "boat.session.frame_bytes_max",
        ),
        ("[admin]\nlisten = \"0.0.0.0:0\"\n", "admin.anybody"),
        (
            "[admin]\nlisten = \"0.0.0.0:0\"\nanybody = true\n",
            "admin.tls.offloaded",
        ),
        (
            "[log.otlp]\nendpoint = \"https://collector:4317\"\n",
            "log.otlp.endpoint",
        ),
        (
            "[embedded]\nledger_retention = \"30days\"\n",
            "ledger_retention",
        ),
    ] {
        std::fs::write(&file, text).expect("a file");
        let file = file.to_string_lossy();
        for command in [&["config", "check"][..], &["all", "--memory"]] {
            let output = run(packetboat(&["--config", &file]).args(command));
            assert_eq!(output.code, Some(3), "{text}: {}", output.stderr);
            assert!(output.stderr.contains(named), "{text}: {}", output.stderr);
        }
    }
    let output = run(packetboat(&["config", "check"]).env("PACKETBOAT_BOAT__NONSENSE", "1"));
    assert_eq!(output.code, Some(3), "{}", output.stderr);
    let output = run(&mut packetboat(&[
        "--config",
        "/no/such/file",
        "config",
        "check",
    ]));
    assert_eq!(output.code, Some(3), "{}", output.stderr);
}

#[test]
fn a_setting_that_became_fixed_is_refused_with_its_value() {
    let dir = Dir::new();
    let file = dir.path("packetboat.toml");
    std::fs::write(&file, "[boat]\nlanes = 8\n").expect("a file");
    let mut from_file = packetboat(&["--config"]);
    from_file.arg(&file).args(["config", "check"]);
    let mut from_environment = packetboat(&["config", "check"]);
    from_environment.env("PACKETBOAT_BOAT__LANES", "8");
    for (mut command, name) in [
        (from_file, "boat.lanes"),
        (from_environment, "PACKETBOAT_BOAT__LANES"),
    ] {
        let output = run(&mut command);
        assert_eq!(output.code, Some(3), "{}", output.stderr);
        let refusal = format!("{name}: no longer a setting: fixed at 4. Remove it");
        assert!(output.stderr.contains(&refusal), "{}", output.stderr);
    }
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    for arguments in [
        &[][..],
        &["row"],
        &["send", "--user", "1", "--to", "2"],
        &["send", "--user", "0", "--to", "2", "hello"],
        &["send", "--user", "1", "--to", "2", "--stdin", "hello"],
        &["listen", "--user", "2", "--platform", "toaster"],
        &["dlq", "redrive"],
        &["dlq", "list", "--reason", "boredom"],
        &["dlq", "redrive", "--all", "--limit", "1001"],
        &["audit", "--all", "--last", "1h"],
        &["audit", "--since", "yesterday"],
        &["all", "--memory", "--data", "here"],
    ] {
        let output = run(&mut packetboat(arguments));
        assert_eq!(
            (output.code, output.stdout.as_str()),
            (Some(2), ""),
            "{arguments:?}"
        );
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

#[test]
fn help_and_version_are_no_errors() {
    for arguments in [
        &["--help"][..],
        &["all", "--help"],
        &["send", "--help"],
        &["dlq", "--help"],
        &["config", "--help"],
    ] {
        let help = run(&mut packetboat(arguments)).ok().stdout;
        let examples = help.split_once("Examples:");
        assert!(arguments.len() == 1 || examples.is_some(), "{help}");
    }
    let version = run(&mut packetboat(&["--version"])).ok().stdout;
    assert_eq!(
        version,
        format!("packetboat {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn unreachable_desk_is_an_error_that_names_its_address() {
    let output = run(packetboat(&["audit"]).env("PACKETBOAT_ADMIN", "http://127.0.0.1:1"));
    assert_eq!(output.code, Some(1));
    assert!(output.stderr.contains("127.0.0.1:1"), "{}", output.stderr);
}

#[cfg(feature = "cluster")]
#[test]
fn settings_of_parts_that_break_the_promise_end_with_3() {
    let dir = Dir::new();
    let file = dir.path("packetboat.toml");
    for (text, named) in [
        ("[kafka]\nreplication_factor = 3\n", "unsafe_single_copy"),
        ("[redis]\naddresses = []\n", "addresses"),
        ("[etcd]\nendpoints = []\n", "endpoints"),
        ("[scylla]\ncontact_points = []\n", "contact_points"),
        (
            "[kafka.properties]\n\"sasl.password\" = \"hunter2\"\n",
            "kafka.sasl.password_file",
        ),
        (
            "[kafka.properties]\n\"ssl.key.password\" = \"hunter2\"\n",
            "property_files",
        ),
    ] {
        std::fs::write(&file, text).expect("a file");
        let output = run(&mut packetboat(&[
            "--config",
            &file.to_string_lossy(),
            "config",
            "check",
        ]));
        assert_eq!(output.code, Some(3), "{text}: {}", output.stderr);
        assert!(output.stderr.contains(named), "{text}: {}", output.stderr);
        assert!(!output.stderr.contains("hunter2"), "{}", output.stderr);
    }
}

#[test]
fn all_problems_are_named_at_once() {
    let output = run(packetboat(&["config", "check"])
        .env("PACKETBOAT_STATION__LISTEN", "0.0.0.0:9100")
        .env("PACKETBOAT_LOG__LEVEL", "[["));
    assert_eq!(output.code, Some(3), "{}", output.stderr);
    for key in ["station.listen", "log.level"] {
        assert!(output.stderr.contains(key), "{}", output.stderr);
    }
}

#[test]
fn unknown_variable_exits_with_3_and_names_the_nearest() {
    let output = run(packetboat(&["config", "check"]).env("PACKETBOAT_ADMIN_LISTEN", "0.0.0.0:1"));
    assert_eq!(output.code, Some(3), "{}", output.stderr);
    let nearest = "PACKETBOAT_ADMIN__LISTEN";
    assert!(output.stderr.contains(nearest), "{}", output.stderr);
    run(packetboat(&["config", "check"])
        .env("PACKETBOAT_STATION_SERVICE_HOST", "10.0.0.1")
        .env("PACKETBOAT_STATION_PORT_9100_TCP_ADDR", "10.0.0.1"))
    .ok();
}

#[test]
fn a_file_that_settings_name_must_be_there() {
    let output =
        run(packetboat(&["config", "check"])
            .env("PACKETBOAT_STATION__AUTH__KEY_FILE", "/no/such/key"));
    assert_eq!(output.code, Some(3), "{}", output.stderr);
    let key = "station.auth.key_file";
    assert!(output.stderr.contains(key), "{}", output.stderr);
}

#[test]
fn secrets_are_struck_out_of_what_is_printed() {
    let url = "https://user:hunter2@push.example/call?token=hunter2";
    let print = run(packetboat(&["config", "print"]).env("PACKETBOAT_HORN__URL", url)).ok();
    assert!(
        print.stdout.contains("push.example/call"),
        "{}",
        print.stdout
    );
    assert!(!print.stdout.contains("hunter2"), "{}", print.stdout);
}

#[cfg(feature = "cluster")]
#[test]
fn an_address_of_the_command_line_is_checked_too() {
    let ended = run(&mut packetboat(&["station", "--listen", "10.0.0.7:9100"]));
    assert_eq!(ended.code, Some(3), "{}", ended.stderr);
    assert!(ended.stderr.contains("station.listen"), "{}", ended.stderr);
}

#[cfg(feature = "otlp")]
#[test]
fn variables_of_opentelemetry_lie_below_the_settings() {
    let print = |variables: &[(&str, &str)]| {
        let mut command = packetboat(&["config", "print"]);
        let collector = "http://user:hunter2@quay:4317";
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", collector);
        let print = run(command.envs(variables.iter().copied())).ok().stdout;
        assert!(!print.contains("hunter2"), "{print}");
        let settings = print.parse::<toml::Table>().expect("TOML");
        let otlp = settings["log"].get("otlp");
        let endpoint = otlp.and_then(|otlp| otlp.get("endpoint"));
        endpoint.map(|endpoint| endpoint.as_str().expect("text").to_owned())
    };
    let struck = "http://(redacted)@quay:4317";
    assert_eq!(print(&[]).as_deref(), Some(struck));
    let own = print(&[("PACKETBOAT_LOG__OTLP__ENDPOINT", "http://pier:4317")]);
    assert_eq!(own.as_deref(), Some("http://pier:4317"));
    assert_eq!(print(&[("OTEL_SDK_DISABLED", "true")]), None);
    let wrong = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://quay:4318"),
    ];
    let refused = run(packetboat(&["config", "check"]).envs(wrong));
    assert_eq!(refused.code, Some(3), "{}", refused.stderr);
    assert!(refused.stderr.contains(wrong[0].0), "{}", refused.stderr);
}
