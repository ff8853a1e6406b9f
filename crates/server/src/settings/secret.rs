//! Strikes secrets out of settings before they are shown.

use protocol::settings::{STRUCK, names_secret, strike};
use toml::Value;

/// Strikes out each value whose key names a secret itself (not a file that holds one), and the
/// parts of a URL that identify its caller.
pub(super) fn redact(value: &mut Value) {
    match value {
        Value::Table(table) => {
            for (key, value) in table.iter_mut() {
                match value {
                    Value::String(text) if names_secret(key) && !text.is_empty() => {
                        *text = STRUCK.into();
                    }
                    _ => redact(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(redact),
        Value::String(text) => *text = strike(text),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_struck_out_wherever_it_stands() {
        let mut value = Value::Table(
            "[kafka]\nbrokers = ['SASL://a:hunter2@host:1']\n[kafka.properties]\n'sasl.password' = 'hunter2'\n\
             'sasl.oauthbearer.assertion.private.key.passphrase' = 'hunter2'\n\
             'ssl.key.pem' = 'hunter2'\n[station.auth]\nkey_file = '/a/key'\n[redis]\nkey_prefix = 'msg'\n"
                .parse()
                .expect("TOML"),
        );
        redact(&mut value);
        let text = value.to_string();
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("/a/key") && text.contains("msg"), "{text}");
    }
}
