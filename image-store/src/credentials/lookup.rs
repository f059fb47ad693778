//! The lookup of credentials for a pull whose job contains none: docker's `config.json`, then a credential helper.
//!
//! Both are read again at each pull that asks a registry, so a change on disk takes effect with the next pull. Neither
//! the content of the file nor the output of a helper ever appears in an error or a log.

use std::{io::Read, path::Path};

use super::{
    docker,
    failure::Failure,
    helper,
    secret::{CredentialSources, Credentials},
};
use crate::{error::PullError, reference::Reference};

/// The largest `config.json` that is read. Usual ones have a few kilobytes.
const FILE_BYTES: u64 = 4 << 20;

/// Looks up the credentials for an image. `None`: no source has any. With `soft_fail`, a source that fails counts as
/// empty.
pub(crate) async fn find(
    sources: &CredentialSources,
    reference: &Reference,
    soft_fail: bool,
) -> Result<Option<Credentials>, PullError> {
    if sources.config_file.is_none() && sources.helper.is_none() {
        return Ok(None);
    }
    let (sources, reference) = (sources.clone(), reference.clone());
    // Files and processes are waited for on a thread that may block.
    let found = tokio::task::spawn_blocking(move || find_blocking(&sources, &reference, soft_fail)).await;
    let found = found.unwrap_or_else(|_| {
        Err(Failure { origin: "the plugin's auth block".into(), problem: "the search was interrupted".into() })
    });
    found.map_err(|Failure { origin, problem }| PullError::Credentials { origin, problem })
}

/// Asks the sources in their order.
fn find_blocking(
    sources: &CredentialSources,
    reference: &Reference,
    soft_fail: bool,
) -> Result<Option<Credentials>, Failure> {
    let forgive = |result: Result<Option<Credentials>, Failure>| match result {
        Err(Failure { origin, problem }) if soft_fail => {
            tracing::warn!(image = %reference, origin, problem, "going on without these credentials (auth_soft_fail)");
            Ok(None)
        }
        result => result,
    };
    if let Some(path) = &sources.config_file
        && let Some(credentials) = forgive(from_file(path, reference))?
    {
        return Ok(Some(credentials));
    }
    match &sources.helper {
        Some(name) => forgive(helper::ask(name, docker::server(reference.domain()))),
        None => Ok(None),
    }
}

fn from_file(path: &Path, reference: &Reference) -> Result<Option<Credentials>, Failure> {
    let wrong = |problem: String| Failure { origin: format!("the docker config {}", path.display()), problem };
    let mut text = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(FILE_BYTES + 1).read_to_end(&mut text))
        .map_err(|error| wrong(error.to_string()))?;
    if text.len() as u64 > FILE_BYTES {
        return Err(wrong(format!("it is larger than {FILE_BYTES} bytes")));
    }
    let config = docker::Config::parse(&text).map_err(wrong)?;
    let server = docker::server(reference.domain());
    if let Some(name) = config.helper(reference)
        && let Some(credentials) = helper::ask(name, server)?
    {
        return Ok(Some(credentials));
    }
    if let Some(credentials) = config.stored(reference).map_err(wrong)? {
        return Ok(Some(credentials));
    }
    match config.store() {
        Some(name) => helper::ask(name, server),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference() -> Reference {
        "registry.invalid/team/app:1".parse().unwrap()
    }

    async fn user(sources: &CredentialSources, soft_fail: bool) -> Result<Option<String>, PullError> {
        Ok(find(sources, &reference(), soft_fail).await?.map(|credentials| credentials.username))
    }

    #[tokio::test]
    async fn the_file_is_read_at_each_lookup_and_failures_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        let sources = CredentialSources { config_file: Some(path.clone()), helper: None };
        let error = user(&sources, false).await.unwrap_err();
        assert!(error.to_string().contains(path.to_str().unwrap()) && !error.recoverable(), "{error}");
        assert_eq!(user(&sources, true).await.unwrap(), None);
        for name in ["ann", "bob"] {
            let auths = serde_json::json!({"auths": {"registry.invalid": {"username": name, "password": "x"}}});
            std::fs::write(&path, auths.to_string()).unwrap();
            assert_eq!(user(&sources, false).await.unwrap().as_deref(), Some(name));
        }
        std::fs::write(&path, "{\"auths\": \"hunter2\"").unwrap();
        let error = user(&sources, false).await.unwrap_err().to_string();
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[tokio::test]
    async fn the_helper_is_asked_after_a_file_without_an_entry() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.json");
        std::fs::write(&path, "{}").unwrap();
        let no_helper = "oci-rs-test-of-no-such-helper";
        let sources = CredentialSources { config_file: Some(path), helper: Some(no_helper.into()) };
        let error = user(&sources, false).await.unwrap_err().to_string();
        assert!(error.contains(&format!("docker-credential-{no_helper}")), "{error}");
        assert_eq!(user(&sources, true).await.unwrap(), None);
    }

    #[tokio::test]
    async fn helpers_in_the_file_come_before_its_passwords() {
        let directory = tempfile::tempdir().unwrap();
        let program = helper::tests::script(directory.path(), r#"echo '{"Username":"helped","Secret":"s"}'"#);
        let server = docker::server("registry.invalid");
        let credentials = helper::run(&program, server, std::time::Duration::from_secs(10)).unwrap();
        assert_eq!(credentials.unwrap().username, "helped");
        let config = docker::Config::parse(
            br#"{"credHelpers": {"registry.invalid": "script"}, "auths": {"registry.invalid": {"auth": "YTpi"}}}"#,
        )
        .unwrap();
        assert_eq!(config.helper(&reference()), Some("script"));
    }
}
