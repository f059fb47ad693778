//! The registries of the plugin block, as they answered.

use image_store::{PullError, RegistryAnswer};

use crate::health::Finding;

/// Judges them. A registry that cannot be reached is no error if one of its mirrors answers, as on a node without the
/// internet.
pub fn judge(registries: &[RegistryAnswer]) -> Vec<Finding> {
    let has_mirror =
        |host: &str| registries.iter().any(|other| other.mirror_of.as_deref() == Some(host) && other.answer.is_ok());
    registries.iter().map(|registry| judge_one(registry, has_mirror(&registry.host))).collect()
}

fn judge_one(registry: &RegistryAnswer, has_mirror: bool) -> Finding {
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
        None if has_mirror => {
            Finding::warning(check, format!("{error}: images that its mirrors lack cannot be pulled"), remedy)
        }
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
            let answer = RegistryAnswer { host: "r.example".into(), mirror_of, with_credentials, answer };
            let [finding] = judge(&[answer]).try_into().unwrap();
            assert_eq!(finding.level, level, "{finding:?}");
            assert!(finding.text().contains(part), "{finding:?}");
        }
    }

    #[test]
    fn a_registry_out_of_reach_is_no_error_if_a_mirror_answers() {
        let problem =
            || PullError::Network { host: "docker.io".into(), what: "login".into(), problem: "no DNS".into() };
        let answer = |host: &str, mirror_of: Option<&str>, answer| RegistryAnswer {
            host: host.into(),
            mirror_of: mirror_of.map(str::to_owned),
            with_credentials: false,
            answer,
        };
        let of = |mirrored: &str, mirror| {
            let all = [answer("docker.io", None, Err(problem())), answer("m.example", Some(mirrored), mirror)];
            judge(&all).remove(0)
        };
        assert_eq!(of("docker.io", Ok(())).level, Warning);
        assert!(of("docker.io", Ok(())).reason.contains("images that its mirrors lack"));
        assert_eq!(of("quay.io", Ok(())).level, Error);
        assert_eq!(of("docker.io", Err(problem())).level, Error);
    }
}
