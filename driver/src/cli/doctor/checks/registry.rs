//! The registries of the plugin block, as they answered.

use image_store::{PullError, RegistryAnswer};

use crate::health::Finding;

/// Judges it.
pub fn judge(registry: &RegistryAnswer) -> Finding {
    let (check, host) = ("registry", &registry.host);
    let error = match &registry.answer {
        Ok(()) if registry.with_credentials => return Finding::ok(check, format!("{host} accepts the credentials")),
        Ok(()) => return Finding::ok(check, format!("{host} answers")),
        Err(PullError::Denied { anonymous: true, .. }) => {
            return Finding::ok(
                check,
                format!("{host} answers, and wants credentials: tasks need `auth` of their own"),
            );
        }
        // Some mirrors have no such page, but have images.
        Err(PullError::NotFound { .. }) => return Finding::ok(check, format!("{host} answers")),
        Err(error) => error,
    };
    let remedy = match error {
        PullError::Denied { .. } => "correct the credentials: `registry { auth }` or `auth` in the plugin block",
        PullError::Credentials { .. } => "correct `auth` in the plugin block",
        _ => "check name, network, proxy and firewall; curl from this node shows more",
    };
    match &registry.mirror_of {
        None => Finding::error(check, format!("{error}: images of {host} cannot be pulled"), remedy),
        Some(registry) => {
            Finding::warning(check, format!("{error}: this mirror does not help, and {registry} is asked"), remedy)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Level::{self, Error, Warning};

    #[test]
    fn each_answer_has_its_level() {
        let denied = |anonymous| PullError::Denied {
            host: "r.example".into(),
            what: "login".into(),
            anonymous,
            detail: String::new(),
        };
        let network =
            || PullError::Network { host: "r.example".into(), what: "login".into(), problem: "refused".into() };
        let source = || PullError::Credentials { origin: "the helper".into(), problem: "gone".into() };
        for (with_credentials, mirror, answer, level, part) in [
            (false, false, Ok(()), Level::Ok, "answers"),
            (true, false, Ok(()), Level::Ok, "accepts the credentials"),
            (false, false, Err(denied(true)), Level::Ok, "wants credentials"),
            (true, false, Err(denied(false)), Error, "correct the credentials"),
            (false, false, Err(network()), Error, "refused"),
            (false, true, Err(network()), Warning, "docker.io is asked"),
            (true, true, Err(denied(false)), Warning, "correct the credentials"),
            (false, false, Err(source()), Error, "correct `auth`"),
        ] {
            let mirror_of = mirror.then(|| "docker.io".to_owned());
            let finding = judge(&RegistryAnswer { host: "r.example".into(), mirror_of, with_credentials, answer });
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.text().contains(part), "{finding:?}");
        }
    }
}
